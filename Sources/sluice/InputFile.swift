// Files that are named on the command line and read: whichever option names one, the same mistake has the same exit
// code.

internal import Glibc

enum InputFile {
  /// - Throws: ``CommandError`` with exit code 66 for a file that is not there, may not be read, or is a directory.
  static func check(_ path: String, option: String? = nil) throws(CommandError) {
    var status = stat()
    guard access(path, R_OK) == 0, stat(path, &status) == 0 else { throw unreadable(path, option, errno) }
    if status.st_mode & S_IFMT == S_IFDIR { throw unreadable(path, option, EISDIR) }
  }

  /// A whole file, or an error where it is longer than `limit`.
  static func contents(of path: String, option: String? = nil, limit: Int = .max) throws(CommandError) -> [UInt8] {
    guard let stream = fopen(path, "re") else { throw unreadable(path, option, errno) }
    defer { fclose(stream) }
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 1 << 16)
    while case let count = fread(&chunk, 1, chunk.count, stream), count > 0 {
      bytes += chunk[..<count]
      if bytes.count > limit { throw unreadable(path, option, EFBIG) }
    }
    guard ferror(stream) == 0 else { throw unreadable(path, option, errno) }
    return bytes
  }

  private static func unreadable(_ path: String, _ option: String?, _ code: Int32) -> CommandError {
    CommandError(
      .noInput,
      "\(option.map { "--\($0) " } ?? "")\(path.shown): \(String(cString: strerror(code))). Name a file that exists and may be read."
    )
  }
}
