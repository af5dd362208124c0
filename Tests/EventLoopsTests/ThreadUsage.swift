// The cost of a thread, in sleeps and in processor time.

import Glibc

/// getrusage(2) of the calling thread.
struct ThreadUsage: Sendable {
  var voluntarySwitches = 0
  var cpuMicroseconds = 0

  static var now: ThreadUsage {
    var usage = rusage()
    // RUSAGE_THREAD, which glibc declares only for _GNU_SOURCE.
    getrusage(1, &usage)
    let seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec
    return ThreadUsage(
      voluntarySwitches: usage.ru_nvcsw,
      cpuMicroseconds: seconds * 1_000_000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec)
  }

  static func - (a: ThreadUsage, b: ThreadUsage) -> ThreadUsage {
    ThreadUsage(
      voluntarySwitches: a.voluntarySwitches - b.voluntarySwitches,
      cpuMicroseconds: a.cpuMicroseconds - b.cpuMicroseconds)
  }
}
