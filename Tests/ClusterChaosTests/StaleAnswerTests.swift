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
    let addresses = try cluster.serverAddresses.map { try ListenAddress($0) }
    let location = try create(addresses[0], "first")
    for address in addresses {
      #expect(try definite { try append(address, location, at: 0, "x") } == .init(status: 409, offset: 5))
      #expect(try definite { try head(address, "/.uploads/0123456789abcdef0123456789abcdef") }.status == 404)
    }

    // Only now, because a busy machine elects another leader now and then.
    let state = try BrokerLoop(BrokerOptions(servers: cluster.brokerURLs)).open("sluice", replicas: 3).state
    let leader = try #require(state.brokers.first.flatMap { names.firstIndex(of: $0) })
    let (old, current) = (addresses[leader], addresses[(leader + 1) % 3])
    try cluster.isolate(leader, true)
    // The others elect a leader after 4 to 9 seconds, and the one that is cut off gives up after 10 to 20.
    let deadline = MonotonicInstant.now + Self.patience
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
    let connected = MonotonicInstant.now + Self.patience
    var last = Answer(status: 0, offset: nil)
    while last != Answer(status: 409, offset: 12), MonotonicInstant.now < connected {
      last = try append(old, location, at: 0, "x")
      #expect(last.status == 503 || last.offset == 12, "\(last)")
    }
    #expect(last == .init(status: 409, offset: 12))
    #expect(try definite { try head(old, other) } == .init(status: 204, offset: 5))
  }

  /// Longer than an election on a busy machine.
  private static let patience = Duration.seconds(120)

  private struct Answer: Equatable {
    var status: Int
    var offset: Int?
  }

  /// Repeats a request while the brokers have no leader, because each broker that was too busy causes an election.
  private func definite(_ ask: () throws -> Answer) throws -> Answer {
    let deadline = MonotonicInstant.now + Self.patience
    var answer = try ask()
    while answer.status == 503, MonotonicInstant.now < deadline { answer = try ask() }
    return answer
  }

  private func create(_ address: ListenAddress, _ content: String) throws -> String {
    var location: String?
    let answer = try definite {
      let client = try RawClient(address)
      try client.request("POST", "/t.txt", ["Upload-Complete: ?0"], body: content)
      let response = try client.final().answer
      location = response["location"]
      return Answer(status: response.status, offset: nil)
    }
    return try #require(location, "\(answer)")
  }

  private func head(_ address: ListenAddress, _ location: String) throws -> Answer {
    let answer = try RawClient(address).head(location)
    return Answer(status: answer.status, offset: answer["upload-offset"].flatMap { Int($0) })
  }

  private func append(_ address: ListenAddress, _ location: String, at offset: Int, _ content: String) throws -> Answer
  {
    let client = try RawClient(address)
    try client.patch(location, at: offset, body: content)
    let answer = try client.final().answer
    return Answer(status: answer.status, offset: answer["upload-offset"].flatMap { Int($0) })
  }
}
