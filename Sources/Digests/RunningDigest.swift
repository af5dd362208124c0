// A digest of bytes that arrive in pieces, with the value of all bytes so far at any time.

internal import CCrypto

/// Hashes a stream piece by piece. It uses a few hundred bytes of memory, regardless of the length of the stream. One
/// thread at a time.
///
/// It cannot fail: the algorithms are in libcrypto itself, whatever its configuration. Only missing memory ends the
/// process, as it does for Swift's own objects.
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
  public init(_ algorithm: DigestAlgorithm) {
    self.algorithm = algorithm
    context = Self.context { EVP_DigestInit_ex($0, algorithm.messageDigest, nil) }
  }

  private init(copyOf other: borrowing RunningDigest) {
    algorithm = other.algorithm
    byteCount = other.byteCount
    let original = other.context
    context = Self.context { EVP_MD_CTX_copy_ex($0, original) }
  }

  /// A new context, which `setUp` initializes. `setUp` returns 1 on success.
  private static func context(_ setUp: (OpaquePointer) -> Int32) -> OpaquePointer {
    // The algorithm exists, and a context that is copied is valid. So this fails only without memory, as Swift's own
    // allocations do, which also end the process.
    guard let context = EVP_MD_CTX_new(), setUp(context) == 1 else { fatalError("libcrypto has no memory") }
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
  public func fork() -> RunningDigest { RunningDigest(copyOf: self) }

  /// The digest of all bytes so far. More bytes may follow. It is computed on a copy of the state
  /// (EVP_MD_CTX_copy_ex(3)).
  public func value() -> Digest {
    let copy = fork()
    var bytes = [UInt8](repeating: 0, count: algorithm.byteCount)
    guard EVP_DigestFinal_ex(copy.context, &bytes, nil) == 1, let digest = Digest(algorithm, bytes: bytes) else {
      // It fails only for a context that is not initialized or is finished, as above.
      preconditionFailure("libcrypto failed to finish a digest")
    }
    return digest
  }
}
