// A clock that runs many times as fast as the real one, for a program that is started with libScaledClock.so preloaded
// and with a page of settings in the file that SCALED_CLOCK names.
//
// Every clock of the program runs from the same origin. CLOCK_MONOTONIC leaves out the time that the simulated machine
// slept, and CLOCK_REALTIME has the steps by which an operator set it, as on a real machine. Waits of the program in
// the kernel (epoll, poll, timerfd, sleeping) are shortened by the same factor. Work of the kernel itself, such as
// TCP's retransmissions, keeps real time.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { SCALED_CLOCK_MAGIC = 0x74696d65, SCALED_CLOCK_STEPS = 256 };

/// The wall clock was set: from real time `at_ns` on it is off by `total_ns`.
struct scaled_clock_step {
  int64_t at_ns, total_ns;
};

/// The page. The simulation writes it, and the program reads it. All accesses are atomic.
struct scaled_clock_page {
  uint32_t magic;
  uint32_t factor;           ///< simulated seconds in a real one
  int64_t real_origin_ns;    ///< the real CLOCK_MONOTONIC at which simulated time would have begun with that factor
  int64_t monotonic_ns;      ///< the simulated clocks at that moment
  int64_t boottime_ns;
  int64_t realtime_ns;
  int64_t slept_ns;          ///< simulated time that the machine has slept so far
  uint32_t step_count;
  struct scaled_clock_step steps[SCALED_CLOCK_STEPS];
};

/// Makes the file and maps it; simulated time begins now. NULL with `errno` set on failure.
struct scaled_clock_page *scaled_clock_create(const char *path, uint32_t factor);
/// Maps an existing file. NULL with `errno` set on failure.
struct scaled_clock_page *scaled_clock_open(const char *path);
void scaled_clock_close(struct scaled_clock_page *page);

/// Simulated time since its beginning, sleep included.
int64_t scaled_clock_elapsed_ns(const struct scaled_clock_page *page);
/// The machine has slept for so long: its programs did not run, and CLOCK_MONOTONIC stood still.
void scaled_clock_sleep(struct scaled_clock_page *page, int64_t duration_ns);
/// From now on, simulated time passes like real time. Only while no program with this clock runs.
void scaled_clock_slow(struct scaled_clock_page *page);
/// Sets the wall clock forwards, or backwards.
void scaled_clock_step(struct scaled_clock_page *page, int64_t by_ns);
/// A simulated clock that shows `real_ns` of the real CLOCK_MONOTONIC as `clock` shows it.
int64_t scaled_clock_at(const struct scaled_clock_page *page, clockid_t clock, int64_t real_ns);
