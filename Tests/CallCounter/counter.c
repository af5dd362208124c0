// See CallCounter.h. Definitions in the program come before libc's, for libc itself and all libraries.
#define _GNU_SOURCE
#include "CallCounter.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static bool armed;
static char wanted[16];
static uint64_t allocations, locks, clock_reads;

uint64_t call_counter_allocations(void) { return __atomic_load_n(&allocations, __ATOMIC_RELAXED); }
uint64_t call_counter_locks(void) { return __atomic_load_n(&locks, __ATOMIC_RELAXED); }
uint64_t call_counter_clock_reads(void) { return __atomic_load_n(&clock_reads, __ATOMIC_RELAXED); }
void call_counter_disarm(void) { __atomic_store_n(&armed, false, __ATOMIC_SEQ_CST); }

void call_counter_arm(const char *thread_name) {
  strncpy(wanted, thread_name, sizeof wanted - 1);
  __atomic_store_n(&allocations, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&locks, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&clock_reads, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&armed, true, __ATOMIC_SEQ_CST);
}

// The state that a thread was given; -1 for the kernel's.
static __thread int clock_state = -1;

void set_clock_of_this_thread(bool is_synchronized) { clock_state = is_synchronized ? TIME_OK : TIME_ERROR; }

int adjtimex(struct timex *clock) { return clock_state >= 0 ? clock_state : (int)syscall(SYS_adjtimex, clock); }

#ifdef SANITIZED
bool call_counter_works(void) { return false; }
long allocations_of_this_thread(void) { return -1; }
long watch_changes_of_this_thread(void) { return -1; }
void refuse_next_thread_of_this_thread(void) {}
void refuse_watches(const char *thread_name, int error) {}
unsigned long refused_watches(void) { return 0; }
#else
bool call_counter_works(void) { return true; }

// initial-exec: the first access must not allocate, or it would come back here.
static __thread long thread_allocations __attribute__((tls_model("initial-exec")));

long allocations_of_this_thread(void) { return thread_allocations; }

static __thread long thread_watch_changes __attribute__((tls_model("initial-exec")));

long watch_changes_of_this_thread(void) { return thread_watch_changes; }

static char unwatched_thread[16];
static int watch_refusal;
static unsigned long watch_refusals;

void refuse_watches(const char *thread_name, int error) {
  strncpy(unwatched_thread, thread_name, sizeof unwatched_thread - 1);
  __atomic_store_n(&watch_refusal, error, __ATOMIC_SEQ_CST);
}

unsigned long refused_watches(void) { return __atomic_load_n(&watch_refusals, __ATOMIC_SEQ_CST); }

int epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event) {
  thread_watch_changes += 1;
  int refusal = operation == EPOLL_CTL_ADD ? __atomic_load_n(&watch_refusal, __ATOMIC_SEQ_CST) : 0;
  char name[16] = "";
  if (refusal != 0 && prctl(PR_GET_NAME, name) == 0 && strcmp(name, unwatched_thread) == 0) {
    __atomic_add_fetch(&watch_refusals, 1, __ATOMIC_SEQ_CST);
    errno = refusal;
    return -1;
  }
  return (int)syscall(SYS_epoll_ctl, epoll, operation, descriptor, event);
}

static __thread bool refuses_thread __attribute__((tls_model("initial-exec")));

void refuse_next_thread_of_this_thread(void) { refuses_thread = true; }

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  typedef int (*create_function)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  static _Atomic(create_function) known;
  create_function libc_create = known;
  if (!libc_create) known = libc_create = (create_function)dlsym(RTLD_NEXT, "pthread_create");
  if (refuses_thread) {
    refuses_thread = false;
    return EAGAIN;
  }
  return libc_create(thread, attributes, body, argument);
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static bool is_counted_thread(void) {
  if (!__atomic_load_n(&armed, __ATOMIC_RELAXED)) return false;
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  return strcmp(name, wanted) == 0;
}

static void count_allocation(void) {
  thread_allocations += 1;
  if (is_counted_thread()) __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t size) {
  count_allocation();
  return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  count_allocation();
  return __libc_calloc(count, size);
}
void *realloc(void *pointer, size_t size) {
  count_allocation();
  return __libc_realloc(pointer, size);
}
void *memalign(size_t alignment, size_t size) {
  count_allocation();
  return __libc_memalign(alignment, size);
}
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **pointer, size_t alignment, size_t size) {
  void *found = memalign(alignment, size);
  if (!found) return ENOMEM;
  *pointer = found;
  return 0;
}
void free(void *pointer) {
  if (pointer && is_counted_thread()) __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
  __libc_free(pointer);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  typedef int (*gettime_function)(clockid_t, struct timespec *);
  static _Atomic(gettime_function) known;
  gettime_function libc_gettime = known;
  if (!libc_gettime) known = libc_gettime = (gettime_function)dlsym(RTLD_NEXT, "clock_gettime");
  if (is_counted_thread()) __atomic_add_fetch(&clock_reads, 1, __ATOMIC_RELAXED);
  return libc_gettime(clock, time);
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
  // Looked up at the first call, which is before main: libraries lock in their constructors.
  typedef int (*lock_function)(pthread_mutex_t *);
  static _Atomic(lock_function) known;
  lock_function libc_lock = known;
  if (!libc_lock) known = libc_lock = (lock_function)dlsym(RTLD_NEXT, "pthread_mutex_lock");
  if (is_counted_thread()) {
    Dl_info caller;
    bool alsa = dladdr(__builtin_return_address(0), &caller) && caller.dli_fname &&
                (strstr(caller.dli_fname, "libasound") || strstr(caller.dli_fname, "libTestDevice"));
    if (!alsa) __atomic_add_fetch(&locks, 1, __ATOMIC_RELAXED);
  }
  return libc_lock(mutex);
}
#endif
