// The digest of the sent bytes, computed while they are sent.

internal import Digests

/// The digest of a stream from some offset on. Each byte counts once, even if it is sent several times.
final class StreamDigest {
  private let algorithm: DigestAlgorithm
  private var digest: RunningDigest
  private var start: UInt64 = 0
  private var end: UInt64 = 0

  init(_ algorithm: DigestAlgorithm) {
    self.algorithm = algorithm
    digest = RunningDigest(algorithm)
  }

  /// A representation begins at this stream offset.
  func restart(at offset: UInt64) {
    // A creation that is sent again begins no new representation.
    if (start, end) == (offset, offset) { return }
    digest = RunningDigest(algorithm)
    (start, end) = (offset, offset)
  }

  /// Adds bytes of the stream that are being sent, perhaps not for the first time.
  func update(_ bytes: RawSpan, at offset: UInt64) {
    let last = offset + UInt64(bytes.byteCount)
    // After a gap, there is no digest of the following bytes until the next start.
    guard offset <= end, last > end else { return }
    digest.update(bytes.extracting(droppingFirst: Int(end - offset)))
    end = last
  }

  func value(since offset: UInt64) -> (value: Digest, upTo: UInt64)? {
    offset == start ? (digest.value(), end) : nil
  }
}
