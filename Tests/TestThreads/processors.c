// See TestThreads.h. A definition in the program comes before libc's, also for Dispatch, which asks once, at its start.
#define _GNU_SOURCE
#include "TestThreads.h"

#include <dlfcn.h>
#include <unistd.h>

// ThreadSanitizer asks for it before it can follow a function.
__attribute__((disable_sanitizer_instrumentation)) long sysconf(int name) {
  typedef long (*sysconf_function)(int);
  static _Atomic(sysconf_function) known;
  sysconf_function actual = known;
  if (!actual) known = actual = (sysconf_function)dlsym(RTLD_NEXT, "sysconf");
  long value = actual(name);
  return name == _SC_NPROCESSORS_ONLN && value > 0 ? 4 * value : value;
}
