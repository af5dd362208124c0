// The system calls below a spool, so that a test can replace the disk.

package import EventLoops

/// The size of a file, its disk usage, and whether it still has a name.
package struct SpoolFileStatus: Equatable, Sendable {
  package var byteCount: UInt64
  /// Blocks that are allocated, times 512.
  package var diskByteCount: UInt64
  /// Whether the file still has a name in a folder, and was not removed.
  package var hasName: Bool

  package init(byteCount: UInt64, diskByteCount: UInt64, hasName: Bool = true) {
    self.byteCount = byteCount
    self.diskByteCount = diskByteCount
    self.hasName = hasName
  }
}

/// A spool's interface to a file system: one method for each system call, with its errors, `EINTR` and short counts.
///
/// ``SystemSpoolDisk`` is the real one. Tests use others, which lose unsynced data or fail the n-th call.
package protocol SpoolDisk: Sendable {
  /// open(2), with `O_CLOEXEC` added. Opens only regular files, and folders if the flags have `O_DIRECTORY`. It never
  /// waits for anything but the disk.
  ///
  /// - Throws: ``EventLoops/SystemError``, with `EISDIR` for a folder and `ENXIO` for a special file. With
  ///   `O_NOFOLLOW`, it is `ELOOP` for a symbolic link.
  func open(_ path: String, flags: Int32, mode: UInt32) throws(SystemError) -> Int32
  /// close(2)
  func close(_ descriptor: Int32)
  /// pwritev(2). Returns the number of bytes written, which may be lower.
  func write(_ pieces: [UnsafeRawBufferPointer], to descriptor: Int32, at offset: UInt64) throws(SystemError) -> Int
  /// pread(2). Returns 0 at the end of the file.
  func read(_ descriptor: Int32, into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64) throws(SystemError)
    -> Int
  /// lseek(2) with `SEEK_DATA`. Returns where the next data begins; nil if there is none.
  func nextData(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64?
  /// lseek(2) with `SEEK_HOLE`. Returns where the next hole begins, at the latest at the end of the file; nil if the
  /// offset is beyond it.
  func nextHole(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64?
  /// fdatasync(2)
  func synchronizeData(_ descriptor: Int32) throws(SystemError)
  /// fsync(2) of a folder, so that names in it are durable.
  func synchronizeFolder(_ path: String) throws(SystemError)
  /// ftruncate(2)
  func setSize(_ descriptor: Int32, to byteCount: UInt64) throws(SystemError)
  /// fallocate(2) with `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`
  func punchHole(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError)
  /// fallocate(2) with `FALLOC_FL_KEEP_SIZE`. Allocates space for future bytes, and keeps existing ones.
  func allocate(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError)
  /// rename(2)
  func rename(_ old: String, to new: String) throws(SystemError)
  /// unlink(2)
  func unlink(_ path: String) throws(SystemError)
  /// mkdir(2)
  func makeFolder(_ path: String, mode: UInt32) throws(SystemError)
  /// fcntl(2) with `F_OFD_SETLK`: an exclusive lock on the whole file, without waiting. False if another holds one.
  func lock(_ descriptor: Int32) throws(SystemError) -> Bool
  /// fcntl(2) with `F_OFD_GETLK`: whether ``lock(_:)`` would fail.
  func isLocked(_ descriptor: Int32) throws(SystemError) -> Bool
  /// fstat(2)
  func status(_ descriptor: Int32) throws(SystemError) -> SpoolFileStatus
  /// The names in a folder, without `.` and `..`; readdir(3).
  func names(in folder: String) throws(SystemError) -> [String]
}

extension SpoolDisk where Self == SystemSpoolDisk {
  /// The file systems of this machine.
  package static var system: SystemSpoolDisk { SystemSpoolDisk() }
}
