// The resources that a listener releases when it ends.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import HTTPServer

@Suite("A listener") struct ListenerTests {
  @Test(
    "a listener that ends closes only the connection that waits for a descriptor",
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
    // These reuse the descriptors that were freed.
    let files = (0..<16).map { _ in open("/dev/null", O_RDONLY | O_CLOEXEC) }
    listener = nil
    #expect(client.isClosedByServer())
    #expect(files.allSatisfy { fcntl($0, F_GETFD) >= 0 })
    for file in files { close(file) }
  }

  /// What is at the path of a listener's socket when it ends.
  enum Found: CaseIterable { case own, file, otherSocket, nothing }

  @Test("a listener that ends removes its own socket file, and nothing else", arguments: Found.allCases, [true, false])
  func socketFile(_ found: Found, stops: Bool) throws {
    let directory = try TemporaryDirectory()
    let path = directory.path + "/socket"
    let loop = try EventLoop()
    let address = ListenAddress.unix(path: path)
    func listen() throws -> Listener {
      try Listener(address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
    }
    var listener: Listener? = try listen()
    // The moved socket keeps its inode, which no other file can have.
    if found != .own { try #require(rename(path, path + ".old") == 0) }
    if found == .file { try directory.write("socket", Array("precious".utf8)) }
    let other = try found == .otherSocket ? listen() : nil
    if stops { listener?.stop() }
    listener = nil
    #expect((access(path, F_OK) == 0) == (found == .file || found == .otherSocket))
    withExtendedLifetime(other) {}
  }

  @Test("a listener without descriptors accepts the waiting connection after a pause")
  func endOfPause() throws {
    let loop = try EventLoop()
    let address = try ListenAddress("127.0.0.1:0")
    let listener = try Listener(address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
    var limit: Int32 = 0
    var accepted: [Int32] = []
    listener.descriptorLimit = { limit }
    listener.exhausted = { _ in limit = .max }
    listener.accepted = { descriptor, _ in
      accepted.append(descriptor)
      loop.stop()
    }
    try listener.start()
    let client = try RawClient(listener.address)
    loop.run()
    #expect(accepted.count == 1 && !client.hasAnswer)
    for descriptor in accepted { close(descriptor) }
  }

  @Test("the kernel detects within two minutes that a client's machine is gone, and delays no response")
  func options() throws {
    let loop = try EventLoop()
    let address = try ListenAddress("127.0.0.1:0")
    var options = Listener.Options()
    options.maximumSegmentSize = 700
    let listener = try Listener(address, try SocketAddress.resolve(address)[0], options: options, loop: loop)
    var connection: Int32 = -1
    listener.accepted = { descriptor, _ in
      connection = descriptor
      loop.stop()
    }
    try listener.start()
    let client = try RawClient(listener.address)
    loop.run()
    defer { close(connection) }
    func value(_ level: Int32, _ option: Int32) -> Int32 {
      var (value, length) = (Int32(-1), socklen_t(MemoryLayout<Int32>.size))
      getsockopt(connection, level, option, &value, &length)
      return value
    }
    let tcp = Int32(IPPROTO_TCP)
    #expect(value(SOL_SOCKET, SO_KEEPALIVE) == 1)
    #expect(value(tcp, TCP_KEEPIDLE) + value(tcp, TCP_KEEPINTVL) * value(tcp, TCP_KEEPCNT) == 120)
    #expect(value(tcp, TCP_NODELAY) == 1)
    #expect(value(tcp, TCP_MAXSEG) <= 700)
    client.disconnect()
  }
}
