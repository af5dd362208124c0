// A new file that gets its name only when it has content and is locked.

internal import CLinux
internal import EventLoops
internal import Glibc

enum LockedFile {
  /// Creates a file that only its owner may read, writes `text`, syncs it and locks it.
  ///
  /// - Returns: the descriptor of the file, for reading and appending.
  /// - Throws: ``EventLoops/SystemError`` with the code `EEXIST` if the path names a file by now.
  static func create(_ path: String, _ text: String) throws(SystemError) -> Int32 {
    if let new = try createInOneStep(path, text) { return new }
    return try createNamed(path, text)
  }

  /// Whether the path names the open file.
  static func isNamed(_ descriptor: Int32, _ path: String) -> Bool {
    var (own, named) = (stat(), stat())
    return fstat(descriptor, &own) == 0 && lstat(path, &named) == 0 && own.st_dev == named.st_dev
      && own.st_ino == named.st_ino
  }

  /// Gives the file its name last (`O_TMPFILE`), so that no kill leaves an empty file, which could also be a user's.
  ///
  /// - Returns: nil if the file system does not support this, or if the file cannot be written.
  private static func createInOneStep(_ path: String, _ text: String) throws(SystemError) -> Int32? {
    let directory = ReplacedFile.directory(of: path)
    let flags = SLUICE_O_TMPFILE | O_DIRECTORY | O_RDWR | O_APPEND | O_CLOEXEC
    guard let new = try? retryingInterrupts("open", { open(directory, flags, 0o600) }) else { return nil }
    do throws(SystemError) {
      try fill(new, text)
      // A file system without locks works without them.
      _ = try? retryingInterrupts("flock") { flock(new, LOCK_EX | LOCK_NB) }
      try retryingInterrupts("linkat") {
        linkat(AT_FDCWD, "/proc/self/fd/\(new)", AT_FDCWD, path, AT_SYMLINK_FOLLOW)
      }
      return new
    } catch {
      close(new)
      if error.code == EEXIST { throw error }
      return nil
    }
  }

  /// Creates the file with its name, and then writes to it. A kill between these steps leaves it empty.
  private static func createNamed(_ path: String, _ text: String) throws(SystemError) -> Int32 {
    let new = try retryingInterrupts("open") { open(path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0o600) }
    do throws(SystemError) {
      try fill(new, text)
    } catch {
      // It may have a part of the text.
      if isNamed(new, path) { unlink(path) }
      close(new)
      throw error
    }
    // Another process may have found it before it was locked, and may own it, or have removed it.
    var isTaken = false
    do throws(SystemError) {
      try retryingInterrupts("flock") { flock(new, LOCK_EX | LOCK_NB) }
    } catch {
      isTaken = error.code == EWOULDBLOCK
    }
    guard !isTaken, isNamed(new, path) else {
      close(new)
      throw SystemError(operation: "open", code: EEXIST)
    }
    return new
  }

  private static func fill(_ new: Int32, _ text: String) throws(SystemError) {
    try writeAll(Array(text.utf8), to: new, "write")
    try retryingInterrupts("fsync") { fsync(new) }
  }
}
