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
    let ports = try (0..<count).map { _ in try freePort() }
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
}
