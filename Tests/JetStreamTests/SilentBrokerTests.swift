// Brokers that greet and then say nothing, beside real ones.

import BrokerTesting
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import JetStream

@Suite("Silent brokers")
struct SilentBrokerTests {
  /// Greets each client, and then only reads, until the client closes.
  private static func silentBroker(_ greeted: EventLog<Int>) throws -> ScriptedServer {
    try ScriptedServer { connection, number in
      let information = #"{"server_id":"X","version":"2.9.0","proto":1,"headers":true,"max_payload":1048576}"#
      try connection.send("INFO \(information)\r\n")
      greeted.append(number)
      _ = connection.readToEnd()
    }
  }

  @Test("an attempt to connect to a broker that only greets fails, and other connections are left alone")
  func first() throws {
    let greeted = try EventLog<Int>()
    let silent = try Self.silentBroker(greeted)
    let broker = try TestBroker("authorization { token: \"right\" }", jetStream: false)
    var options = BrokerOptions(servers: [broker.url])
    options.token = "right"
    let established = try BrokerConnection(options)
    // Another server of this process has a client with the port of the silent broker.
    let received = try EventLog<[UInt8]>()
    let server = try ScriptedServer { connection, _ in received.append(connection.readToEnd()) }
    let client = try connect(to: server.port, from: silent.port)
    options.servers.append("nats://127.0.0.1:\(silent.port)")
    (options.token, options.connectTimeout) = ("wrong", .milliseconds(200))
    let failures = try EventLog<BrokerError?>()
    let tried = options
    // libnats would never return.
    try NamedThread("test attempt") {
      do throws(BrokerError) {
        _ = try BrokerConnection(tried)
        failures.append(nil)
      } catch {
        failures.append(error)
      }
    }.detach()
    #expect(try failures.wait("the end of the attempt") { $0.first } != .some(nil))
    #expect(greeted.all.count == 1 && established.isConnected && established.reconnectCount == 0)
    #expect(write(client, "left alone", 10) == 10)
    close(client)
    #expect(try received.wait("the bytes of the client") { $0.first } == Array("left alone".utf8))
  }

  /// A socket with that local port, of another address than the silent broker's.
  private func connect(to port: UInt16, from localPort: UInt16) throws -> Int32 {
    let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    func call(
      _ operation: (Int32, UnsafePointer<sockaddr>, socklen_t) -> Int32, _ address: UInt32, _ port: UInt16
    ) -> Int32 {
      var address = sockaddr_in(
        sin_family: sa_family_t(AF_INET), sin_port: port.bigEndian, sin_addr: in_addr(s_addr: address.bigEndian),
        sin_zero: (0, 0, 0, 0, 0, 0, 0, 0))
      return withUnsafePointer(to: &address) {
        $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
          operation(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
        }
      }
    }
    guard call(bind, 0x7F00_0002, localPort) == 0, call(Glibc.connect, 0x7F00_0001, port) == 0 else {
      throw TestFailure("connecting from port \(localPort): \(String(cString: strerror(errno)))")
    }
    return descriptor
  }

  @Test("a lost connection is restored although another broker only greets")
  func later() throws {
    let greeted = try EventLog<Int>()
    let silent = try Self.silentBroker(greeted)
    let broker = try TestBroker(jetStream: false)
    var options = BrokerOptions(servers: [broker.url, "nats://127.0.0.1:\(silent.port)"])
    options.connectTimeout = .milliseconds(200)
    let connection = try BrokerConnection(options)
    // libnats asks the brokers in any order.
    let before = greeted.all.count
    try broker.kill()
    try greeted.wait("an attempt to connect to the silent broker") { $0.count > before ? true : nil }
    try broker.start()
    try waitUntil("the connection is restored") { connection.isConnected }
  }

  @Test(
    "the port of a broker is read from its URL",
    arguments: [
      ("nats://a", 4222), ("nats://a:4223", 4223), ("tls://u:p@b.example:1", 1), ("nats://[::1]", 4222),
      ("nats://[fe80::1]:77", 77),
    ])
  func port(url: String, port: Int) { #expect(Int(WatchedConnection.port(ofServer: url)) == port) }
}
