// When a plain stream asks the kernel for the acknowledgements of the peer's TCP.

import EventLoops
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("Queries for the acknowledgements of TCP")
struct TransportAcknowledgementsTests {
  @Test("new bytes cause a query after a second, or earlier if they are an eighth of the buffer")
  func intervals() throws {
    let ends = try CircularBuffer.make(capacity: .bytes(64 << 10))
    let writer = StreamWriter(BufferedBytes(ends.consumer), pairSize: 1, digest: nil)
    defer { writer.dropBody() }
    let step = UInt64(writer.capacity / 8)
    var transport = TransportAcknowledgements(retention: 0, keepsStart: false)
    transport.begin(at: 0)
    var now = MonotonicInstant(nanoseconds: 5_000_000_000)
    func isDue(after delay: Duration, at cursor: UInt64) throws -> Bool {
      now = now + delay
      // It moves the writer's cursor.
      _ = try writer.openBody([], from: cursor, maximum: nil)
      return transport.isDue(writer, now: now)
    }
    #expect(try isDue(after: .zero, at: 1))
    #expect(try !isDue(after: .milliseconds(1), at: 2))
    #expect(try !isDue(after: .milliseconds(998), at: step))
    #expect(try isDue(after: .milliseconds(1), at: step + 1))
    // Because of their number. The next second begins here.
    #expect(try !isDue(after: .milliseconds(500), at: 2 * step))
    #expect(try isDue(after: .milliseconds(499), at: 2 * step + 1))
    #expect(try !isDue(after: .milliseconds(999), at: 2 * step + 2))
    #expect(try isDue(after: .milliseconds(1), at: 2 * step + 2))
  }

  /// A writer over a buffer of 64 KiB with this number of bytes.
  private func writer(_ count: Int) throws -> StreamWriter {
    var ends = try CircularBuffer.make(capacity: .bytes(64 << 10))
    let bytes = [UInt8](repeating: 1, count: count)
    let result = ends.producer.write(copying: bytes.span.bytes)
    #expect(result == .written(count))
    return StreamWriter(BufferedBytes(ends.consumer), pairSize: 1, digest: nil)
  }

  /// Moves the writer's cursor to an offset at or before the last byte.
  private func move(_ writer: StreamWriter, to cursor: UInt64) throws {
    // It writes one byte at once.
    _ = try writer.openBody([], from: cursor - 1, maximum: nil)
    writer.dropBody()
    #expect(writer.cursor == cursor)
  }

  @Test(
    "while the buffer is more than half full, an eighth of the usual number of bytes causes a query",
    arguments: [(32 << 10, 8 << 10), (32 << 10 + 1, 1 << 10)] as [(Int, UInt64)])
  func pressure(_ count: Int, _ step: UInt64) throws {
    let writer = try writer(count)
    var transport = TransportAcknowledgements(retention: 0, keepsStart: false)
    let now = MonotonicInstant(nanoseconds: 5_000_000_000)
    func isDue(at cursor: UInt64) throws -> Bool {
      try move(writer, to: cursor)
      return transport.isDue(writer, now: now)
    }
    transport.begin(at: 10)
    // The first query of a stream.
    #expect(try isDue(at: 11))
    #expect(try !isDue(at: 10 + step))
    #expect(try isDue(at: 11 + step))
    #expect(try !isDue(at: 10 + 2 * step))
    #expect(try isDue(at: 11 + 2 * step))
    // Another request begins earlier.
    #expect(try !isDue(at: 1))
    transport.begin(at: 5)
    #expect(try !isDue(at: 4 + step))
    #expect(try isDue(at: 5 + step))
  }

  @Test("with bytes in flight and a buffer that is more than half full, the pauses between queries grow to 64 ms")
  func delays() throws {
    let half = try writer(32 << 10)
    try move(half, to: 100)
    let full = try writer(32 << 10 + 1)
    try move(full, to: 100)
    var transport = TransportAcknowledgements(retention: 0, keepsStart: false)
    for expected in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
      #expect(transport.pressureDelay(full, acknowledged: 99) == .milliseconds(expected))
      #expect(transport.pressureDelay(full, acknowledged: 100) == nil, "nothing is in flight")
      #expect(transport.pressureDelay(half, acknowledged: 0) == nil, "there is room")
      transport.looked(hasProgress: false)
    }
    transport.looked(hasProgress: true)
    #expect(transport.pressureDelay(full, acknowledged: 0) == .milliseconds(1))
  }

  @Test("acknowledged bytes are retained, but never more than half of the buffer")
  func retention() {
    for (retention, acknowledged, expected) in [
      (0, 1000, 1000), (300, 0, 0), (300, 299, 0), (300, 300, 0), (300, 301, 1), (300, 1000, 700), (500, 1000, 500),
      (501, 1000, 500), (.max, 1000, 500),
    ] as [(Int, UInt64, UInt64)] {
      var transport = TransportAcknowledgements(retention: retention, keepsStart: false)
      transport.begin(at: 50)
      let end = transport.releasable(acknowledged: acknowledged, newest: 1000, capacity: 1000)
      #expect(end == expected, "\(retention) \(acknowledged)")
    }
  }

  @Test("a request that is sent again from its start keeps all its bytes while they take at most half of the buffer")
  func start() {
    for (newest, acknowledged, expected) in [
      (100, 100, 100), (200, 200, 200), (700, 150, 150), (700, 600, 200), (701, 600, 600), (701, 150, 150),
    ] as [(UInt64, UInt64, UInt64)] {
      for keepsStart in [true, false] {
        var transport = TransportAcknowledgements(retention: 0, keepsStart: keepsStart)
        transport.begin(at: 900)
        transport.begin(at: 200)
        #expect(transport.start == 200)
        let end = transport.releasable(acknowledged: acknowledged, newest: newest, capacity: 1000)
        #expect(end == (keepsStart ? expected : acknowledged), "\(newest) \(acknowledged)")
      }
    }
  }

  @Test("another process continues at the first byte that is not released, and no earlier than this process began")
  func resumable() {
    var transport = TransportAcknowledgements(retention: 300, keepsStart: false)
    func offset(_ acknowledged: UInt64, oldest: UInt64) -> UInt64 {
      transport.resumable(acknowledged: acknowledged, oldest: oldest, newest: 1000, capacity: 1000)
    }
    // An earlier process has delivered these.
    #expect(offset(900, oldest: 0) == 900)
    for starts in [[200], [500, 200], [200, 500]] as [[UInt64]] {
      transport = TransportAcknowledgements(retention: 300, keepsStart: false)
      for start in starts { transport.begin(at: start) }
      #expect(offset(900, oldest: 0) == 600 && offset(900, oldest: 601) == 601 && offset(900, oldest: 950) == 900)
      #expect(offset(499, oldest: 0) == 200 && offset(501, oldest: 0) == 201 && offset(150, oldest: 0) == 150)
    }
  }
}
