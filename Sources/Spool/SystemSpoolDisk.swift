// The real disk: each method is one system call, except that open(2) is followed by a check of the kind of file.

internal import CLinux
package import EventLoops
internal import Glibc

/// The file systems of this machine. Any thread may use it.
package struct SystemSpoolDisk: SpoolDisk {
  package init() {}

  package func open(_ path: String, flags: Int32, mode: UInt32) throws(SystemError) -> Int32 {
    // Opening a FIFO would wait for its other end. O_NONBLOCK has no effect on a regular file.
    let descriptor = try result("open", Glibc.open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, mode))
    guard flags & O_DIRECTORY == 0 else { return descriptor }
    do throws(SystemError) {
      var status = stat()
      try check("fstat", fstat(descriptor, &status))
      switch status.st_mode & S_IFMT {
      case S_IFREG: return descriptor
      case S_IFDIR: throw SystemError(operation: "open", code: EISDIR)
      default: throw SystemError(operation: "open", code: ENXIO)
      }
    } catch {
      _ = Glibc.close(descriptor)
      throw error
    }
  }

  package func close(_ descriptor: Int32) {
    // A child of another thread has a copy of the descriptor until its exec, and the lock would last as long.
    var lock = Self.wholeFile
    lock.l_type = Int16(F_UNLCK)
    _ = fcntl(descriptor, SLUICE_F_OFD_SETLK, &lock)
    _ = Glibc.close(descriptor)
  }

  package func write(
    _ pieces: [UnsafeRawBufferPointer], to descriptor: Int32, at offset: UInt64
  ) throws(SystemError) -> Int {
    let vectors = pieces.map { iovec(iov_base: UnsafeMutableRawPointer(mutating: $0.baseAddress), iov_len: $0.count) }
    return try result("pwritev", pwritev(descriptor, vectors, Int32(clamping: vectors.count), off_t(clamping: offset)))
  }

  package func read(
    _ descriptor: Int32, into buffer: UnsafeMutableRawBufferPointer, at offset: UInt64
  ) throws(SystemError) -> Int {
    try result("pread", pread(descriptor, buffer.baseAddress, buffer.count, off_t(clamping: offset)))
  }

  package func nextData(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    try seek(descriptor, offset, SLUICE_SEEK_DATA)
  }

  package func nextHole(_ descriptor: Int32, from offset: UInt64) throws(SystemError) -> UInt64? {
    try seek(descriptor, offset, SLUICE_SEEK_HOLE)
  }

  private func seek(_ descriptor: Int32, _ offset: UInt64, _ whence: Int32) throws(SystemError) -> UInt64? {
    let found = lseek(descriptor, off_t(clamping: offset), whence)
    if found >= 0 { return UInt64(found) }
    guard errno == ENXIO else { throw SystemError(operation: "lseek", code: errno) }
    return nil
  }

  package func synchronizeData(_ descriptor: Int32) throws(SystemError) {
    try check("fdatasync", fdatasync(descriptor))
  }

  package func synchronizeFolder(_ path: String) throws(SystemError) {
    let folder = try open(path, flags: O_RDONLY | O_DIRECTORY, mode: 0)
    defer { close(folder) }
    try check("fsync", fsync(folder))
  }

  package func setSize(_ descriptor: Int32, to byteCount: UInt64) throws(SystemError) {
    try check("ftruncate", ftruncate(descriptor, off_t(clamping: byteCount)))
  }

  package func punchHole(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) {
    try check(
      "fallocate",
      fallocate(
        descriptor, SLUICE_FALLOC_FL_KEEP_SIZE | SLUICE_FALLOC_FL_PUNCH_HOLE, off_t(clamping: offset),
        off_t(clamping: byteCount)))
  }

  package func allocate(_ descriptor: Int32, at offset: UInt64, byteCount: UInt64) throws(SystemError) {
    try check(
      "fallocate",
      fallocate(descriptor, SLUICE_FALLOC_FL_KEEP_SIZE, off_t(clamping: offset), off_t(clamping: byteCount)))
  }

  package func rename(_ old: String, to new: String) throws(SystemError) {
    try check("rename", Glibc.rename(old, new))
  }

  package func unlink(_ path: String) throws(SystemError) { try check("unlink", Glibc.unlink(path)) }

  package func makeFolder(_ path: String, mode: UInt32) throws(SystemError) {
    try check("mkdir", mkdir(path, mode))
  }

  package func lock(_ descriptor: Int32) throws(SystemError) -> Bool {
    var lock = Self.wholeFile
    do throws(SystemError) {
      try check("fcntl", fcntl(descriptor, SLUICE_F_OFD_SETLK, &lock))
      return true
    } catch {
      if error.code == EAGAIN || error.code == EACCES { return false }
      throw error
    }
  }

  package func isLocked(_ descriptor: Int32) throws(SystemError) -> Bool {
    var lock = Self.wholeFile
    try check("fcntl", fcntl(descriptor, SLUICE_F_OFD_GETLK, &lock))
    return lock.l_type != Int16(F_UNLCK)
  }

  /// A lock on the whole file, whatever its length.
  private static var wholeFile: flock {
    flock(l_type: Int16(F_WRLCK), l_whence: Int16(SEEK_SET), l_start: 0, l_len: 0, l_pid: 0)
  }

  package func status(_ descriptor: Int32) throws(SystemError) -> SpoolFileStatus {
    var status = stat()
    try check("fstat", fstat(descriptor, &status))
    return SpoolFileStatus(
      byteCount: UInt64(clamping: status.st_size),
      diskByteCount: UInt64(clamping: status.st_blocks).multipliedReportingOverflow(by: 512).partialValue,
      hasName: status.st_nlink > 0)
  }

  package func names(in folder: String) throws(SystemError) -> [String] {
    guard let stream = opendir(folder) else { throw .last("opendir") }
    defer { closedir(stream) }
    var names: [String] = []
    while true {
      errno = 0
      guard let entry = readdir(stream) else {
        // Checked after each call, because a partially read folder would hide stretches.
        guard errno == 0 else { throw .last("readdir") }
        return names
      }
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if name != ".", name != ".." { names.append(name) }
    }
  }

  private func check(_ operation: String, _ result: Int32) throws(SystemError) {
    if result == -1 { throw .last(operation) }
  }

  private func result<Number: SignedInteger>(_ operation: String, _ result: Number) throws(SystemError) -> Number {
    if result == -1 { throw .last(operation) }
    return result
  }
}
