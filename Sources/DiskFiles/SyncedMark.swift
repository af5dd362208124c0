// Up to where a growing file is certainly on the disk, recorded in the file itself.

internal import CLinux
package import EventLoops
internal import Glibc

/// The size up to which a file is synced, in an extended attribute of the file (xattr(7)).
///
/// After a power failure, a file can be longer than the bytes that were written of it. If a block has space for new
/// bytes, ext4 (data=ordered) puts the new length into its journal at once, and a sync of any other file commits it.
/// The bytes after the synced ones are then zeros.
///
/// The journal also has the attribute. It is set when the file's bytes were written to the device, and each commit
/// first flushes the device's cache. So if a disk has the attribute, it has the bytes. A new file gets one that counts
/// no bytes before its first byte.
package struct SyncedMark: Equatable, Sendable {
  /// A boot identifier and a number of 64 bits need less than the maximum length.
  fileprivate static let attribute = FileAttribute("user.sluice.synced", maximumLength: 128)
  /// How often files were shortened. Held while a file is shortened, and while its mark is replaced or removed.
  fileprivate static let truncations = Lock<UInt64>(0)

  /// The boot of the machine in which the file was synced, without spaces.
  package var boot: String
  /// In bytes.
  package var size: UInt64

  package init(boot: String, size: UInt64) { (self.boot, self.size) = (boot, size) }

  private init?(_ text: String) {
    let words = text.split(separator: " ", omittingEmptySubsequences: false)
    guard words.count == 2, let size = UInt64(words[1]) else { return nil }
    self.init(boot: String(words[0]), size: size)
  }

  /// The mark of an open file; nil if there is none, or the file system has no such attributes.
  package static func of(_ descriptor: Int32) throws(SystemError) -> SyncedMark? {
    try attribute.value(of: descriptor).flatMap { SyncedMark(String(decoding: $0, as: UTF8.self)) }
  }

  /// Writes the bytes of an open file to the device, and raises its mark to their end. A sync then makes both
  /// permanent.
  static func renew(_ descriptor: Int32, boot: String) throws(SystemError) {
    var isMarked = false
    while !isMarked {
      let before = truncationCount
      var status = stat()
      try retryingInterrupts("fstat") { fstat(descriptor, &status) }
      let size = UInt64(status.st_size)
      do throws(SystemError) {
        try retryingInterrupts("sync_file_range") { sync_file_range(descriptor, 0, 0, SLUICE_SYNC_FILE_RANGE_ALL) }
      } catch {
        // Some file systems do not have it.
        guard [ENOSYS, EINVAL, ESPIPE, ENOTSUP].contains(error.code) else { throw error }
        return try remove(descriptor)
      }
      isMarked = try SyncedMark(boot: boot, size: size).set(descriptor, unlessTruncatedSince: before)
    }
  }

  /// How often files were shortened until now.
  static var truncationCount: UInt64 { truncations.withLock { $0 } }

  /// Replaces the mark of an open file, whose bytes up to ``size`` were written to the device since that count was
  /// read. A file without a mark gets none, because it may have bytes that are not synced as it grows.
  ///
  /// - Returns: false if a file was shortened meanwhile: bytes that followed were perhaps not written.
  func set(_ descriptor: Int32, unlessTruncatedSince before: UInt64) throws(SystemError) -> Bool {
    try Self.truncations.withLock { (count) throws(SystemError) in
      guard count == before else { return false }
      if try Self.of(descriptor) != nil { try set(descriptor) }
      return true
    }
  }

  /// Shortens an open file, and lowers its mark to the new length.
  ///
  /// The mark comes first. If the power fails in between, the bytes that were to be removed do not count. In the other
  /// order, an error could leave a mark that counts bytes which follow in their place and are not synced.
  fileprivate static func truncate(
    _ descriptor: Int32, to length: UInt64, _ operation: String
  ) throws(SystemError) {
    try truncations.withLock { (count) throws(SystemError) in
      count &+= 1
      if var mark = try of(descriptor), mark.size > length {
        mark.size = length
        try mark.set(descriptor)
      }
      try retryingInterrupts(operation) { ftruncate(descriptor, off_t(length)) }
    }
  }

  /// Gives the mark to an open file, instead of an earlier one. The file's bytes up to ``size`` must have been written
  /// to the device. Without space for the attribute, or if the file system has none, the file has no mark.
  package func set(_ descriptor: Int32) throws(SystemError) {
    try Self.attribute.set(Array("\(boot) \(size)".utf8), of: descriptor)
  }

  /// Removes the mark of an open file, if there is one.
  package static func remove(_ descriptor: Int32) throws(SystemError) {
    // Whoever shortens the file at the moment would write the mark again.
    try truncations.withLock { (_) throws(SystemError) in try attribute.remove(from: descriptor) }
  }
}

