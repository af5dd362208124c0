// A digest of bytes that arrive in pieces, with the value of all bytes so far at any time.

internal import CCrypto

/// Hashes a stream piece by piece. It uses a few hundred bytes of memory, regardless of the length of the stream. One
/// thread at a time.
///
/// The value cannot be copied by accident. ``fork()`` makes a copy.
public struct RunningDigest: ~Copyable, @unchecked Sendable {
  // Unchecked only because of the context's pointer, which belongs to this value alone.

  /// The algorithm that computes the digest.
  public let algorithm: DigestAlgorithm
  /// The number of bytes so far.
  public private(set) var byteCount: UInt64 = 0
  private let context: OpaquePointer

  /// Creates a digest of no bytes yet.
  ///
  /// - Throws: ``DigestError`` when libcrypto does not support the algorithm, or has no memory.
  public init(_ algorithm: DigestAlgorithm) throws(DigestError) {
    self.algorithm = algorithm
    context = try Self.context(algorithm) { EVP_DigestInit_ex($0, algorithm.messageDigest, nil) }
  }

  private init(copyOf other: borrowing RunningDigest) throws(DigestError) {
    algorithm = other.algorithm
    byteCount = other.byteCount
    let original = other.context
    context = try Self.context(algorithm) { EVP_MD_CTX_copy_ex($0, original) }
  }

  /// A new context, which `setUp` initializes. `setUp` returns 1 on success.
  private static func context(
    _ algorithm: DigestAlgorithm, _ setUp: (OpaquePointer) -> Int32
  ) throws(DigestError) -> OpaquePointer {
    CryptoLibrary.keepUntilExit()
    guard let context = EVP_MD_CTX_new() else { throw DigestError(algorithm: algorithm) }
    guard setUp(context) == 1 else {
      EVP_MD_CTX_free(context)
      throw DigestError(algorithm: algorithm)
    }
    return context
  }

  deinit { EVP_MD_CTX_free(context) }

  /// Adds the next bytes.
  public mutating func update(_ bytes: RawSpan) {
    // An empty span is valid, but has no address.
    guard !bytes.isEmpty else { return }
    let status = bytes.withUnsafeBytes { EVP_DigestUpdate(context, $0.baseAddress, $0.count) }
    // It fails only for a context that is not initialized or is finished (EVP_DigestUpdate(3)). Neither can occur here.
    // Ignoring the failure would produce a wrong digest.
    precondition(status == 1, "libcrypto failed to update a digest")
    byteCount += UInt64(bytes.byteCount)
  }

  /// Adds the next bytes.
  public mutating func update(_ bytes: [UInt8]) { update(bytes.span.bytes) }

  /// A copy that continues from the current state.
  ///
  /// - Throws: ``DigestError`` when there is no memory.
  public func fork() throws(DigestError) -> RunningDigest { try RunningDigest(copyOf: self) }

  /// The digest of all bytes so far. More bytes may follow. It is computed on a copy of the state
  /// (EVP_MD_CTX_copy_ex(3)).
  ///
  /// - Throws: ``DigestError`` when there is no memory.
  public func value() throws(DigestError) -> Digest {
    let copy = try fork()
    var bytes = [UInt8](repeating: 0, count: algorithm.byteCount)
    guard EVP_DigestFinal_ex(copy.context, &bytes, nil) == 1, let digest = Digest(algorithm, bytes: bytes) else {
      throw DigestError(algorithm: algorithm)
    }
    return digest
  }
}
