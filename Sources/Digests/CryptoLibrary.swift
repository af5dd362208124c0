// libcrypto for as long as the process lives. By itself it frees its tables within exit(3), while other threads still
// compute digests or encrypt: these then crash. And its algorithms, independent of the system's configuration.

internal import CCrypto

/// The process's libcrypto.
public enum CryptoLibrary {
  /// Once per process. OPENSSL_init_crypto(3): the first call decides.
  private static let isKept =
    OPENSSL_init_crypto(UInt64(OPENSSL_INIT_NO_ATEXIT), nil) == 1

  /// Keeps libcrypto usable until the process is gone. Call it before anything else uses libcrypto, such as libcurl.
  ///
  /// ``RunningDigest`` calls it.
  public static func keepUntilExit() { _ = isKept }

  /// The provider that is built into libcrypto, in a library context of its own (OSSL_LIB_CTX(3)).
  ///
  /// No openssl.cnf applies to it. A policy for TLS there could exclude the algorithms of integrity fields.
  private nonisolated(unsafe) static let context: OpaquePointer = {
    keepUntilExit()
    // The provider is a part of libcrypto, and a new library context reads no openssl.cnf. Only missing memory makes
    // this fail.
    guard let context = OSSL_LIB_CTX_new(), OSSL_PROVIDER_load(context, "default") != nil else {
      fatalError("libcrypto has no memory")
    }
    return context
  }()

  /// The algorithm of that name (EVP_MD_fetch(3)), for as long as the process lives.
  static func messageDigest(_ name: String) -> OpaquePointer {
    // The provider has SHA-256 and SHA-512, so this fails only without memory, too.
    guard let digest = EVP_MD_fetch(context, name, nil) else { fatalError("libcrypto has no memory for \(name)") }
    return digest
  }
}
