// Counts and quotas of two servers with one broker, against a model of what one server would answer.

import BrokerTesting
import EventLoops
import NetworkTesting
import PropertyTesting
import StreamServing
import Testing

@testable import LogServing
@testable import UploadServer

extension LogServer {
  /// What it knows of the uploads of all servers.
  var usage: LogUsage { get throws { try #require(server.shared.brokers).usage } }
}

@Suite("Limits that servers share")
struct SharedLimitTests {
  /// The SHA-256 of "alice" and of "bob".
  private static let tokens = """
    2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90 alice
    81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9 bob

    """

  /// What the log must have.
  private struct Model {
    struct Upload {
      var location: String
      var owner: String
      var offset: Int
      var length: Int?
    }
    var limits = UploadLimitsConfiguration()
    var uploads: [Upload] = []

    var bytes: Int { uploads.reduce(0) { $0 + $1.offset } }

    func room(_ owner: String) -> Int {
      let own = uploads.reduce(0) { $0 + ($1.owner == owner ? $1.offset : 0) }
      return min(
        limits.quota.map { Int($0) - bytes } ?? .max, limits.quotaPerClient.map { Int($0) - own } ?? .max)
    }

    /// The status of a creation that claims `count` bytes.
    func creation(_ owner: String, claiming count: Int) -> Int {
      if uploads.count >= limits.maximumCount { return 503 }
      if uploads.filter({ $0.owner == owner }).count >= limits.maximumCountPerClient ?? .max { return 503 }
      return room(owner) < max(count, 1) ? 507 : 201
    }
  }

  private final class Rig {
    let broker: TestBroker
    let change: (inout UploadServer.Configuration) -> Void
    var servers: [LogServer]

    init(_ change: @escaping (inout UploadServer.Configuration) -> Void) throws {
      (broker, self.change) = (try TestBroker(), change)
      let other = try LogServer(broker) {
        change(&$0)
        $0.threads = 2
      }
      servers = [try LogServer(broker, change), other]
    }

    /// Returns when both servers know what the model knows.
    func settle(_ model: Model) throws {
      for server in servers {
        let usage = try server.usage
        try waitUntil("\(usage.count) uploads of \(usage.bytes) bytes are \(model.uploads.count) of \(model.bytes)") {
          server.server.isReady && usage.count == model.uploads.count && usage.bytes == model.bytes
        }
      }
    }
  }

  @Test(
    "each server answers as if it were the only one, through restarts of servers and brokers",
    arguments: Seed.several(3))
  func likeOne(_ seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    let tokens = try directory.write("tokens", Self.tokens)
    var limits = UploadLimitsConfiguration()
    limits.maximumCount = 5
    limits.maximumCountPerClient = random.chance(70) ? 3 : nil
    limits.quota = random.chance(70) ? 2000 : nil
    limits.quotaPerClient = random.chance(70) ? 1200 : nil
    var model = Model(limits: limits)
    let rig = try Rig {
      $0.uploads = limits
      $0.tokenFile = tokens
    }
    for step in 0..<60 {
      try self.step(rig, &model, &random, "step \(step)")
      try rig.settle(model)
    }
  }

  @Test("an interrupted plain stream counts at every server, and its continuation may not exceed the quota")
  func plainStream() throws {
    let rig = try Rig {
      $0.uploads.quota = 100
      $0.uploads.maximumCount = 1
    }
    let client = try rig.servers[0].connect()
    try client.send("PUT /t HTTP/1.1\r\nHost: h\r\nStream-ID: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    try client.sendChunk(String(repeating: "x", count: 60))
    client.disconnect()
    try rig.settle(Model(uploads: [.init(location: "", owner: "", offset: 60)]))
    /// The status of a request at the other server.
    func status(_ id: String, offset: Int, count: Int) throws -> Int {
      let client = try rig.servers[1].connect()
      let lines = ["Stream-ID: \(id)", "Stream-Offset: \(offset)"]
      try client.request("PUT", "/t", version: nil, lines, body: String(repeating: "x", count: count))
      return try client.final().answer.status
    }
    #expect(try status("b", offset: 0, count: 1) == 503, "one upload is unfinished")
    #expect(try status("a", offset: 60, count: 41) == 507)
    // Content of unknown length is stored as far as it fits, and is not complete.
    let chunked = try rig.servers[1].connect()
    try chunked.request("PUT", "/t", version: nil, ["Stream-ID: a", "Stream-Offset: 60"], chunked: true)
    try chunked.sendChunk(String(repeating: "x", count: 41))
    try chunked.send("0\r\n\r\n")
    let answer = try chunked.final().answer
    #expect(answer.status == 507 && answer["stream-offset"] == "100", "\(answer)")
    // Repeated bytes take no space.
    #expect(try status("a", offset: 50, count: 50) == 200)
    try rig.settle(Model())
    #expect(try status("b", offset: 0, count: 100) == 201)
  }

  private func step(
    _ rig: Rig, _ model: inout Model, _ random: inout SplitMix64, _ what: Comment
  ) throws {
    let server = Int.random(in: 0...1, using: &random)
    let owner = random.chance(50) ? "alice" : "bob"
    let credential = "Authorization: Bearer \(owner)"
    let index = model.uploads.indices.filter { model.uploads[$0].owner == owner }.randomElement(using: &random)
    let client = try rig.servers[server].connect()
    let count = Int.random(in: 0...500, using: &random)
    let text = String(repeating: "x", count: count)
    switch Int.random(in: 0..<20, using: &random) {
    case 0..<7:
      let length = random.chance(50) ? count + Int.random(in: 0...900, using: &random) : nil
      let lines = [credential, "Upload-Complete: ?0"] + (length.map { ["Upload-Length: \($0)"] } ?? [])
      try client.request("POST", "/t", lines, body: text)
      let answer = try client.final().answer
      try #require(answer.status == model.creation(owner, claiming: max(length ?? 0, count)), what)
      guard answer.status == 201 else { break }
      model.uploads.append(
        .init(location: try #require(answer["location"]), owner: owner, offset: count, length: length))
    case 7..<9:
      // Without the protocol: it is over with its answer.
      try client.request("PUT", "/t", version: nil, [credential], body: text)
      try #require(try client.final().answer.status == model.creation(owner, claiming: count), what)
    case 9..<12:
      guard let index, model.uploads[index].length == nil else { break }
      try client.patch(model.uploads[index].location, at: model.uploads[index].offset, [credential], body: text)
      let answer = try client.final().answer
      let fits = count <= model.room(owner)
      try #require(answer.status == (fits ? 204 : 507), what)
      if fits { model.uploads[index].offset += count }
      #expect(answer["upload-offset"] == "\(model.uploads[index].offset)")
    case 12..<15:
      guard let index, model.uploads[index].length == nil, count > 0 else { break }
      try client.patch(
        model.uploads[index].location, at: model.uploads[index].offset, [credential], chunked: true)
      try client.sendChunk(text)
      try client.send("0\r\n\r\n")
      let answer = try client.final().answer
      let room = model.room(owner)
      try #require(answer.status == (count <= room ? 204 : 507), what)
      // The bytes that fit are stored.
      model.uploads[index].offset += min(count, room)
      #expect(answer["upload-offset"] == "\(model.uploads[index].offset)")
    case 15:
      guard let index, model.uploads[index].length ?? model.uploads[index].offset == model.uploads[index].offset else {
        break
      }
      try client.patch(
        model.uploads[index].location, at: model.uploads[index].offset, completes: true, [credential], body: "")
      try #require(try client.final().answer.status == 201, what)
      model.uploads.remove(at: index)
    case 16, 17:
      guard let index else { break }
      try client.request("DELETE", model.uploads[index].location, [credential])
      try #require(try client.final().answer.status == 204, what)
      model.uploads.remove(at: index)
    case 18: rig.servers[server] = try LogServer(rig.broker, rig.change)
    default:
      try rig.broker.kill()
      try rig.broker.start()
    }
  }

  @Test("an upload that is over makes room at its server at once, however it ends")
  func roomAtOnce() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker) {
      $0.uploads.maximumCount = 1
      $0.uploads.quota = 10
    }
    for _ in 0..<30 {
      var client = try server.connect()
      let completed = try server.create("12345")
      try client.patch(completed, at: 5, completes: true, body: "67890")
      #expect(try client.final().answer.status == 201)
      let cancelled = try server.create("1234567890")
      try client.request("DELETE", cancelled)
      #expect(try client.final().answer.status == 204)
      // Longer than was announced.
      let refused = try server.create("12345", ["Upload-Length: 6"])
      try client.patch(refused, at: 5, body: "67890")
      #expect(try client.final().answer.status == 400)
      client = try server.connect()
      try client.request("PUT", "/t", version: nil, body: "1234567890")
      #expect(try client.final().answer.status == 201)
    }
  }

  @Test("a server that begins accepts no upload before it knows those of the others", arguments: [1, 2])
  func firstRequest(_ threads: Int) throws {
    let broker = try TestBroker()
    let first = try LogServer(broker) { $0.uploads.maximumCount = 40 }
    for _ in 0..<40 { _ = try first.create("x") }
    for _ in 0..<8 {
      let server = try LogServer(broker) {
        $0.uploads.maximumCount = 40
        $0.threads = threads
      }
      for _ in 0..<threads {
        let client = try server.connect()
        try client.request("POST", "/t", ["Upload-Complete: ?0"], body: "x")
        #expect(try client.final().answer.status == 503)
      }
    }
  }

  @Test("many clients of three servers exceed a count by no more than what is under way")
  func tolerance() throws {
    let broker = try TestBroker()
    let servers = try (0..<3).map { _ in try LogServer(broker) { $0.uploads.maximumCount = 20 } }
    let accepted = Lock(0)
    let addresses = servers.map { $0.server.localAddresses[0] }
    let threads = try (0..<12).map { number in
      try NamedThread("client \(number)") {
        for _ in 0..<20 {
          guard let client = try? RawClient(addresses[number % 3]),
            (try? client.request("POST", "/t", ["Upload-Complete: ?0"], body: "x")) != nil,
            let answer = try? client.final().answer, answer.status == 201
          else { continue }
          accepted.withLock { $0 += 1 }
        }
      }
    }
    for thread in threads { thread.join() }
    let count = accepted.withLock { $0 }
    // Each client has one request under way, and 8 clients are other servers'.
    #expect((20...28).contains(count))
    for server in servers { try waitUntil("it knows all uploads") { try server.usage.count == count } }
  }

  @Test("a request that is slower than the least rate gets 408, and what came of it is stored")
  func leastRate() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker) {
      $0.uploads.minimumRate = 1_000_000
      $0.uploads.rateWindow = .seconds(1)
    }
    for version in [8, nil] {
      let client = try server.connect()
      let lines = version == nil ? [] : ["Upload-Complete: ?1"]
      try client.request("POST", "/t", version: version, lines, chunked: true)
      try client.sendChunk("slow")
      let (answer, interim) = try client.final()
      #expect(answer.status == 408)
      guard let location = interim.compactMap({ $0["location"] }).first else {
        #expect(version == nil)
        continue
      }
      #expect(try server.head(location)["upload-offset"] == "4")
      #expect(try broker.bytes(of: location) == Array("slow".utf8))
    }
  }

  @Test("a plain request that repeats stored bytes more slowly than the least rate gets 408", arguments: [true, false])
  func leastRateOfRepetition(isComplete: Bool) throws {
    let broker = try TestBroker()
    let server = try LogServer(broker) {
      $0.uploads.minimumRate = 1_000_000
      $0.uploads.rateWindow = .milliseconds(200)
    }
    let lines = ["Stream-ID: a", "Stream-Offset: 0"]
    let first = try server.connect()
    try first.request("POST", "/t", version: nil, lines, chunked: true)
    try first.sendChunk("stored")
    if isComplete {
      try first.send("0\r\n\r\n")
      #expect(try first.final().answer.status == 201)
    } else {
      #expect(try first.final().answer.status == 408)
    }
    let client = try server.connect()
    try client.request("POST", "/t", version: nil, lines, chunked: true)
    try client.sendChunk("st")
    #expect(try client.final().answer.status == 408)
  }

  @Test("responses state the lifetime of an upload")
  func announced() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker) {
      $0.uploads.maximumAge = .seconds(200)
      $0.finishAfter = .seconds(100)
    }
    let client = try server.connect()
    try client.request("OPTIONS", "/t")
    #expect(try client.final().answer["upload-limit"]?.contains("max-age=100") == true)
    for (lines, age) in [(["Upload-Length: 9"], 200), ([], 100)] {
      try client.request("POST", "/t", ["Upload-Complete: ?0"] + lines, body: "x")
      let answer = try client.final().answer
      #expect(answer["upload-limit"]?.contains("max-age=\(age)") == true, "\(answer)")
      let location = try #require(answer["location"])
      #expect(try client.head(location)["upload-limit"]?.contains("max-age=\(age)") == true)
    }
  }
}
