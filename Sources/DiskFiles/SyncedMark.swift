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
/// first flushes the device's cache. So if a disk has the attribute, it has the bytes.
package struct SyncedMark: Equatable, Sendable {
  private static let attribute = "user.sluice.synced"
  /// The file has no attribute, or can have none.
  private static let absence = [ENODATA, ENOTSUP, ENOSYS, EACCES, EPERM]
  /// A boot identifier and a number of 64 bits need less.
  private static let longest = 128

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
    var bytes = [UInt8](repeating: 0, count: longest)
    do throws(SystemError) {
      let count = try retryingInterrupts("fgetxattr") { fgetxattr(descriptor, attribute, &bytes, longest) }
      return SyncedMark(String(decoding: bytes.prefix(count), as: UTF8.self))
    } catch {
      if error.code == ERANGE || absence.contains(error.code) { return nil }
      throw error
    }
  }

  /// Writes the bytes of an open file to the device, and marks up to where. A sync then makes both permanent.
  static func renew(_ descriptor: Int32, boot: String) throws(SystemError) {
    var status = stat()
    try retryingInterrupts("fstat") { fstat(descriptor, &status) }
    do throws(SystemError) {
      try retryingInterrupts("sync_file_range") { sync_file_range(descriptor, 0, 0, SLUICE_SYNC_FILE_RANGE_ALL) }
    } catch {
      // Some file systems do not have it.
      guard [ENOSYS, EINVAL, ESPIPE, ENOTSUP].contains(error.code) else { throw error }
      return try remove(descriptor)
    }
    try SyncedMark(boot: boot, size: UInt64(status.st_size)).set(descriptor)
  }

  /// Gives the mark to an open file, instead of an earlier one. The file's bytes up to ``size`` must have been written
  /// to the device. Without space for the attribute, or if the file system has none, the file has no mark.
  package func set(_ descriptor: Int32) throws(SystemError) {
    let text = Array("\(boot) \(size)".utf8)
    do throws(SystemError) {
      try retryingInterrupts("fsetxattr") { fsetxattr(descriptor, Self.attribute, text, text.count, 0) }
    } catch {
      // An earlier mark would be wrong after the next sync.
      try Self.remove(descriptor)
    }
  }

  /// Removes the mark of an open file, if there is one.
  package static func remove(_ descriptor: Int32) throws(SystemError) {
    do throws(SystemError) {
      try retryingInterrupts("fremovexattr") { fremovexattr(descriptor, attribute) }
    } catch {
      if !absence.contains(error.code) { throw error }
    }
  }
}

extension OpenFile {
  /// Removes the bytes that a power failure may have damaged: those after the mark, if the file was synced in an
  /// earlier boot of the machine.
  ///
  /// - Parameters:
  ///   - length: the file's length in bytes.
  ///   - boot: the present boot.
  ///   - keepsMark: whether all further bytes are synced before they are acknowledged.
  /// - Returns: the length that remains.
  package func withoutUnsynced(
    _ length: UInt64, boot: String, keepsMark: Bool
  ) throws(SystemError) -> UInt64 {
    let descriptor = try acquire()
    defer { release() }
    guard let mark = try SyncedMark.of(descriptor) else { return length }
    let rest = mark.boot == boot ? length : min(length, mark.size)
    if rest < length { try retryingInterrupts("ftruncate") { ftruncate(descriptor, off_t(rest)) } }
    if !keepsMark {
      try SyncedMark.remove(descriptor)
    } else if mark.boot != boot {
      try SyncedMark(boot: boot, size: rest).set(descriptor)
    }
    return rest
  }

  /// Removes the mark, because bytes follow that are not synced before they are acknowledged.
  package func removeSyncedMark() throws(SystemError) {
    let descriptor = try acquire()
    defer { release() }
    try SyncedMark.remove(descriptor)
  }
}
