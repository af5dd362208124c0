// A limit of descriptors, for exit tests only, because it applies to the whole process.

internal import Glibc

/// Calls `body` while this process has exactly `count` free descriptors.
public func withFreeDescriptors<Value>(_ count: Int, _ body: () throws -> Value) throws -> Value {
  var usual = rlimit()
  getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual)
  defer { setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &usual) }
  // The kernel always assigns the lowest free number. The last of these is the first that is no longer permitted.
  let free = (0...count).map { _ in open("/dev/null", O_RDONLY | O_CLOEXEC) }
  for descriptor in free { close(descriptor) }
  var limit = rlimit(rlim_cur: rlim_t(free[count]), rlim_max: usual.rlim_max)
  setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  return try body()
}
