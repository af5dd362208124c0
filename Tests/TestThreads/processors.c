// See TestThreads.h. A definition in the program takes precedence over libc's, even for Dispatch, which asks once, at
// its start.
#define _GNU_SOURCE
#include "TestThreads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

// Under ThreadSanitizer, tests compute more than they wait, and more threads make them slower.
#if defined(__has_feature) && __has_feature(thread_sanitizer)
enum { threads_per_processor = 1 };
#else
enum { threads_per_processor = 4 };
#endif

// ThreadSanitizer may call these functions before it can follow one.
#define UNFOLLOWED __attribute__((disable_sanitizer_instrumentation))

// The width of the queue for Swift's tasks is the number of configured processors (libdispatch, shims/hw_config.h).
UNFOLLOWED long sysconf(int name) {
  typedef long (*sysconf_function)(int);
  static _Atomic(sysconf_function) known;
  sysconf_function actual = known;
  if (!actual) known = actual = (sysconf_function)dlsym(RTLD_NEXT, "sysconf");
  long value = actual(name);
  return name == _SC_NPROCESSORS_CONF && value > 0 ? threads_per_processor * value : value;
}

// Below it is a pool with a thread for each processor on which the program may run.
UNFOLLOWED int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *set) {
  typedef int (*affinity_function)(pthread_t, size_t, cpu_set_t *);
  static _Atomic(affinity_function) known;
  affinity_function actual = known;
  if (!actual) known = actual = (affinity_function)dlsym(RTLD_NEXT, "pthread_getaffinity_np");
  int error = actual(thread, size, set);
  if (error) return error;
  int wanted = threads_per_processor * CPU_COUNT_S(size, set);
  for (int cpu = 0; cpu < (int)(8 * size) && CPU_COUNT_S(size, set) < wanted; cpu++) CPU_SET_S(cpu, size, set);
  return 0;
}
