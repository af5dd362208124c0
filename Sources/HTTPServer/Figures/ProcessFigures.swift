// The figures that every Prometheus client exports about its process, under the names that dashboards use.

internal import EventLoops
internal import Glibc
internal import Metrics

/// Figures of this process, from proc(5). Any thread.
package enum ProcessFigures {
  /// `VmRSS`, in bytes; 0 where it cannot be read.
  package static var residentBytes: Int {
    (fields("/proc/self/statm", count: 2).last ?? 0) * Int(sysconf(Int32(_SC_PAGESIZE)))
  }

  /// The number of open descriptors.
  private static var openDescriptors: Int {
    var status = stat()
    // Since Linux 6.2, the directory's size is their number. Before that, it is 0 and they are counted.
    if stat("/proc/self/fd", &status) == 0, status.st_size > 0 { return Int(status.st_size) }
    guard let directory = opendir("/proc/self/fd") else { return 0 }
    defer { closedir(directory) }
    var count = 0
    while readdir(directory) != nil { count += 1 }
    // Without ".", ".." and the descriptor of this listing.
    return max(0, count - 3)
  }

  static func add(to page: inout MetricsText) {
    var usage = rusage()
    getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
    let seconds =
      Double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
      + Double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6
    page.counter("process_cpu_seconds_total", "User and system time of the process, in seconds.", seconds)
    page.gauge("process_resident_memory_bytes", "Resident memory of the process.", Double(residentBytes))
    page.gauge("process_open_fds", "Open file descriptors.", Double(openDescriptors))
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    page.gauge("process_max_fds", "Maximum number of open file descriptors (ulimit -n).", Double(limit.rlim_cur))
  }

  /// The first numbers in a one-line file.
  private static func fields(_ path: String, count: Int) -> [Int] {
    let descriptor = open(path, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { return [] }
    defer { close(descriptor) }
    var buffer = [UInt8](repeating: 0, count: 256)
    let length = read(descriptor, &buffer, buffer.count)
    let words = String(decoding: buffer.prefix(max(0, length)), as: UTF8.self).split(separator: " ")
    return words.prefix(count).map { Int($0) ?? 0 }
  }
}
