// The message for a process that has no descriptor left: how many it needs, and how to allow them.

internal import Glibc

package enum DescriptorLimit {
  /// - Parameter waiting: how many streams could not be served for lack of a descriptor, if known.
  /// - Returns: words that follow the system's own ("Too many open files").
  package static func remedy(waiting: UInt) -> String {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return "" }
    // One for the connection and one for its file, with room for as many again as there are now.
    let needed = limit.rlim_cur + max(2 * waiting, limit.rlim_cur)
    let streams = waiting == 1 ? "a connection waits" : "\(waiting) connections wait"
    return ": all \(limit.rlim_cur) descriptors are in use and \(streams), with a file each. "
      + "Start the server after `ulimit -n \(needed)`, or with LimitNOFILE=\(needed)"
  }
}
