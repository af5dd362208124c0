// What takes the C library's place in a program whose time is simulated: its clocks, its waits, and the times of files.
//
// Without SCALED_CLOCK in the environment every function does what it always does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "leaks.h"
#include "scaled_clock.h"

enum { BILLION = 1000000000 };

static struct scaled_clock_page *page;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  const char *path = getenv("SCALED_CLOCK");
  if (!path) return;
  page = scaled_clock_open(path);
  // A program in real time would make the simulation a lie.
  if (!page) abort();
}

static int64_t nanoseconds(const struct timespec *time) { return (int64_t)time->tv_sec * BILLION + time->tv_nsec; }

static struct timespec timespec_of(int64_t ns) {
  return (struct timespec){.tv_sec = ns / BILLION, .tv_nsec = ns % BILLION};
}

/// The real time that a simulated duration takes; not zero unless it is.
static struct timespec shortened(int64_t ns) {
  if (page && ns > 0) ns = (ns + page->factor - 1) / page->factor;
  return timespec_of(ns);
}

static int64_t real_monotonic_ns(void) {
  struct timespec now;
  (real_clock_gettime ? real_clock_gettime : clock_gettime)(CLOCK_MONOTONIC, &now);
  return nanoseconds(&now);
}

/// The real time until a simulated clock shows this; 1 ns if it does.
static struct timespec until(clockid_t clock, const struct timespec *when) {
  int64_t rest = nanoseconds(when) - scaled_clock_at(page, clock, real_monotonic_ns());
  return rest <= 0 ? timespec_of(1) : shortened(rest);
}

// MARK: Clocks

int clock_gettime(clockid_t clock, struct timespec *time) {
  switch (clock) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: case CLOCK_BOOTTIME:
    case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_COARSE: case CLOCK_MONOTONIC_RAW: break;
    default: return (int)syscall(SYS_clock_gettime, clock, time);
  }
  // Before the constructor has run.
  if (!page) return real_clock_gettime ? real_clock_gettime(clock, time) : (int)syscall(SYS_clock_gettime, clock, time);
  *time = timespec_of(scaled_clock_at(page, clock, real_monotonic_ns()));
  return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}

// MARK: Waits

int epoll_pwait2(
    int epoll, struct epoll_event *events, int count, const struct timespec *timeout, const sigset_t *mask) {
  if (page) leak_if_due(scaled_clock_at(page, CLOCK_MONOTONIC, real_monotonic_ns()));
  struct timespec limit = timeout ? shortened(nanoseconds(timeout)) : (struct timespec){0};
  return (int)syscall(SYS_epoll_pwait2, epoll, events, count, timeout ? &limit : NULL, mask, _NSIG / 8);
}

int epoll_pwait(int epoll, struct epoll_event *events, int count, int timeout, const sigset_t *mask) {
  struct timespec limit = timespec_of((int64_t)timeout * 1000000);
  return epoll_pwait2(epoll, events, count, timeout < 0 ? NULL : &limit, mask);
}

int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout) {
  return epoll_pwait(epoll, events, count, timeout, NULL);
}

int ppoll(struct pollfd *descriptors, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
  struct timespec limit = timeout ? shortened(nanoseconds(timeout)) : (struct timespec){0};
  return (int)syscall(SYS_ppoll, descriptors, count, timeout ? &limit : NULL, mask, _NSIG / 8);
}

int poll(struct pollfd *descriptors, nfds_t count, int timeout) {
  struct timespec limit = timespec_of((int64_t)timeout * 1000000);
  return ppoll(descriptors, count, timeout < 0 ? NULL : &limit, NULL);
}

int timerfd_settime(int timer, int flags, const struct itimerspec *new, struct itimerspec *old) {
  struct itimerspec when = *new;
  if (page && nanoseconds(&when.it_value) > 0) {
    // The kernel's clocks are not ours: an absolute time becomes the time until then.
    when.it_value = flags & TFD_TIMER_ABSTIME ? until(CLOCK_MONOTONIC, &when.it_value) : shortened(nanoseconds(&when.it_value));
    when.it_interval = shortened(nanoseconds(&when.it_interval));
    flags &= ~TFD_TIMER_ABSTIME;
  }
  return (int)syscall(SYS_timerfd_settime, timer, flags, &when, old);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *request, struct timespec *rest) {
  struct timespec duration = *request;
  if (page && flags & TIMER_ABSTIME) {
    // Does not wait for a simulated machine that sleeps in the meantime: a caller that waits for a time reads the clock
    // again.
    if (nanoseconds(request) <= scaled_clock_at(page, clock, real_monotonic_ns())) return 0;
    duration = until(clock, request);
    flags &= ~TIMER_ABSTIME;
  } else if (page) {
    duration = shortened(nanoseconds(request));
  }
  return syscall(SYS_clock_nanosleep, page ? CLOCK_MONOTONIC : clock, flags, &duration, rest) < 0 ? errno : 0;
}

int nanosleep(const struct timespec *request, struct timespec *rest) {
  int code = clock_nanosleep(CLOCK_MONOTONIC, 0, request, rest);
  if (code) errno = code;
  return code ? -1 : 0;
}

int usleep(useconds_t microseconds) {
  struct timespec request = timespec_of((int64_t)microseconds * 1000);
  return nanosleep(&request, NULL);
}

// MARK: Files

/// The kernel stamps files in real time. The same stamp is always shown as the same time.
static void restamp(struct timespec *stamp) {
  int64_t real = nanoseconds(stamp) - page->realtime_ns + page->real_origin_ns;
  if (real >= page->real_origin_ns) *stamp = timespec_of(scaled_clock_at(page, CLOCK_REALTIME, real));
}

int fstatat(int directory, const char *restrict path, struct stat *restrict status, int flags) {
  int code = (int)syscall(SYS_newfstatat, directory, path, status, flags);
  if (code == 0 && page) {
    restamp(&status->st_mtim);
    restamp(&status->st_ctim);
  }
  return code;
}

int fstat(int descriptor, struct stat *status) { return fstatat(descriptor, "", status, AT_EMPTY_PATH); }
int stat(const char *restrict path, struct stat *restrict status) { return fstatat(AT_FDCWD, path, status, 0); }
int lstat(const char *restrict path, struct stat *restrict status) {
  return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
