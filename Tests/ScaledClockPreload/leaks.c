// Leaks on purpose, so that the judge of a soak run has something to find.
//
// PLANTED_LEAKS in the environment names what the program leaves behind every 100 simulated seconds: "memory",
// "descriptor", "timer", "thread", separated by commas.
#define _GNU_SOURCE
#include "leaks.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { LEAKED_BYTES = 512 * 1024 };
static const int64_t interval_ns = 100 * INT64_C(1000000000);

static void *wait_for_ever(void *unused) {
  while (1) pause();
  return unused;
}

/// A thread that takes no signal from the others.
static void leak_thread(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 * 1024);
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  pthread_create(&thread, &small, wait_for_ever, NULL);
  pthread_attr_destroy(&small);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void leak_if_due(int64_t now_ns) {
  static int64_t last_ns;
  const char *leaks = getenv("PLANTED_LEAKS");
  int64_t last = __atomic_load_n(&last_ns, __ATOMIC_RELAXED);
  if (!leaks || now_ns - last < interval_ns) return;
  if (!__atomic_compare_exchange_n(&last_ns, &last, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  if (strstr(leaks, "memory")) {
    char *volatile lost = malloc(LEAKED_BYTES);
    if (lost) memset(lost, 1, LEAKED_BYTES);
  }
  if (strstr(leaks, "descriptor")) eventfd(0, EFD_CLOEXEC);
  if (strstr(leaks, "timer")) timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (strstr(leaks, "thread")) leak_thread();
}
