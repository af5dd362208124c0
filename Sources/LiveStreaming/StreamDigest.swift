// The digest of what was sent, while it is being sent.

internal import Digests

/// The digest of a stream from some offset on, each byte counted once however often it is sent.
final class StreamDigest {
  private let algorithm: DigestAlgorithm
  /// nil if libcrypto has none: then nothing is compared, and nothing is called verified.
  private var digest: RunningDigest?
  private var start: UInt64 = 0
  private var end: UInt64 = 0

  init(_ algorithm: DigestAlgorithm) {
    self.algorithm = algorithm
    digest = try? RunningDigest(algorithm)
  }

  /// A representation begins at this stream offset.
  func restart(at offset: UInt64) {
    // A creation that is sent again begins nothing new.
    if (start, end) == (offset, offset) { return }
    digest = try? RunningDigest(algorithm)
    (start, end) = (offset, offset)
  }

  /// These bytes of the stream are being sent, perhaps not for the first time.
  func update(_ bytes: RawSpan, at offset: UInt64) {
    let last = offset + UInt64(bytes.byteCount)
    // Beyond a gap there is nothing to be said of what is behind it, until the next start.
    guard offset <= end, last > end else { return }
    digest?.update(bytes.extracting(droppingFirst: Int(end - offset)))
    end = last
  }

  func value(since offset: UInt64) -> (value: Digest, upTo: UInt64)? {
    guard offset == start, let value = try? digest?.value() else { return nil }
    return (value, end)
  }
}
