// The memory that a process may still map, asked before it takes much of it at once.

internal import Glibc

/// The address space of the process, which `ulimit -v` limits (setrlimit(2), `RLIMIT_AS`).
package enum AddressSpace {
  /// What a stream allocates beside stacks and circular buffers, in bytes.
  private static let objects = 8 << 20

  /// Whether so much can be mapped that objects can still be allocated afterwards.
  ///
  /// Swift's runtime ends the process when it cannot allocate an object, and may have no memory left to say so. So
  /// whatever takes megabytes asks first, and throws an error that can be reported. Any thread.
  ///
  /// - Parameter size: in bytes.
  package static func hasRoom(for size: Int) -> Bool {
    let (all, isTooMuch) = size.addingReportingOverflow(objects)
    guard !isTooMuch,
      let probe = mmap(nil, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), probe != MAP_FAILED
    else { return false }
    munmap(probe, all)
    return true
  }
}
