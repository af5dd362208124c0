// A file that another program truncates while it is in use, and the size of a file.

internal import Glibc

extension SpoolFile {
  /// Puts back what a file begins with, and its size, if another program has truncated it.
  ///
  /// The bytes that were cut off are missing from then on: ``read(at:into:)`` names them. The next commit writes the
  /// checkpoint.
  ///
  /// - Returns: whether another program has truncated it.
  /// - Throws: ``SpoolError``. This can be called again.
  package func repairTruncation() throws(SpoolError) -> Bool {
    let size = Self.size(blockCount: header.blockCount)
    guard !isReadOnly, try descriptor.status().byteCount < size else { return false }
    let beginning = header.encoded()
    for offset in [SpoolFormat.headerOffset, SpoolFormat.headerCopyOffset] {
      try descriptor.write(beginning, at: offset)
    }
    // Last: until then, this is done again.
    try descriptor.setSize(to: size)
    allocatedBlock = 0
    memoryRecord = nil
    return true
  }

  /// The size of a file with that many blocks, in bytes.
  static func size(blockCount: UInt64) -> UInt64 { SpoolFormat.dataStart + blockCount * UInt64(SpoolFormat.blockSize) }

  /// How many bytes of a stream fit into the largest file that this process may write (setrlimit(2), `RLIMIT_FSIZE`).
  /// `UInt64.max` without a limit.
  package static var capacityOfLargestFile: UInt64 {
    var limit = rlimit()
    let resource = __rlimit_resource_t(RLIMIT_FSIZE.rawValue)
    guard getrlimit(resource, &limit) == 0, limit.rlim_cur != .max else { return .max }
    return capacity(ofFileWith: UInt64(limit.rlim_cur))
  }

  /// How many bytes of a stream fit into a file of this size.
  static func capacity(ofFileWith byteCount: UInt64) -> UInt64 {
    (byteCount - min(byteCount, SpoolFormat.dataStart)) / UInt64(SpoolFormat.blockSize) * SpoolFormat.payload
  }
}
