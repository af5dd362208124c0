// The receive buffers for all connections of a loop. They share one buffer, because only one is read at a time, so a
// waiting connection needs none.

/// A buffer, and space to note which parts of it belong to a body.
final class ReceiveBuffer {
  let bytes: UnsafeMutableBufferPointer<UInt8>
  var pieces: [Range<Int>] = []

  init(capacity: Int) { bytes = .allocate(capacity: capacity) }
  deinit { bytes.deallocate() }
}

/// The buffers of a loop, one per level of nesting. When a newer connection takes over a stream, the older one's socket
/// is read while the newer one's bytes are in the first buffer. Only on the loop's thread.
final class ReceiveBuffers {
  /// The system allocates only as much memory for it as was ever filled.
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
