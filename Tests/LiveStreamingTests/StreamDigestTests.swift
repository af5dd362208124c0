import Digests
import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("The digest of the sent bytes")
struct StreamDigestTests {
  private let pattern = OffsetPattern(seed: 5)

  private func expect(
    _ digest: StreamDigest, _ range: Range<Int>, sourceLocation: SourceLocation = #_sourceLocation
  ) {
    let found = digest.value(since: UInt64(range.lowerBound))
    let bytes = pattern[range]
    #expect(found?.upTo == UInt64(range.upperBound), sourceLocation: sourceLocation)
    #expect(found?.value.isEqual(to: Digest(.sha256, of: bytes.span.bytes)) == true, sourceLocation: sourceLocation)
  }

  private func send(_ range: Range<Int>, _ digest: StreamDigest) {
    let bytes = pattern[range]
    digest.update(bytes.span.bytes, at: UInt64(range.lowerBound))
  }

  @Test("each byte counts once, however often it is sent, and bytes after a gap do not count")
  func once() {
    let digest = StreamDigest(.sha256)
    expect(digest, 0..<0)
    send(0..<10, digest)
    expect(digest, 0..<10)
    // Again, a part of them, and some with new ones behind them.
    send(0..<10, digest)
    send(3..<7, digest)
    send(10..<10, digest)
    expect(digest, 0..<10)
    send(4..<12, digest)
    expect(digest, 0..<12)
    send(12..<20, digest)
    send(21..<30, digest)
    expect(digest, 0..<20)
    #expect(digest.value(since: 1) == nil)
  }

  @Test("a representation begins with the digest of no bytes, at its own offset")
  func restarted() {
    let digest = StreamDigest(.sha256)
    send(0..<10, digest)
    digest.restart(at: 6)
    expect(digest, 6..<6)
    #expect(digest.value(since: 0) == nil)
    send(6..<9, digest)
    // Bytes before the representation belong to none, and those behind them count.
    send(4..<11, digest)
    expect(digest, 6..<11)
    digest.restart(at: 6)
    expect(digest, 6..<6)
    digest.restart(at: 6)
    send(6..<8, digest)
    expect(digest, 6..<8)
    digest.restart(at: 8)
    expect(digest, 8..<8)
  }
}
