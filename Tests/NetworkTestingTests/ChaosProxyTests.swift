// Without a fault, the chaos proxy is a proxy.

import EventLoops
import NetworkTesting
import PropertyTesting
import Testing

@Suite("A chaos proxy without a fault")
struct ChaosProxyTests {
  private let bench: ChaosBench
  private var server: WatchingServer { bench.server }
  private var proxy: ChaosProxy { bench.proxy }
  private var pattern: [UInt8] { bench.pattern }

  init() throws { bench = try ChaosBench() }

  @Test("it forwards requests and responses in a row on one connection, and both ends")
  func relays() throws {
    let client = try bench.client()
    for index in 0..<3 {
      try client.send(bench.patchHead(100_000, offset: index * 100_000))
      try client.send(Array(pattern[..<100_000]))
      #expect(try client.head()["Upload-Offset"] == "\((index + 1) * 100_000)")
    }
    client.shutdownWriting()
    #expect(try server.waitForEnd(0))
    #expect(try client.receive() == nil)
    try bench.waitUntilClosed(0)
    #expect(server.requests(0).count == 3)
    #expect(Array(server.content(0).suffix(100_000)) == Array(pattern[..<100_000]))
  }

  @Test("it serves many connections at once, and real programs")
  func manyAtOnce() throws {
    let store = try StreamServer()
    let proxy = try ChaosProxy(to: "127.0.0.1:\(store.port)")
    let directory = try TemporaryDirectory()
    let body = String(repeating: "a line that is stored once\n", count: 40_000)
    let file = try directory.write("body", body)
    let programs = try (0..<16).map { index in
      try TestProcess(
        "curl",
        ["-sS", "-f", "-T", index.isMultiple(of: 2) ? file : "-", "\(proxy.url)/curl\(index).txt"], input: .file(file))
    }
    for program in programs { #expect(try program.wait() == 0, "\(program.errors)") }
    let names = store.directory.names
    #expect(names.count == 16)
    for name in names { #expect(try store.directory.contents(name) == Array(body.utf8), "\(name)") }
  }

  @Test("it buffers at most its limit of a stream if the server does not read")
  func bounded() throws {
    let deaf = try ScriptedServer(receiveBuffer: 64 << 10) { connection, _ in _ = connection.waitForEnd() }
    let proxy = try ChaosProxy(to: String(deaf.url.dropFirst("http://".count)))
    let client = try ServerConnection(connectingTo: proxy.address)
    try client.send(bench.patchHead(100_000_000))
    let taken = client.sendWithoutWaiting(upTo: 100_000_000, patience: .milliseconds(300))
    // The proxy does not control the client's own send buffer and the server's receive buffer.
    #expect(try taken <= ChaosProxy.bytesHeld() + client.sendBufferCapacity + 128 << 10, "\(taken)")
    client.reset()
  }

  @Test("it resets the client while no server exists, and serves again when it does")
  func unreachable() throws {
    let port = try freePort()
    let proxy = try ChaosProxy(to: "127.0.0.1:\(port)")
    let early = try ServerConnection(connectingTo: proxy.address)
    #expect(try !bench.endsOrderly(early))
    let store = try StreamServer(listen: "127.0.0.1:\(port)")
    let late = try ServerConnection(connectingTo: proxy.address)
    try late.send("PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok")
    #expect(try late.head().line.hasPrefix("HTTP/1.1 201"))
    withExtendedLifetime(store) {}
  }
}
