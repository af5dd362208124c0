// Where the bytes of all connections of a loop arrive. One buffer for all of them: only one is being read at a time, so
// a connection that waits costs no buffer.

/// A buffer, and room to note which parts of it are body.
final class ReceiveBuffer {
  let bytes: UnsafeMutableBufferPointer<UInt8>
  var pieces: [Range<Int>] = []

  init(capacity: Int) { bytes = .allocate(capacity: capacity) }
  deinit { bytes.deallocate() }
}

/// The buffers of a loop, one per level of nesting: when a newer connection takes a stream over, the older one's socket
/// is read while the newer one's bytes lie in the first buffer. Only on the loop's thread.
final class ReceiveBuffers {
  /// The system gives as much memory for it as was ever filled.
  static let capacity = ReadAllowance.alone

  private let capacity: Int
  private var free: [ReceiveBuffer] = []

  init(capacity: Int) { self.capacity = capacity }

  func withBuffer<Result>(_ body: (ReceiveBuffer) -> Result) -> Result {
    let buffer = free.popLast() ?? ReceiveBuffer(capacity: capacity)
    defer { free.append(buffer) }
    return body(buffer)
  }
}
