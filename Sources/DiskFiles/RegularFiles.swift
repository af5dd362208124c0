// Opens the regular files of a directory in which an operator may put anything.
//
// Opening a FIFO waits for its other end, and reading a device may have no end. Neither may stop a server, which opens
// its files on the threads of all streams.

package import EventLoops
package import Glibc

/// What opens a regular file, and nothing else.
package enum RegularFile {
  /// Added to the flags of each open(2). O_NONBLOCK has no effect on a regular file.
  package static let flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC

  /// The size in bytes that a file which is read as a whole may have. A gap of a stream takes about 60.
  package static let maximumSize: UInt64 = 64 << 20

  /// The maximum size of a log. The log of a stream has two lines for each of up to a million recordings.
  package static let maximumLogSize: UInt64 = 1 << 30

  /// Opens a file, relative to a directory unless the name begins with a slash.
  ///
  /// - Parameters:
  ///   - flags: without ``flags``.
  ///   - mode: the permissions of a file that this creates.
  /// - Throws: ``SystemError`` with the name of the file: ``SystemError/isSpecialFile`` if it is not a regular file.
  package static func open(
    _ name: String, in directory: Int32 = AT_FDCWD, _ flags: Int32, mode: mode_t = 0o600
  ) throws(SystemError) -> Int32 {
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try retryingInterrupts("open \(name)") { openat(directory, name, flags | Self.flags, mode) }
    } catch {
      throw refusal(error, name)
    }
    _ = try status(of: descriptor, name)
    return descriptor
  }

  /// The status of a file that has just been opened.
  ///
  /// - Throws: ``SystemError`` if it is not a regular file, or if its status is unknown. The descriptor is then closed.
  package static func status(of descriptor: Int32, _ name: String) throws(SystemError) -> stat {
    var status = stat()
    do throws(SystemError) {
      try retryingInterrupts("fstat \(name)") { fstat(descriptor, &status) }
      try check(status, name)
      return status
    } catch {
      close(descriptor)
      throw error
    }
  }

  /// Checks that a name in a directory belongs to a regular file.
  ///
  /// - Throws: ``SystemError``: ``SystemError/isSpecialFile`` if it belongs to something else.
  package static func check(_ name: String, in directory: Int32) throws(SystemError) {
    var status = stat()
    try retryingInterrupts("look at \(name)") { fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) }
    try check(status, name)
  }

  /// Throws what opening the file would throw, unless it is a regular one.
  private static func check(_ status: stat, _ name: String) throws(SystemError) {
    switch status.st_mode & S_IFMT {
    case S_IFREG: return
    case S_IFDIR: throw SystemError(operation: "open \(name)", code: EISDIR)
    case S_IFLNK: throw SystemError(operation: "open \(name)", code: ELOOP)
    default: throw special(name)
    }
  }

  /// The error of a failed open(2). ENXIO means a socket, a FIFO without a reader, or a device that does not exist.
  static func refusal(_ error: SystemError, _ name: String) -> SystemError {
    error.code == ENXIO ? special(name) : error
  }

  private static func special(_ name: String) -> SystemError {
    SystemError(operation: "open \(name)\(specialFile)", code: EINVAL)
  }

  /// Distinguishes this `EINVAL` from those of the kernel, which have other reasons.
  fileprivate static let specialFile = " (not a regular file)"

  /// The error of a regular file that something else has put in the place of one of a server's files.
  package static func foreign(_ name: String) -> SystemError {
    SystemError(operation: "open \(name)\(foreignFile)", code: EEXIST)
  }

  /// Distinguishes this `EEXIST` from those of the kernel.
  fileprivate static let foreignFile = " (a file that sluice has not written)"

  /// All bytes of an open file, from its position on.
  ///
  /// - Throws: ``SystemError``, `EOVERFLOW` if there are more than `limit` bytes.
  package static func contents(
    of descriptor: Int32, _ name: String, limit: UInt64 = maximumSize
  ) throws(SystemError) -> [UInt8] {
    var status = stat()
    try retryingInterrupts("fstat \(name)") { fstat(descriptor, &status) }
    // A sparse file of any size would otherwise be read up to the limit.
    guard UInt64(clamping: status.st_size) <= limit else { throw tooLarge(name, limit) }
    var bytes: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 16 * 1024)
    while case let count = try retryingInterrupts("read \(name)", { read(descriptor, &buffer, buffer.count) }),
      count > 0
    {
      bytes += buffer[..<count]
      // It has grown since.
      guard UInt64(bytes.count) <= limit else { throw tooLarge(name, limit) }
    }
    return bytes
  }

  /// All bytes of a regular file.
  package static func contents(of path: String, limit: UInt64 = maximumSize) throws(SystemError) -> [UInt8] {
    let descriptor = try open(path, O_RDONLY)
    defer { close(descriptor) }
    return try contents(of: descriptor, path, limit: limit)
  }

  private static func tooLarge(_ name: String, _ limit: UInt64) -> SystemError {
    SystemError(operation: "read \(name) (more than \(limit) bytes)", code: EOVERFLOW)
  }
}

