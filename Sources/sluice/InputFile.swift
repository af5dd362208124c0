// Input files that the command line names. The same mistake has the same exit code for every option.

internal import EventLoops
internal import Glibc

enum InputFile {
  /// - Throws: ``CommandError`` with exit code 66 for a file that does not exist, cannot be read, or is a directory.
  static func check(_ path: String, option: String? = nil) throws(CommandError) {
    var status = stat()
    guard access(path, R_OK) == 0, stat(path, &status) == 0 else { throw unreadable(path, option, errno) }
    if status.st_mode & S_IFMT == S_IFDIR { throw unreadable(path, option, EISDIR) }
  }

  /// Checks a file that a thread reads again for each connection. This thread must not wait for the file.
  ///
  /// - Throws: ``CommandError`` with exit code 66, including for a FIFO, a socket or a device.
  static func checkIsReadAgain(_ path: String, option: String) throws(CommandError) {
    try check(path, option: option)
    var status = stat()
    guard stat(path, &status) == 0 else { throw unreadable(path, option, errno) }
    try checkIsRegular(status, path, option)
  }

  /// Reads a whole file. Throws an error if it is longer than `limit`.
  ///
  /// - Parameter isReadAgain: whether it must be a regular file, as for ``checkIsReadAgain(_:option:)``. The call never
  ///   waits in that case.
  static func contents(
    of path: String, option: String? = nil, limit: Int = .max, isReadAgain: Bool = false
  ) throws(CommandError) -> [UInt8] {
    // Opening a FIFO would wait for its writer.
    let flags = O_RDONLY | O_CLOEXEC | (isReadAgain ? O_NONBLOCK | O_NOCTTY : 0)
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try retryingInterrupts("open") { open(path, flags) }
    } catch {
      throw unreadable(path, option, error.code)
    }
    defer { close(descriptor) }
    if isReadAgain {
      var status = stat()
      guard fstat(descriptor, &status) == 0 else { throw unreadable(path, option, errno) }
      try checkIsRegular(status, path, option)
    }
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 1 << 16)
    while true {
      let count: Int
      do throws(SystemError) {
        count = try retryingInterrupts("read") { read(descriptor, &chunk, chunk.count) }
      } catch {
        throw unreadable(path, option, error.code)
      }
      if count == 0 { return bytes }
      bytes += chunk[..<count]
      if bytes.count > limit { throw unreadable(path, option, EFBIG) }
    }
  }

  private static func checkIsRegular(_ status: stat, _ path: String, _ option: String?) throws(CommandError) {
    if status.st_mode & S_IFMT == S_IFREG { return }
    if status.st_mode & S_IFMT == S_IFDIR { throw unreadable(path, option, EISDIR) }
    throw CommandError(
      .noInput,
      "\(option.map { "--\($0) " } ?? "")\(path.shown): not a regular file. Name a regular file. It is read again for each connection, which a FIFO or a process substitution does not allow."
    )
  }

  private static func unreadable(_ path: String, _ option: String?, _ code: Int32) -> CommandError {
    let problem = "\(option.map { "--\($0) " } ?? "")\(path.shown): \(String(cString: strerror(code)))"
    // The limit of EFBIG is the command's own.
    if code != EFBIG, let remedy = SystemError.remedy(forLimit: code) {
      return CommandError(.inputOutput, "\(problem). \(remedy)")
    }
    return CommandError(.noInput, "\(problem). Name a file that exists and is readable.")
  }
}