extension OpenFile {
  /// Removes the bytes that a power failure may have damaged: those after the mark, if the file was synced in an
  /// earlier boot of the machine.
  ///
  /// - Parameters:
  ///   - length: the file's length in bytes.
  ///   - boot: the present boot.
  ///   - keepsMark: whether the file is also synced as it grows.
  /// - Returns: the length that remains.
  package func withoutUnsynced(
    _ length: UInt64, boot: String, keepsMark: Bool
  ) throws(SystemError) -> UInt64 {
    let descriptor = try acquire()
    defer { release() }
    guard let mark = try SyncedMark.of(descriptor), mark.boot != boot || !keepsMark else { return length }
    return try SyncedMark.truncations.withLock { (count) throws(SystemError) in
      // Another thread may have done this meanwhile, and added bytes.
      guard let mark = try SyncedMark.of(descriptor) else { return length }
      let rest = mark.boot == boot ? length : min(length, mark.size)
      if rest < length {
        count &+= 1
        try retryingInterrupts("ftruncate") { ftruncate(descriptor, off_t(rest)) }
      }
      if !keepsMark {
        try SyncedMark.attribute.remove(from: descriptor)
      } else if mark.boot != boot {
        try SyncedMark(boot: boot, size: rest).set(descriptor)
      }
      return rest
    }
  }

  /// Shortens the file. Bytes that follow in place of the removed ones do not count as synced.
  ///
  /// - Parameter operation: its name in an error.
  package func truncate(to length: UInt64, _ operation: String) throws(SystemError) {
    let descriptor = try acquire()
    defer { release() }
    try SyncedMark.truncate(descriptor, to: length, operation)
  }

  /// Whether something else has removed synced bytes from the file, which may have been acknowledged.
  package func lacksSynced() throws(SystemError) -> Bool {
    let descriptor = try acquire()
    defer { release() }
    // Whoever shortens the file lowers the mark first.
    return try SyncedMark.truncations.withLock { (_) throws(SystemError) in
      guard let mark = try SyncedMark.of(descriptor) else { return false }
      var status = stat()
      try retryingInterrupts("fstat") { fstat(descriptor, &status) }
      return UInt64(clamping: status.st_size) < mark.size
    }
  }

  /// Marks all bytes of the file, which was synced with that length. A file without a mark gets none.
  func markSynced(upTo length: UInt64, boot: String) throws(SystemError) {
    let descriptor = try acquire()
    defer { release() }
    try SyncedMark.truncations.withLock { (_) throws(SystemError) in
      guard try SyncedMark.of(descriptor) != nil else { return }
      var status = stat()
      try retryingInterrupts("fstat") { fstat(descriptor, &status) }
      // Something else may have shortened it.
      try SyncedMark(boot: boot, size: min(length, UInt64(clamping: status.st_size))).set(descriptor)
    }
  }

  /// Removes the mark for good, because bytes follow that are not synced as the file grows.
  package func removeSyncedMark() throws(SystemError) {
    let descriptor = try acquire()
    defer { release() }
    try SyncedMark.remove(descriptor)
  }
}
