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
}
