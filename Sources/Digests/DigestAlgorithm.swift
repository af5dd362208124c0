// The hash algorithms that integrity fields are made with.

internal import CCrypto

/// A hash algorithm of the registry that `Content-Digest` and `Repr-Digest` use (RFC 9530, section 5): the two "active"
/// ones.
public enum DigestAlgorithm: String, CaseIterable, Sendable {
  /// SHA-256 (FIPS 180-4, section 6.2).
  case sha256 = "sha-256"
  /// SHA-512 (FIPS 180-4, section 6.4).
  case sha512 = "sha-512"

  /// The name in an integrity field: a key of a structured dictionary (RFC 9651, section 3.2), and so in lower case.
  public var name: String { rawValue }

  /// Bytes of a digest.
  public var byteCount: Int {
    switch self {
    case .sha256: 32
    case .sha512: 64
    }
  }

  /// The algorithm of that name; nil for others, which a recipient ignores (RFC 9530, section 2).
  public init?(name: String) { self.init(rawValue: name) }

  /// libcrypto's description, which lives as long as the process.
  var messageDigest: OpaquePointer {
    switch self {
    case .sha256: EVP_sha256()
    case .sha512: EVP_sha512()
    }
  }
}
