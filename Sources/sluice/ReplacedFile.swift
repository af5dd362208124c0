// A file that exists completely or not at all.

internal import EventLoops
internal import Glibc

enum ReplacedFile {
  /// Writes `text` beside `path` and renames it. A reader of `path` finds the former content or the complete new
  /// content, even after a crash. A path that is not a regular file (`/dev/stdout`, a FIFO) cannot be replaced, and is
  /// written to. `-` is standard output.
  ///
  /// - Throws: ``CommandError`` with exit code 74 that names the file. No temporary file is left in that case.
  static func write(_ text: String, to path: String) throws(CommandError) {
    do throws(SystemError) {
      guard path != "-" else { return try writeAll(Array(text.utf8), to: STDOUT_FILENO, "write") }
      var status = stat()
      let isThere = stat(path, &status) == 0
      if isThere, status.st_mode & S_IFMT != S_IFREG {
        let descriptor = try retryingInterrupts("open") { open(path, O_WRONLY | O_CLOEXEC) }
        defer { close(descriptor) }
        return try writeAll(Array(text.utf8), to: descriptor, "write")
      }
      // A symbolic link still leads to the file.
      try replace(isThere ? resolved(path) : path, by: text, mode: isThere ? status.st_mode & 0o777 : 0o666 & ~mask)
    } catch {
      let remedy = SystemError.remedy(forLimit: error.code) ?? "Choose another file."
      throw CommandError(.inputOutput, "cannot write \(path.shown): \(error.reason). \(remedy)")
    }
  }

  /// Whether ``write(_:to:)`` can begin, so that a run of hours does not find out at its end. For a regular file or a
  /// path without a file, it makes the file beside it, and removes it.
  ///
  /// - Throws: ``EventLoops/SystemError`` with the reason why it cannot.
  static func check(_ path: String) throws(SystemError) {
    var status = stat()
    let isThere = stat(path, &status) == 0
    if isThere, status.st_mode & S_IFMT != S_IFREG {
      try retryingInterrupts("access") { access(path, W_OK) }
    } else {
      let (temporary, descriptor) = try makeTemporary(beside: isThere ? resolved(path) : path)
      close(descriptor)
      unlink(temporary)
    }
  }

  private static func makeTemporary(beside path: String) throws(SystemError) -> (name: String, descriptor: Int32) {
    var template = Array("\(path).XXXXXX".utf8CString)
    let descriptor = template.withUnsafeMutableBufferPointer { buffer in
      // The array has a base address, because it is not empty.
      mkstemp(buffer.baseAddress!)
    }
    guard descriptor >= 0 else { throw .last("mkstemp") }
    _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
    return (String(decoding: template.dropLast().map(UInt8.init(bitPattern:)), as: UTF8.self), descriptor)
  }

  /// The same for a regular file or a path without a file.
  private static func replace(_ path: String, by text: String, mode: mode_t) throws(SystemError) {
    let (temporary, descriptor) = try makeTemporary(beside: path)
    defer { close(descriptor) }
    do throws(SystemError) {
      try writeAll(Array(text.utf8), to: descriptor, "write")
      try retryingInterrupts("fchmod") { fchmod(descriptor, mode) }
      // Comes before the rename. Otherwise, a crash could leave the new name with an empty file.
      try retryingInterrupts("fsync") { fsync(descriptor) }
      try rename(temporary, to: path, orOverwriteWith: text)
    } catch {
      unlink(temporary)
      throw error
    }
    syncDirectory(of: path)
  }

  /// A file on which another one is mounted, as in a container, cannot be replaced. Its content is, without a guarantee
  /// for readers.
  private static func rename(
    _ temporary: String, to path: String, orOverwriteWith text: String
  ) throws(SystemError) {
    do throws(SystemError) {
      try retryingInterrupts("rename") { Glibc.rename(temporary, path) }
    } catch {
      guard error.code == EBUSY else { throw error }
      let descriptor = try retryingInterrupts("open") { open(path, O_WRONLY | O_TRUNC | O_CLOEXEC) }
      defer { close(descriptor) }
      try writeAll(Array(text.utf8), to: descriptor, "write")
      try retryingInterrupts("fsync") { fsync(descriptor) }
      unlink(temporary)
    }
  }

  /// The path of the directory that contains `path`.
  static func directory(of path: String) -> String {
    path.lastIndex(of: "/").map { $0 == path.startIndex ? "/" : String(path[..<$0]) } ?? "."
  }

  /// Makes the names in the directory of `path` survive a crash. Some file systems do not support this.
  static func syncDirectory(of path: String) {
    let directory = directory(of: path)
    guard
      let descriptor = try? retryingInterrupts("open", { open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) })
    else { return }
    _ = try? retryingInterrupts("fsync") { fsync(descriptor) }
    close(descriptor)
  }

  static func resolved(_ path: String) -> String {
    guard let real = realpath(path, nil) else { return path }
    defer { free(real) }
    return String(cString: real)
  }

  /// The umask of the process. The only way to read it is to set it.
  private static var mask: mode_t {
    let mask = umask(0o077)
    umask(mask)
    return mask
  }
}
