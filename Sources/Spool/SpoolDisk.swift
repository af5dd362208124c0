// The system calls below a spool, so that a test can put another disk there.

package import EventLoops

/// The size of a file, the room that it takes, and whether it can be found.
package struct SpoolFileStatus: Equatable, Sendable {
  package var byteCount: UInt64
  /// Blocks that are allocated, times 512.
  package var diskByteCount: UInt64
  /// Whether a folder has the file: nobody has removed it.
  package var hasName: Bool

  package init(byteCount: UInt64, diskByteCount: UInt64, hasName: Bool = true) {
    self.byteCount = byteCount
    self.diskByteCount = diskByteCount
    self.hasName = hasName
  }
}

/// What a spool asks of a file system: one method for each system call, with its errors, `EINTR` and short counts.
///
/// ``SystemSpoolDisk`` is the real one. Tests use others, which lose what was not synced or fail the n-th call.
package protocol SpoolDisk: Sendable {
  /// open(2), with `O_CLOEXEC` added.
  func open(_ path: String, flags: Int32, mode: UInt32) throws(SystemError) -> Int32
  /// close(2)
  func close(_ descriptor: Int32)
  /// pwritev(2); the number of bytes written, which may be fewer.
  func write(_ pieces: [UnsafeRawBufferPointer], to descriptor: Int32, at offset: UInt64) throws(SystemError) -> Int
  /// pread(2); 0 at the end of the file.
  func read(_ descriptor: Int32, into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64) throws(SystemError)
    -> Int
  /// lseek(2) with `SEEK_DATA`: where the next bytes lie that are no hole; nil if none follow.
  func nextData(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64?
  /// fdatasync(2)
  func synchronizeData(_ descriptor: Int32) throws(SystemError)
  /// fsync(2) of a folder, so that names in it are durable.
  func synchronizeFolder(_ path: String) throws(SystemError)
  /// ftruncate(2)
  func setSize(_ descriptor: Int32, to byteCount: UInt64) throws(SystemError)
  /// fallocate(2) with `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`
  func punchHole(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError)
  /// fallocate(2) with `FALLOC_FL_KEEP_SIZE`: takes room for bytes to come. What is there stays.
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
  /// What an unprivileged process may still write; statvfs(3).
  func freeByteCount(at path: String) throws(SystemError) -> UInt64
}

extension SpoolDisk where Self == SystemSpoolDisk {
  /// The file systems of this machine.
  package static var system: SystemSpoolDisk { SystemSpoolDisk() }
}
