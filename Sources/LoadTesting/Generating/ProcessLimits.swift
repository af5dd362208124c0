// The kernel's limits for the process. They are checked before the first connection, not after the thousandth.

internal import CLinux
internal import Glibc

enum ProcessLimits {
  /// Raises the soft limit of descriptors as far as necessary.
  ///
  /// - Parameter needed: in addition to those already open, because a parent may have left some open.
  /// - Throws: ``LoadError/tooFewDescriptors(needed:limit:)`` if the hard limit is lower.
  static func reserve(descriptors needed: Int) throws(LoadError) {
    let needed = needed + openDescriptorCount
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0, limit.rlim_cur < needed else { return }
    guard limit.rlim_max >= needed else {
      throw .tooFewDescriptors(needed: needed, limit: Int(clamping: limit.rlim_max))
    }
    limit.rlim_cur = limit.rlim_max
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  }

  private static var openDescriptorCount: Int {
    // Without /proc, assume the standard streams.
    guard let folder = opendir("/proc/self/fd") else { return 3 }
    defer { closedir(folder) }
    var count = 0
    while let entry = readdir(folder) { if entry.pointee.d_name.0 != CChar(UInt8(ascii: ".")) { count += 1 } }
    // One of them belongs to the folder itself.
    return count - 1
  }

  /// The number of local ports available per address: ip(7), `ip_local_port_range`.
  static var portCount: Int { portCount(in: "/proc/sys/net/ipv4/ip_local_port_range") }

  /// The number of ports between the two numbers in a file, or the kernel's default.
  static func portCount(in path: String) -> Int {
    guard let file = fopen(path, "r") else { return 28_232 }
    defer { fclose(file) }
    var line = [CChar](repeating: 0, count: 64)
    guard fgets(&line, 64, file) != nil else { return 28_232 }
    let numbers = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
      .split { $0 == "\t" || $0 == " " || $0 == "\n" }.compactMap { Int($0) }
    return numbers.count == 2 && numbers[1] >= numbers[0] ? numbers[1] - numbers[0] + 1 : 28_232
  }

  static var hostName: String {
    var name = [CChar](repeating: 0, count: 256)
    gethostname(&name, 255)
    return String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  /// The processors that this process may use.
  static var processorCount: Int { max(1, sysconf(Int32(_SC_NPROCESSORS_ONLN))) }

  static func nanoseconds(_ time: timeval) -> Int64 {
    Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_usec) * 1000
  }

  /// The processor time so far, in nanoseconds, and the maximum resident memory, in bytes: getrusage(2).
  static var usage: (user: Int64, system: Int64, maximumResident: UInt64) {
    var usage = rusage()
    getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
    return (nanoseconds(usage.ru_utime), nanoseconds(usage.ru_stime), UInt64(max(0, usage.ru_maxrss)) * 1024)
  }
}
