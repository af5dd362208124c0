// A short run with servers and brokers that are killed. `make chaos CHAOS=--cluster` is the long one.

import ClusterChaosTesting
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

  @Test(
    "two clients append to one upload through two servers, one with false offsets, and each byte belongs to its request"
  )
  func rivals() throws {
    print(try RivalRun(seed: 20_261_125, rounds: 100).perform())
  }
}
