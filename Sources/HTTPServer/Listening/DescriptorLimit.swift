// What to say when this process may not open one descriptor more: how many it takes, and how to allow them.

internal import Glibc

package enum DescriptorLimit {
  /// - Parameter waiting: how many streams could not be served for want of a descriptor, as far as that is known.
  /// - Returns: words that follow the system's own ("Too many open files").
  package static func remedy(waiting: UInt) -> String {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return "" }
    // One for the connection and one for its file, and room for as many again as there are.
    let needed = limit.rlim_cur + max(2 * waiting, limit.rlim_cur)
    let streams = waiting == 1 ? "a connection waits" : "\(waiting) connections wait"
    return ": all \(limit.rlim_cur) descriptors are in use and \(streams), with a file each. "
      + "Start the server after `ulimit -n \(needed)`, or with LimitNOFILE=\(needed)"
  }
}
