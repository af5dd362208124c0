// The memory that a process may still map. Code checks it before it takes much memory at once.

internal import Glibc

/// The address space of the process, which `ulimit -v` limits (setrlimit(2), `RLIMIT_AS`).
package enum AddressSpace {
  /// The memory of a stream besides stacks and circular buffers, in bytes.
  private static let objects = 8 << 20

  /// Whether this much memory can be mapped with enough left for objects.
  ///
  /// Swift's runtime ends the process when it cannot allocate an object, perhaps without a message. So code that takes
  /// megabytes asks first, and throws an error that can be reported. Any thread.
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
