// A broker that was cut off still acts as the leader for a few seconds. Its answers lack what the others have stored
// since.

import BrokerTesting
import ClusterChaosTesting
import EventLoops
import HTTPServer
import JetStream
import NetworkTesting
import Testing

@Suite("A broker that no longer leads", .serialized)
struct StaleAnswerTests {
  @Test("its old answers reach no client: neither an old offset in a 409, nor a 404 for an upload that exists")
  func cutOff() throws {
    var options = Cluster.Options()
    (options.hasProxy, options.hasPairs) = (false, true)
    let cluster = try Cluster(options)
    let names = cluster.brokers.map(\.name)
    let state = try BrokerLoop(BrokerOptions(servers: cluster.brokerURLs)).open("sluice", replicas: 3).state
    let leader = try #require(state.brokers.first.flatMap { names.firstIndex(of: $0) })
    let addresses = try cluster.serverAddresses.map { try ListenAddress($0) }
    let (old, current) = (addresses[leader], addresses[(leader + 1) % 3])
    let location = try create(current, "first")
    #expect(try append(current, location, at: 0, "x") == .init(status: 409, offset: 5))
    #expect(try append(old, location, at: 0, "x") == .init(status: 409, offset: 5))
    #expect(try RawClient(old).head("/.uploads/0123456789abcdef0123456789abcdef").status == 404)

    try cluster.isolate(leader, true)
    // The others elect a leader after 4 to 9 seconds, and the one that is cut off gives up after 10 to 20.
    let deadline = MonotonicInstant.now + .seconds(40)
    while try append(current, location, at: 5, " second").offset != 12 {
      try #require(MonotonicInstant.now < deadline, "no append was accepted")
    }
    let other = try create(current, "other")
    // Asked at once, one after the other on their own connections, because each waits for a message to be stored.
    let lost = try RawClient(old)
    try lost.request("HEAD", other)
    let answer = try append(old, location, at: 0, "x")
    #expect(answer.status == 503 || answer.offset == 12, "\(answer)")
    let found = try lost.final(withBody: false).answer.status
    #expect(found == 503 || found == 204, "\(found)")

    try cluster.isolate(leader, false)
    let connected = MonotonicInstant.now + .seconds(60)
    var last = Answer(status: 0, offset: nil)
    while last != Answer(status: 409, offset: 12), MonotonicInstant.now < connected {
      last = try append(old, location, at: 0, "x")
      #expect(last.status == 503 || last.offset == 12, "\(last)")
    }
    #expect(last == .init(status: 409, offset: 12))
    #expect(try RawClient(old).head(other)["upload-offset"] == "5")
  }

  private struct Answer: Equatable {
    var status: Int
    var offset: Int?
  }

  private func create(_ address: ListenAddress, _ content: String) throws -> String {
    let client = try RawClient(address)
    try client.request("POST", "/t.txt", ["Upload-Complete: ?0"], body: content)
    let answer = try client.final().answer
    return try #require(answer["location"], "\(answer)")
  }

  private func append(_ address: ListenAddress, _ location: String, at offset: Int, _ content: String) throws -> Answer
  {
    let client = try RawClient(address)
    try client.patch(location, at: offset, body: content)
    let answer = try client.final().answer
    return Answer(status: answer.status, offset: answer["upload-offset"].flatMap { Int($0) })
  }
}
