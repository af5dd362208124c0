// What the tests of circular buffers with a copier share.

import StreamBuffers

extension CircularBuffer.Settings {
  /// A buffer with a copier and pauses, in a file that outlives its process.
  static func inFile(_ path: String, capacity: Int = 16 << 10) -> Self {
    var settings = Self(capacity: capacity)
    (settings.hasCopier, settings.path, settings.allowsPauses) = (true, path, true)
    return settings
  }
}

/// A backing that keeps nothing.
final class NoBacking: CircularBacking {
  var oldest: UInt64 { 0 }
  var capacity: Int { 0 }
  func read(
    at offset: UInt64, maximum: Int, oldestInMemory: UInt64
  ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> { .overwritten(oldest: oldestInMemory) }
  func isMissing(at offset: UInt64) -> Bool { false }
  func release(upTo offset: UInt64) {}
}
