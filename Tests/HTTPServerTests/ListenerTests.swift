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

  @Test("the path of a server that accepts no connections is in use, even if its queue is full")
  func fullQueue() throws {
    let directory = try TemporaryDirectory()
    let address = ListenAddress.unix(path: directory.path + "/socket")
    let target = try SocketAddress.resolve(address)[0]
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
    var sockets = [Glibc.socket(AF_UNIX, type, 0)]
    defer { for socket in sockets { close(socket) } }
    let server = sockets[0]
    let bound = target.withPointer { Glibc.bind(server, $0, $1) }
    try #require(bound == 0 && Glibc.listen(server, 0) == 0)
    var isFull = false
    while !isFull {
      let client = Glibc.socket(AF_UNIX, type, 0)
      sockets.append(client)
      isFull = target.withPointer { Glibc.connect(client, $0, $1) } != 0
    }
    let loop = try EventLoop()
    let results = try EventLog<ListenError?>()
    // A listener that waited for a place in the queue would never end, and the test neither.
    try NamedThread("test listener") {
      do {
        _ = try Listener(address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
        results.append(nil)
      } catch {
        results.append(error as? ListenError)
      }
    }.detach()
    let result = try results.wait("the end of the attempt to listen", within: .seconds(30)) { $0.first }
    #expect(result == ListenError.portTaken(address: "\(address)", owner: nil))
    #expect(access(directory.path + "/socket", F_OK) == 0)
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

  /// The socket of this process that listens at an address.
  private func socket(listeningAt address: ListenAddress) throws -> Int32 {
    let found = (Int32(3)..<4096).first { descriptor in
      var (listens, length) = (Int32(0), socklen_t(MemoryLayout<Int32>.size))
      guard getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0, listens != 0 else {
        return false
      }
      var bound = SocketAddress()
      _ = bound.withMutablePointer { getsockname(descriptor, $0, $1) }
      return bound.numeric == address
    }
    return try #require(found)
  }

  @Test("a listener whose socket cannot be watched at its start accepts the waiting connection after a pause")
  func unwatched() throws {
    let loop = try EventLoop()
    let address = try ListenAddress("127.0.0.1:0")
    let listener = try Listener(address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
    var accepted: [Int32] = []
    listener.accepted = { descriptor, _ in
      accepted.append(descriptor)
      loop.stop()
    }
    // The kernel refuses a second registration.
    try loop.register(try socket(listeningAt: listener.address), .readable) { _ in }
    #expect(throws: SystemError.self) { try listener.start() }
    let client = try RawClient(listener.address)
    loop.schedule(after: .seconds(60)) { loop.stop() }
    loop.run()
    #expect(accepted.count == 1)
    for descriptor in accepted { close(descriptor) }
    client.disconnect()
  }

  @Test("metrics whose socket cannot be watched at the start are served after a pause, and the reason is reported once")
  func unwatchedMetrics() throws {
    let loop = try EventLoop()
    let reasons = Lock<[String]>([])
    let listener = try MetricsListener(
      listen: try ListenAddress("127.0.0.1:0"), on: loop, failed: { reason in reasons.withLock { $0.append(reason) } },
      makePage: { _ in })
    let address = listener.localAddresses[0]
    try loop.register(try socket(listeningAt: address), .readable) { _ in }
    try listener.start()
    let thread = try NamedThread("test metrics") { loop.run() }
    let client = try RawClient(address)
    try client.send("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    let answer = try? client.answer()
    listener.stop()
    loop.stop()
    thread.join()
    #expect(answer?.status == 200)
    #expect(reasons.withLock { $0.count } == 1)
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
