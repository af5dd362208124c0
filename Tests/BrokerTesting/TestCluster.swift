// Several real brokers that replicate the messages of a stream among each other.

internal import Glibc
package import JetStream
internal import NetworkTesting

/// Brokers of one cluster, or a single broker. They end when the object is released.
package final class TestCluster: Sendable {
  package let brokers: [TestBroker]

  /// Starts the brokers, and returns when they can store a stream with as many replicas.
  package init(_ count: Int) throws {
    guard count > 1 else {
      brokers = [try TestBroker()]
      return
    }
    let ports = try Self.freePorts(count)
    let routes = ports.map { "\"nats://127.0.0.1:\($0)\"" }.joined(separator: ", ")
    brokers = try ports.enumerated().map { index, port in
      try TestBroker(
        "cluster { name: test, listen: \"127.0.0.1:\(port)\", routes: [\(routes)] }", name: "n\(index + 1)")
    }
    let loop = try BrokerLoop(options)
    try waitUntil("the brokers are a cluster") {
      if (try? loop.open("probe", replicas: count)) != nil { return true }
      poll(nil, 0, 100)
      return false
    }
    let answer: String = try loop.wait("the removal") { client, done in client.ask("STREAM.DELETE.probe", "", done) }
    guard answer.contains("success") else { throw TestFailure(answer) }
  }

  /// How to reach any of them.
  package var options: BrokerOptions { BrokerOptions(servers: brokers.map(\.url)) }

  /// Ports that are free now. The kernel does not reassign them for a while.
  private static func freePorts(_ count: Int) throws -> [UInt16] {
    var listeners: [Int32] = []
    defer { for listener in listeners { close(listener) } }
    return try (0..<count).map { _ in
      let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
      guard listener >= 0 else { throw TestFailure("socket: \(String(cString: strerror(errno)))") }
      listeners.append(listener)
      var address = sockaddr_in()
      address.sin_family = sa_family_t(AF_INET)
      address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
      var length = socklen_t(MemoryLayout<sockaddr_in>.size)
      let isBound = withUnsafeMutablePointer(to: &address) { pointer in
        pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer in
          bind(listener, pointer, length) == 0 && getsockname(listener, pointer, &length) == 0
        }
      }
      guard isBound else { throw TestFailure("no port") }
      return UInt16(bigEndian: address.sin_port)
    }
  }
}
