// libcrypto while the process exits: its own cleanup runs in exit(3), beside threads that still compute digests.

import Glibc
import Testing

@testable import Digests

@Suite("libcrypto")
struct CryptoLibraryTests {
  @Test("a digest that a thread begins while the process exits is the right one, and the process exits in peace")
  func whileExiting() async {
    await #expect(processExitsWith: .exitCode(7)) {
      // What is registered first runs last: behind the cleanup of a library that is used from now on.
      atexit {
        let digest = try? Digest(.sha256, of: Array("abc".utf8).span.bytes)
        _exit(digest?.hexadecimal.hasPrefix("ba7816bf") == true ? 7 : 1)
      }
      _ = try Digest(.sha512, of: Array("abc".utf8).span.bytes)
      exit(0)
    }
  }
}
