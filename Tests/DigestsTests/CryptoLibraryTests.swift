// libcrypto while the process exits: its own cleanup runs in exit(3), beside threads that still compute digests.

import Glibc
import Testing

@testable import Digests

@Suite("libcrypto")
struct CryptoLibraryTests {
  @Test("a digest that a thread begins while the process exits is correct, and the process exits normally")
  func whileExiting() async {
    await #expect(processExitsWith: .exitCode(7)) {
      // The handler that is registered first runs last, after the cleanup of any library that is used from now on.
      atexit {
        let digest = try? Digest(.sha256, of: Array("abc".utf8).span.bytes)
        _exit(digest?.hexadecimal.hasPrefix("ba7816bf") == true ? 7 : 1)
      }
      _ = try Digest(.sha512, of: Array("abc".utf8).span.bytes)
      exit(0)
    }
  }
}
