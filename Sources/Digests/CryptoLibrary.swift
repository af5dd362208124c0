// libcrypto for as long as the process lives. By itself it frees its tables within exit(3), while other threads still
// compute digests or encrypt: these then crash.

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
}
