// Counts the calls that a thread must not make, so that "does not allocate" can be tested: allocations and locks. Also
// counts how often it reads the clock, which shows how much work it does. Replaces libc's functions.
#pragma once
#include <stdbool.h>
#include <stdint.h>

/// Begins to count the calls of all threads of this name (at most 15 bytes) from zero.
void call_counter_arm(const char *thread_name);
/// Ends it.
void call_counter_disarm(void);
/// malloc, calloc, realloc, posix_memalign and free together.
uint64_t call_counter_allocations(void);
/// pthread_mutex_lock, but for those that libasound and its plugins do inside their own calls.
uint64_t call_counter_locks(void);
/// clock_gettime, by our code and by libraries: libcurl asks for the time with each transfer that it checks.
uint64_t call_counter_clock_reads(void);
/// False under a sanitizer, which needs libc's functions for itself: nothing is counted then.
bool call_counter_works(void);
/// Allocations (not frees) that the calling thread has made since it began; -1 under a sanitizer.
long allocations_of_this_thread(void);
/// Lets the next attempt of the calling thread to start a thread fail with EAGAIN, as when there are too many; not
/// under a sanitizer.
void refuse_next_thread_of_this_thread(void);
/// Makes each attempt of a thread of this name to watch another descriptor fail with that errno; 0 ends it. Not under a
/// sanitizer.
void refuse_watches(const char *thread_name, int error);
/// How often that has happened.
unsigned long refused_watches(void);
/// From now on, the calling thread finds the machine's clock synchronized or not (adjtimex).
void set_clock_of_this_thread(bool is_synchronized);
/// How often the calling thread has changed what epoll watches (epoll_ctl); -1 under a sanitizer.
long watch_changes_of_this_thread(void);
