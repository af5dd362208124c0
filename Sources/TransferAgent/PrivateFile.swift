// Small files that a transfer names, such as that of a bearer token.

internal import EventLoops
internal import Glibc

enum PrivateFile {
  /// - Throws: ``SystemError``, `EFBIG` for more than `limit` bytes.
  static func contents(of path: String, limit: Int) throws(SystemError) -> [UInt8] {
    // Opening a FIFO would otherwise wait for its writer.
    let descriptor = try retryingInterrupts("open") { open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) }
    defer { close(descriptor) }
    var bytes = [UInt8](repeating: 0, count: limit + 1)
    let count = try retryingInterrupts("read") { read(descriptor, &bytes, bytes.count) }
    guard count <= limit else { throw SystemError(operation: "read", code: EFBIG) }
    return Array(bytes[..<count])
  }
}
