// A digest as a value: compared without telling how much of it was right, and written as text.

internal import CCrypto

/// The hash of some bytes, and the algorithm that it was made with.
public struct Digest: Sendable, CustomStringConvertible {
  /// The algorithm that computed it.
  public let algorithm: DigestAlgorithm
  /// As many as ``DigestAlgorithm/byteCount`` says.
  public let bytes: [UInt8]

  /// A digest from elsewhere, e.g. from a field that was received.
  ///
  /// Nil unless `bytes` are as many as the algorithm makes.
  public init?(_ algorithm: DigestAlgorithm, bytes: [UInt8]) {
    guard bytes.count == algorithm.byteCount else { return nil }
    self.algorithm = algorithm
    self.bytes = bytes
  }

  /// The digest of `content`.
  ///
  /// - Throws: ``DigestError`` when libcrypto does not have the algorithm, or no memory.
  public init(_ algorithm: DigestAlgorithm, of content: RawSpan) throws(DigestError) {
    var running = try RunningDigest(algorithm)
    running.update(content)
    self = try running.value()
  }

  /// Whether both are the same, in a time that does not depend on where they differ (CRYPTO_memcmp(3)): a digest that
  /// stands for a secret may be compared with a guess.
  public func isEqual(to other: Digest) -> Bool {
    algorithm == other.algorithm && constantTimeEqual(bytes.span.bytes, other.bytes.span.bytes)
  }

  /// In base64 with padding (RFC 4648, section 4), as a byte sequence of a structured field has it between its colons
  /// (RFC 9651, section 3.3.5).
  public var base64: String {
    // Four characters for every three bytes, and the zero that EVP_EncodeBlock(3) ends with.
    String(unsafeUninitializedCapacity: (bytes.count + 2) / 3 * 4 + 1) {
      Int(EVP_EncodeBlock($0.baseAddress, bytes, Int32(bytes.count)))
    }
  }

  /// In hexadecimal, lower case, as sha256sum(1) writes it.
  public var hexadecimal: String {
    var text = [CChar](repeating: 0, count: bytes.count * 2 + 1)
    var count = 0
    // Without a separator; OPENSSL_buf2hexstr_ex(3) fails only for a buffer too small.
    OPENSSL_buf2hexstr_ex(&text, text.count, &count, bytes, bytes.count, 0)
    return String(decoding: text.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self).lowercased()
  }

  /// The algorithm's name and the digest in hexadecimal.
  public var description: String { "\(algorithm.name) \(hexadecimal)" }
}

/// Whether two byte sequences are the same, in a time that depends on their lengths only: for tokens and other secrets.
/// CRYPTO_memcmp(3).
public func constantTimeEqual(_ first: RawSpan, _ second: RawSpan) -> Bool {
  guard first.byteCount == second.byteCount else { return false }
  return first.withUnsafeBytes { first in
    second.withUnsafeBytes { second in
      // Of nothing there may be no address, and nothing equals nothing.
      guard let left = first.baseAddress, let right = second.baseAddress else { return true }
      return CRYPTO_memcmp(left, right, first.count) == 0
    }
  }
}

/// libcrypto refused: its configuration leaves the algorithm out, or there is no memory.
public struct DigestError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The algorithm that libcrypto refuses.
  public let algorithm: DigestAlgorithm
  /// What is wrong and what to do, in words.
  public var description: String {
    "libcrypto has no \(algorithm.name) here: check the providers in the system's openssl.cnf"
  }
}
