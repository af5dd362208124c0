// A short run with servers and brokers that are killed. `make chaos CHAOS=--cluster` is the long one.

import BrokerTesting
import ClusterChaosTesting
import JetStream
import NetworkTesting
import Testing

@Suite("A cluster", .serialized)
struct ClusterChaosTests {
  @Test("5 faults of servers and brokers: each stream is stored completely and once, and every response was true")
  func short() throws {
    var options = ClusterChaosRun.Options(seed: 20_261_125, faults: 5)
    options.streams = 20
    options.pace.interval = .milliseconds(100)
    options.pace.rollOver = .milliseconds(700)
    options.kinds = [.kill, .drain]
    // HAProxy is not installed everywhere, so the recording proxy sends each connection to another server.
    options.cluster.hasProxy = false
    let report = try ClusterChaosRun(options).perform()
    print(report)
    #expect(report.faults == 5)
  }

  @Test("without HAProxy, a run ends at once with an error that states how to install it")
  func missingProxy() throws {
    var options = ClusterChaosRun.Options(seed: 1, faults: 1)
    options.cluster.proxyPrograms = ["/nonexistent/haproxy"]
    let error = try #require(throws: TestFailure.self) { _ = try ClusterChaosRun(options) }
    #expect(error.description.contains("apt-get install haproxy"), "\(error)")
    #expect(error.description.contains("make chaos CHAOS=--cluster"), "\(error)")
  }

  @Test(
    "without nats-server, a run ends at once with an error that states how to install it",
    arguments: ["", "/nonexistent/nats-server"])
  func missingBroker(_ program: String) throws {
    var options = ClusterChaosRun.Options(seed: 1, faults: 1)
    (options.cluster.hasProxy, options.cluster.brokerPrograms) = (false, [program])
    let error = try #require(throws: TestFailure.self) { _ = try ClusterChaosRun(options) }
    #expect(error.description.contains("\"\(program)\" is not installed"), "\(error)")
    #expect(error.description.contains("make chaos CHAOS=--cluster"), "\(error)")
  }

  @Test(
    "two clients append to one upload through two servers, one with false offsets, and each byte belongs to its request"
  )
  func rivals() throws {
    print(try RivalRun(seed: 20_261_125, rounds: 100).perform())
  }

  @Test("of two publishes after the same message, one is stored, even while replicas are behind", arguments: [1, 3])
  func fencing(brokers: Int) throws {
    var options = Cluster.Options()
    (options.brokers, options.servers, options.hasProxy) = (brokers, 0, false)
    let cluster = try Cluster(options)
    let loop = try BrokerLoop(BrokerOptions(servers: cluster.brokerURLs))
    var opened: TestStream?
    // New brokers first elect a leader.
    for _ in 0..<10 where opened == nil { opened = try? loop.open("audio", replicas: brokers) }
    let stream = try #require(opened)
    var (last, stored): (UInt64, [[UInt8]]) = (0, [])
    for round: UInt8 in 0..<100 {
      let rivals = [[round, 0], [round, 1]]
      let results = try stream.publish(all: rivals.map { MessageContent(payload: $0) }, to: "a", after: last)
      let sequences = results.map { try? $0.get() }
      #expect(sequences.compactMap(\.self).count == 1, "round \(round): \(results)")
      for (sequence, rival) in zip(sequences, rivals) {
        guard let sequence else { continue }
        last = max(last, sequence)
        stored.append(rival)
      }
    }
    #expect(try stream.messages(of: "a").map(\.content.payload) == stored)
  }
}
