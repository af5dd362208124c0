// The lock of a stream while the disk has no space for it: a file in a file system in memory.

internal import EventLoops
internal import Glibc

/// Locks a stream for this process until the last reference is released. One thread at a time.
///
/// A process that has locked the stream's folder looks for this lock afterwards. So of two processes that use the same
/// stream, at least one finds the other. A reboot removes the file.
final class LockInMemory {
  private let path: String
  private let file: SpoolDescriptor

  private init(_ path: String, _ file: SpoolDescriptor) { (self.path, self.file) = (path, file) }

  // In this order: nobody finds the file without its lock.
  deinit { unlink(path) }

  /// Locks a stream.
  ///
  /// - Parameters:
  ///   - folder: the path of its folder, which need not exist.
  ///   - creates: whether to create a file that does not exist.
  /// - Returns: nil if there is no file, or if it cannot be used.
  /// - Throws: ``SpoolError`` with ``SpoolError/Cause/inUse(_:)`` while another process, or another object of this one,
  ///   has locked the stream in this way. If `creates`, and something else has the file's name, the error is
  ///   ``SpoolError/Cause/notARegularFile`` with the file's path.
  static func take(for folder: String, creates: Bool) throws(SpoolError) -> LockInMemory? {
    let path = Self.path(for: folder)
    while let file = try open(path, O_RDWR | (creates ? O_CREAT : 0)) {
      guard try file.lock() else { throw SpoolError(.inUse(SpoolFolder.process(in: file)), path: folder) }
      // Its last owner may have removed it before this lock.
      guard try file.status().hasName else { continue }
      try? file.setSize(to: 0)
      try? file.write(Array("\(getpid())\n".utf8), at: 0)
      return LockInMemory(path, file)
    }
    return nil
  }

  /// The process that has locked a stream in this way; nil if there is none. The query does not affect it.
  static func user(of folder: String) -> SpoolFolder.User? {
    guard let file = try? open(path(for: folder), O_RDONLY), (try? file.isLocked()) == true else { return nil }
    return .process(SpoolFolder.process(in: file))
  }

  /// Nil also for the file of another user, because any user may write into this folder.
  ///
  /// - Throws: ``SpoolError`` if the flags have `O_CREAT`, and something else than a regular file prevents this.
  private static func open(_ path: String, _ flags: Int32) throws(SpoolError) -> SpoolDescriptor? {
    let file: SpoolDescriptor
    do throws(SpoolError) {
      file = try SpoolDescriptor(path, flags: flags | O_NOFOLLOW, disk: .system)
    } catch {
      guard flags & O_CREAT != 0, error.cause == .notARegularFile else { return nil }
      throw error
    }
    var status = stat()
    // A file that was just removed has no owner here, but its user finds that it has no name.
    let isOwn = lstat(path, &status) != 0 || status.st_uid == geteuid()
    return isOwn ? file : nil
  }

  private static func path(for folder: String) -> String {
    "/dev/shm/sluice-\(String(SpoolFolder.sum(of: SpoolFolder.resolved(folder)), radix: 16)).lock"
  }
}
