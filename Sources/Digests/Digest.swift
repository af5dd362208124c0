// A digest as a value with a constant-time comparison and text formats.

internal import CCrypto

/// The hash of some bytes, and its algorithm.
public struct Digest: Sendable, CustomStringConvertible {
  /// The algorithm that computed the digest.
  public let algorithm: DigestAlgorithm
  /// The bytes of the digest. Their number is ``DigestAlgorithm/byteCount``.
  public let bytes: [UInt8]

  /// Creates a digest from another source, such as a received field.
  ///
  /// Nil unless the number of `bytes` is that of the algorithm.
  public init?(_ algorithm: DigestAlgorithm, bytes: [UInt8]) {
    guard bytes.count == algorithm.byteCount else { return nil }
    self.algorithm = algorithm
    self.bytes = bytes
  }

  /// Computes the digest of `content`.
  public init(_ algorithm: DigestAlgorithm, of content: RawSpan) {
    var running = RunningDigest(algorithm)
    running.update(content)
    self = running.value()
  }

  /// Whether both digests are equal. The time does not depend on the position of a difference (CRYPTO_memcmp(3)), so a
  /// digest of a secret may be compared with a guess.
  public func isEqual(to other: Digest) -> Bool {
    algorithm == other.algorithm && constantTimeEqual(bytes.span.bytes, other.bytes.span.bytes)
  }

  /// The digest in base64 with padding (RFC 4648, section 4), as in a byte sequence of a structured field (RFC 9651,
  /// section 3.3.5).
  public var base64: String {
    // Four characters for every three bytes, and the final zero of EVP_EncodeBlock(3).
    String(unsafeUninitializedCapacity: (bytes.count + 2) / 3 * 4 + 1) {
      Int(EVP_EncodeBlock($0.baseAddress, bytes, Int32(bytes.count)))
    }
  }

  /// The digest in lower-case hexadecimal, as sha256sum(1) prints it.
  public var hexadecimal: String { Hexadecimal.text(bytes) }

  /// The algorithm's name and the digest in hexadecimal.
  public var description: String { "\(algorithm.name) \(hexadecimal)" }
}

/// Whether two byte sequences are equal. The time depends only on their lengths (CRYPTO_memcmp(3)), so it is suitable
/// for tokens and other secrets.
public func constantTimeEqual(_ first: RawSpan, _ second: RawSpan) -> Bool {
  guard first.byteCount == second.byteCount else { return false }
  return first.withUnsafeBytes { first in
    second.withUnsafeBytes { second in
      // An empty span may have no address, and two empty spans are equal.
      guard let left = first.baseAddress, let right = second.baseAddress else { return true }
      return CRYPTO_memcmp(left, right, first.count) == 0
    }
  }
}
