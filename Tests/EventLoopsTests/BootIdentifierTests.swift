// Tests that the boot of the machine is identified as the kernel does it.

import EventLoops
import Glibc
import Testing

@Suite("The identifier of the boot")
struct BootIdentifierTests {
  @Test("a boot has the identity that the kernel gives it, and the file with it is closed")
  func boot() async throws {
    let file = try #require(fopen("/proc/sys/kernel/random/boot_id", "r"))
    defer { fclose(file) }
    var text = [CChar](repeating: 0, count: 64)
    try #require(fgets(&text, 64, file) != nil)
    let identity = String(decoding: text.prefix { $0 > 0x20 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    #expect(identity.utf8.count == 36)
    // In a process without standard input, the file gets the descriptor 0.
    await #expect(processExitsWith: .success) { [identity = identity as String] in
      close(0)
      guard BootIdentifier.current == identity, fcntl(0, F_GETFD) < 0 else { exit(1) }
      exit(0)
    }
  }
}
