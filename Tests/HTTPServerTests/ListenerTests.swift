// What a listener gives back when it ends.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import HTTPServer

@Suite("A listener") struct ListenerTests {
  @Test(
    "a listener that ends closes the connection that waits for a descriptor, and none of anybody else",
    arguments: [true, false])
  func endWhileShort(stops: Bool) throws {
    let loop = try EventLoop()
    let address = try ListenAddress("127.0.0.1:0")
    var listener: Listener? = try Listener(
      address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
    listener?.descriptorLimit = { 0 }
    listener?.exhausted = { _ in loop.stop() }
    try listener?.start()
    let client = try RawClient(try #require(listener).address)
    loop.run()
    #expect(!client.hasAnswer)
    if stops { listener?.stop() }
    // These take the numbers that have become free.
    let files = (0..<16).map { _ in open("/dev/null", O_RDONLY | O_CLOEXEC) }
    listener = nil
    #expect(client.isClosedByServer())
    #expect(files.allSatisfy { fcntl($0, F_GETFD) >= 0 })
    for file in files { close(file) }
  }
}
