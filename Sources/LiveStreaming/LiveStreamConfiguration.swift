// Everything that can be chosen about a live stream.

public import StreamBuffers
public import UploadClient

/// How a ``LiveStreamer`` works.
public struct LiveStreamConfiguration: Sendable {
  /// Where to; `Stream-ID` and `Stream-Offset` are added to its fields.
  public var request: UploadRequest
  /// Names the stream at the server, through all of its requests: 1–64 of `A–Z a–z 0–9 . _ -`. 128 random bits by default.
  public var streamID = LiveStreamConfiguration.randomStreamID()
  /// How much an outage may last: what the circular buffer holds.
  public var buffer = CircularBuffer.Capacity.bytes(16 << 20)
  public var overflow = OverflowPolicy.dropOldest
  /// Whether the buffer's unused memory goes back to the system.
  public var memory = CircularBuffer.Memory.returned
  /// Acknowledged bytes that are kept all the same while there is room, for a server that says it could not keep them; in
  /// bytes, at most half the buffer.
  public var retention = 256 << 10
  /// The bound pair's buffer, in bytes.
  public var pairSize = BoundPair.defaultBufferSize
  public var retry = RetryPolicy()
  /// How often to tell ``LiveStreamEvent/progress(_:)``; nil for never, which costs nothing.
  public var progressInterval: Duration?

  public init(request: UploadRequest) { self.request = request }

  /// 128 bits from the system's generator, as 32 hexadecimal digits.
  public static func randomStreamID() -> String {
    (0..<4).map { _ in
      let word = String(UInt32.random(in: .min ... .max), radix: 16)
      return String(repeating: "0", count: 8 - word.count) + word
    }.joined()
  }
}
