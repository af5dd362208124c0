// What a connection has yet to send.

internal import Glibc

/// Bytes that a socket has not accepted yet.
struct UnsentBytes {
  private var bytes: [UInt8] = []
  /// The socket has accepted the bytes before it.
  private var start = 0

  /// How the socket has accepted the bytes.
  enum Outcome {
    case all
    /// It has no space for the rest.
    case part
    /// The connection has failed with this `errno`.
    case failed(Int32)
  }

  var isEmpty: Bool { bytes.isEmpty }
  /// How many bytes the socket has yet to accept.
  var count: Int { bytes.count - start }
  /// How many bytes are in memory, including those that were accepted before the rest.
  var size: Int { bytes.count }

  mutating func append(_ more: [UInt8]) {
    if bytes.isEmpty { bytes = more } else { bytes += more }
  }

  mutating func removeAll() { self = UnsentBytes() }

  /// Sends as many bytes as the socket accepts now.
  mutating func send(to descriptor: Int32) -> Outcome {
    while start < bytes.count {
      let sent = bytes.withUnsafeBytes { [start] all in
        let rest = UnsafeRawBufferPointer(rebasing: all[start...])
        return Glibc.send(descriptor, rest.baseAddress, rest.count, Int32(MSG_NOSIGNAL))
      }
      if sent < 0 {
        let code = errno
        if code == EINTR { continue }
        return code == EAGAIN ? .part : .failed(code)
      }
      start += sent
    }
    removeAll()
    return .all
  }
}
