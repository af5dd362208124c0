// The hash algorithms of integrity fields.

internal import CCrypto

/// A hash algorithm from the registry of `Content-Digest` and `Repr-Digest` (RFC 9530, section 5). The two "active"
/// ones are supported.
public enum DigestAlgorithm: String, CaseIterable, Sendable {
  /// SHA-256 (FIPS 180-4, section 6.2).
  case sha256 = "sha-256"
  /// SHA-512 (FIPS 180-4, section 6.4).
  case sha512 = "sha-512"

  /// The name in an integrity field. It is a key of a structured dictionary (RFC 9651, section 3.2), and so in lower
  /// case.
  public var name: String { rawValue }

  /// The number of bytes of a digest.
  public var byteCount: Int {
    switch self {
    case .sha256: 32
    case .sha512: 64
    }
  }

  /// Creates the algorithm of that name. Nil for others, which a recipient ignores (RFC 9530, section 2).
  public init?(name: String) { self.init(rawValue: name) }

  /// libcrypto's object for the algorithm, which lives as long as the process.
  var messageDigest: OpaquePointer {
    switch self {
    case .sha256: Self.fetched256
    case .sha512: Self.fetched512
    }
  }

  // Unsafe only because a pointer is not Sendable. Any thread may use the object, which never changes.
  private nonisolated(unsafe) static let fetched256 = CryptoLibrary.messageDigest("SHA2-256")
  private nonisolated(unsafe) static let fetched512 = CryptoLibrary.messageDigest("SHA2-512")
}