extension OpenFiles {
  /// Opens a regular file like ``RegularFile/open(_:in:_:mode:)``; closes idle ones if there is no descriptor for it.
  package func openRegular(
    _ name: String, in directory: Int32, _ flags: Int32, mode: mode_t = 0o600
  ) throws(SystemError) -> Int32 {
    try openWithStatus(name, in: directory, flags, mode: mode).descriptor
  }

  /// Calls `body`, which opens a file with ``RegularFile/flags``, and refuses what is not a regular file.
  package func openRegular(_ name: String, _ body: () -> Int32) throws(SystemError) -> Int32 {
    try openWithStatus(name, body).descriptor
  }

  /// Opens a regular file, and returns its status as well.
  ///
  /// A file that this creates is removed if its status is unknown: a new one (`O_EXCL`) or a temporary one (`O_TRUNC`).
  package func openWithStatus(
    _ name: String, in directory: Int32, _ flags: Int32, mode: mode_t = 0o600
  ) throws(SystemError) -> (descriptor: Int32, status: stat) {
    var isOpen = false
    do throws(SystemError) {
      return try openWithStatus(name) {
        let descriptor = openat(directory, name, flags | RegularFile.flags, mode)
        isOpen = descriptor >= 0
        return descriptor
      }
    } catch {
      let isOurs = isOpen && flags & O_CREAT != 0 && flags & (O_EXCL | O_TRUNC) != 0
      if isOurs, !error.isSpecialFile { unlinkat(directory, name, 0) }
      throw error
    }
  }

  /// Calls `body` like ``openRegular(_:_:)``, and returns the status of the file as well.
  package func openWithStatus(
    _ name: String, _ body: () -> Int32
  ) throws(SystemError) -> (descriptor: Int32, status: stat) {
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try open("open \(name)", body)
    } catch {
      throw RegularFile.refusal(error, name)
    }
    return (descriptor, try RegularFile.status(of: descriptor, name))
  }

  /// All bytes of a regular file.
  ///
  /// - Throws: ``SystemError`` like ``RegularFile/open(_:in:_:mode:)`` and ``RegularFile/contents(of:_:limit:)``.
  package func contents(
    of name: String, in directory: Int32, limit: UInt64 = RegularFile.maximumSize
  ) throws(SystemError) -> [UInt8] {
    let descriptor = try openRegular(name, in: directory, O_RDONLY)
    defer { close(descriptor) }
    return try RegularFile.contents(of: descriptor, name, limit: limit)
  }
}

extension SystemError {
  /// Whether a directory, a symbolic link or a special file is in the place of a regular file.
  package var isSpecialFile: Bool {
    code == EISDIR || code == ELOOP || code == EINVAL && operation.hasSuffix(RegularFile.specialFile)
  }

  /// Whether a regular file that no server has written is in the place of one of a server's files.
  package var isForeignFile: Bool { code == EEXIST && operation.hasSuffix(RegularFile.foreignFile) }

  /// ``EventLoops/SystemError/reason``. It also names the file if that must be moved away.
  package var cause: String { isSpecialFile || code == EEXIST ? description : reason }
}
