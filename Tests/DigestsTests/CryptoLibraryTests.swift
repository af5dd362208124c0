// libcrypto while the process exits: its own cleanup runs in exit(3), beside threads that still compute digests.

import CCrypto
import Glibc
import NetworkTesting
import Testing

@testable import Digests

@Suite("libcrypto")
struct CryptoLibraryTests {
  @Test("a digest that a thread begins while the process exits is correct, and the process exits normally")
  func whileExiting() async {
    await #expect(processExitsWith: .exitCode(7)) {
      // The handler that is registered first runs last, after the cleanup of any library that is used from now on.
      atexit {
        let digest = Digest(.sha256, of: Array("abc".utf8).span.bytes)
        _exit(digest.hexadecimal.hasPrefix("ba7816bf") ? 7 : 1)
      }
      _ = Digest(.sha512, of: Array("abc".utf8).span.bytes)
      exit(0)
    }
  }

  @Test("a system whose openssl.cnf excludes all algorithms has the same digests")
  func configuration() async throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write(
      "openssl.cnf",
      Array("openssl_conf = a\n[a]\nproviders = b\n[b]\nnull = c\n[c]\nactivate = 1\n".utf8))
    await #expect(processExitsWith: .exitCode(7)) { [path = path as String] in
      setenv("OPENSSL_CONF", path, 1)
      guard EVP_MD_fetch(nil, "SHA2-256", nil) == nil else { exit(1) }
      for (algorithm, start) in [(DigestAlgorithm.sha256, "ba7816bf"), (.sha512, "ddaf35a1")] {
        guard Digest(algorithm, of: Array("abc".utf8).span.bytes).hexadecimal.hasPrefix(start) else { exit(2) }
      }
      exit(7)
    }
  }
}
