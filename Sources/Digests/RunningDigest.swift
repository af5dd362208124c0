// A digest of bytes that come piece by piece, and of all so far at any time.

internal import CCrypto

/// Hashes a stream as it passes. Memory: some hundred bytes, however long the stream. One thread at a time.
///
/// A value that cannot be copied by accident; ``fork()`` copies it on purpose.
public struct RunningDigest: ~Copyable, @unchecked Sendable {
  // Unchecked only for the context's pointer, which nothing but this value refers to.

  /// The algorithm that computes the digest.
  public let algorithm: DigestAlgorithm
  /// How many bytes went in.
  public private(set) var byteCount: UInt64 = 0
  private let context: OpaquePointer

  /// The digest of nothing yet.
  ///
  /// - Throws: ``DigestError`` when libcrypto does not have the algorithm, or no memory.
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

  /// A new context, set up by `setUp`, which returns 1 if it could.
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

  /// Takes the next bytes.
  public mutating func update(_ bytes: RawSpan) {
    // Nothing would be no error, but has no address either.
    guard !bytes.isEmpty else { return }
    let status = bytes.withUnsafeBytes { EVP_DigestUpdate(context, $0.baseAddress, $0.count) }
    // It fails for a context that was not set up or is ended (EVP_DigestUpdate(3)); neither can be here. To go on with
    // bytes left out would be a wrong digest.
    precondition(status == 1, "libcrypto did not take the bytes of a digest that it had begun")
    byteCount += UInt64(bytes.byteCount)
  }

  /// Takes more bytes.
  public mutating func update(_ bytes: [UInt8]) { update(bytes.span.bytes) }

  /// A second digest that goes on from here.
  ///
  /// - Throws: ``DigestError`` when there is no memory.
  public func fork() throws(DigestError) -> RunningDigest { try RunningDigest(copyOf: self) }

  /// The digest of all bytes so far; more may follow. It is made on a copy of the state, EVP_MD_CTX_copy_ex(3).
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
