// The age of uploads that several servers share: a real broker, and servers that come and go.

import BrokerTesting
import EventLoops
import JetStream
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Testing

@testable import LogServing
@testable import UploadServer

@Suite("Expiry of shared uploads")
struct SharedExpiryTests {
  private static func short(_ seconds: Int) -> (inout UploadServer.Configuration) -> Void {
    {
      $0.uploads.maximumAge = .seconds(seconds)
      $0.finishAfter = .seconds(seconds)
    }
  }

  private static func stored(_ broker: TestBroker, _ location: String) throws -> [StoredMessage] {
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    return try stream.messages(of: String(location.dropFirst("/.uploads/".count)))
  }

  private static func isEnd(_ event: ServerEvent) -> Bool { event.kind == .expired || event.kind == .closed }

  /// An upload that nobody continues, and its end.
  private static func awaitLifetime(_ server: LogServer, _ all: [LogServer], _ id: String) throws {
    _ = try server.create("x", ["Stream-ID: \(id)"])
    try waitUntil("\(id) is closed") { all.contains { $0.events.all.contains { $0.stream == id && isEnd($0) } } }
  }

  @Test("an upload that nobody continues is ended once, by one of three servers, and bytes of a live stream stay")
  func once() throws {
    let broker = try TestBroker()
    let servers = try (0..<3).map { _ in try LogServer(broker, Self.short(1)) }
    var (sized, live, empty): ([String], [String], [String]) = ([], [], [])
    for number in 0..<8 {
      let server = servers[number % 3]
      sized.append(try server.create("sized", ["Upload-Length: 50", "Stream-ID: s\(number)"]))
      live.append(try server.create("live", ["Stream-ID: l\(number)"]))
      empty.append(try server.create("", ["Stream-ID: e\(number)"]))
      // A live stream that gets a length with its last request, which breaks off.
      let last = try server.create("late", ["Stream-ID: n\(number)"])
      let client = try servers[(number + 1) % 3].connect()
      try client.patch(last, at: 4, completes: true, ["Content-Length: 9"])
      try client.awaitProgress(4)
      try client.send("more")
      try client.awaitProgress(8)
      client.disconnect()
      live.append(last)
    }
    let all = sized + live + empty
    try waitUntil("all are over") {
      servers.reduce(0) { $0 + $1.events.all.filter(Self.isEnd).count } >= all.count
    }
    for location in all {
      for (number, server) in servers.enumerated() {
        let client = try server.connect()
        let version = number == 0 ? 8 : 6
        try client.request("HEAD", location, version: version)
        #expect(try client.final(withBody: false).answer.status == (version == 8 ? 410 : 404))
      }
      let isLive = live.contains(location)
      try waitUntil("its bytes are removed") {
        let messages = try Self.stored(broker, location)
        return isLive || messages.count == 1
      }
      let ends = try Self.stored(broker, location).compactMap { $0.content["Sluice-Ended"] }
      #expect(ends == [isLive ? "interrupted" : "expired"])
    }
    for (index, location) in live.enumerated() {
      #expect(try broker.bytes(of: location) == Array((index % 2 == 0 ? "live" : "latemore").utf8))
    }
    // Nobody has ended one twice.
    let events = servers.flatMap { $0.events.all.filter(Self.isEnd) }
    #expect(events.count == all.count && Set(events.compactMap(\.stream)).count == all.count)
    #expect(events.filter { $0.kind == .closed }.count == live.count)
    for server in servers { try waitUntil("nothing is open") { try server.usage.count == 0 } }
  }

  @Test("a request in progress keeps its upload, even if it sends nothing for several lifetimes")
  func silentRequest() throws {
    let broker = try TestBroker()
    let servers = try (0..<2).map { _ in try LogServer(broker, Self.short(2)) }
    let live = try servers[1].create("live", ["Stream-ID: busy-live"])
    let sized = try servers[1].create("size", ["Upload-Length: 8", "Stream-ID: busy-sized"])
    let clients = try [live, sized].map { location in
      let client = try servers[0].connect()
      try client.patch(location, at: 4, chunked: true)
      try client.awaitProgress(4)
      return client
    }
    for number in 0..<3 { try Self.awaitLifetime(servers[1], servers, "canary-\(number)") }
    for client in clients {
      try client.sendChunk("more")
      try client.awaitProgress(8)
    }
    #expect(!servers.contains { $0.events.all.contains { Self.isEnd($0) && $0.stream?.hasPrefix("busy") == true } })
    #expect(try broker.bytes(of: live) == Array("livemore".utf8))
  }

  @Test("a live stream that gets a length lives as long as a live stream, even at a server that begins later")
  func lateLength() throws {
    let broker = try TestBroker()
    let change = { (configuration: inout UploadServer.Configuration) in
      configuration.uploads.maximumAge = .seconds(1)
      configuration.finishAfter = .seconds(3600)
    }
    var server = try LogServer(broker, change)
    let location = try server.create("late", ["Stream-ID: late"])
    let client = try server.connect()
    try client.patch(location, at: 4, completes: true, ["Content-Length: 9"])
    try client.awaitProgress(4)
    try client.send("more")
    try client.awaitProgress(8)
    client.disconnect()
    for number in 0..<2 {
      server = try LogServer(broker, change)
      _ = try server.create("x", ["Upload-Length: 9", "Stream-ID: canary-\(number)"])
      try server.events.first("the end of a canary") { $0.stream == "canary-\(number)" && Self.isEnd($0) }
      _ = try server.create("x", ["Upload-Length: 9", "Stream-ID: next-\(number)"])
      try server.events.first("the end of the next one") { $0.stream == "next-\(number)" && Self.isEnd($0) }
    }
    #expect(try server.head(location)["upload-offset"] == "8")
    #expect(try broker.bytes(of: location) == Array("latemore".utf8))
  }

  @Test("a server that ends an upload does so behind the last message that it has seen, and no other")
  func staleView() throws {
    let broker = try TestBroker()
    let server = try LogServer(broker, Self.short(3600))
    let location = try server.create("one", ["Upload-Length: 50"])
    let token = String(location.dropFirst("/.uploads/".count))
    let first = try #require(try Self.stored(broker, location).last)
    let client = try server.connect()
    try client.patch(location, at: 3, body: "two")
    #expect(try client.final().answer.status == 204)
    // A server whose view is behind, and whose clock shows that the time is over.
    var ended = try #require(LogEntry(first.content))
    (ended.offset, ended.count, ended.deactivation) = (ended.end, 0, .expired)
    let message = ended.message([], behind: ended.link)
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    guard case .failure(let error) = try stream.publish(message, to: token, after: first.sequence) else {
      throw TestFailure("the broker took it")
    }
    #expect(error.isWrongLastSequence)
    #expect(try server.head(location)["upload-offset"] == "6")
  }

  @Test("an upload ages although no server lives as long as an upload")
  func restarts() throws {
    let broker = try TestBroker()
    var server: LogServer? = try LogServer(broker, Self.short(4))
    let location = try #require(try server?.create("live", ["Stream-ID: old"]))
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    // Each server lives for a few ticks: a quarter of a lifetime.
    for life in 0..<40 {
      for _ in 0..<4 {
        let before = try stream.lastMessage(of: "served")?.sequence
        try waitUntil("life \(life) has another tick, or the upload is over") {
          let last = try stream.lastMessage(of: "served")?.sequence
          return last != before || server?.events.all.contains(where: Self.isEnd) == true
        }
      }
      if server?.events.all.contains(where: Self.isEnd) == true { break }
      server = nil
      server = try LogServer(broker, Self.short(4))
    }
    #expect(try Self.stored(broker, location).last?.content["Sluice-Ended"] == "interrupted")
    #expect(try stream.messages(of: "served").count <= 2)
  }

  @Test(
    "a foreign message on the subject of the ticks stops them neither at a running server nor at a new one",
    arguments: [false, true])
  func foreignTick(_ startsAgain: Bool) throws {
    let broker = try TestBroker()
    var server: LogServer? = try LogServer(broker, Self.short(16))
    _ = try server?.create("live", ["Stream-ID: ticking"])
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    try waitUntil("there is a tick") { try stream.lastMessage(of: "served") != nil }
    if startsAgain { server = nil }
    var foreign: UInt64 = 0
    try waitUntil("a foreign message is behind the last tick") {
      let last = try stream.lastMessage(of: "served")?.sequence ?? 0
      // The server may publish a tick at the same time.
      guard case .success(let sequence) = try stream.publish(.init(payload: [1]), to: "served", after: last) else {
        return false
      }
      foreign = sequence
      return true
    }
    if startsAgain { server = try LogServer(broker, Self.short(16)) }
    try waitUntil("there is a tick behind the foreign message") {
      guard let last = try stream.lastMessage(of: "served") else { return false }
      return last.sequence > foreign && last.content["Sluice-Served"] != nil
    }
    withExtendedLifetime(server) {}
  }

  @Test(
    "the bytes of a discarded upload are removed although the server that has ended it died",
    arguments: [Deactivation.expired, .cancelled, .refuted], [false, true])
  func leftBytes(_ cause: Deactivation, hasOtherServer: Bool) throws {
    let broker = try TestBroker()
    var server: LogServer? = try LogServer(broker, Self.short(3600))
    let location = try #require(try server?.create("bytes", ["Upload-Length: 50"]))
    let token = String(location.dropFirst("/.uploads/".count))
    let stream = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    let last = try #require(try stream.lastMessage(of: token))
    if !hasOtherServer { server = nil }
    var ended = try #require(LogEntry(last.content))
    (ended.offset, ended.count, ended.deactivation) = (ended.end, 0, cause)
    let message = ended.message([], behind: ended.link)
    _ = try stream.publish(message, to: token, after: last.sequence).get()
    if !hasOtherServer { server = try LogServer(broker, Self.short(3600)) }
    try waitUntil("its bytes are removed") { try stream.messages(of: token).map(\.content.payload) == [[]] }
    // Another server's end is not an event of this server.
    #expect(server?.events.all.contains(where: Self.isEnd) == false)
    #expect(try server?.head(location).status == 410)
  }

  private static func isRefusedRemoval(_ event: ServerEvent) -> Bool {
    event.reason?.contains("cannot remove the messages") == true
  }

  /// Users of a broker, who may remove no messages, or all.
  private static func users(purge isAllowed: Bool) -> String {
    let permissions = isAllowed ? "" : ", permissions: { publish: { deny: \"$JS.API.STREAM.PURGE.>\" } }"
    return "authorization { users: [{ user: u, password: p\(permissions) }] }"
  }

  private static func server(_ broker: TestBroker, _ options: BrokerOptions, lifetime: Int) throws -> LogServer {
    try LogServer(broker) {
      short(lifetime)(&$0)
      $0.storage = .brokers(UploadServer.Brokers(options))
    }
  }

  @Test("the bytes of a cancelled upload are removed although the brokers refused this, unless the upload was complete")
  func refusedRemoval() throws {
    let broker = try TestBroker(Self.users(purge: false))
    let options = BrokerOptions(servers: ["nats://u:p@127.0.0.1:\(broker.port)"])
    let server = try Self.server(broker, options, lifetime: 3600)
    let complete = try server.create("whole", ["Upload-Length: 5"])
    let last = try server.connect()
    try last.patch(complete, at: 5, completes: true, body: "")
    #expect(try last.final().answer.status == 201)
    let unfinished = try (0..<3).map { _ in try server.create("bytes", ["Upload-Length: 50"]) }
    for locations in [[complete], unfinished] {
      let clients = try locations.map { location in
        let client = try server.connect()
        try client.request("DELETE", location)
        return client
      }
      for client in clients { #expect(try client.final(withBody: false).answer.status == 204) }
    }
    let stream = try BrokerLoop(options).open("sluice")
    func bytes(_ location: String) throws -> [UInt8] {
      try stream.messages(of: String(location.dropFirst("/.uploads/".count))).flatMap(\.content.payload)
    }
    for location in unfinished { #expect(try bytes(location) == Array("bytes".utf8)) }
    try server.events.first("the report") { Self.isRefusedRemoval($0) }
    try broker.kill()
    try broker.start(Self.users(purge: true))
    try waitUntil("their bytes are removed") { unfinished.allSatisfy { (try? bytes($0)) == [] } }
    // Its end came first.
    #expect(try bytes(complete) == Array("whole".utf8))
    #expect(server.events.all.filter(Self.isRefusedRemoval).count == 1)
  }

  @Test(
    "a repeated DELETE reports that the brokers refuse to remove the bytes of an upload that was cancelled long ago, and the server tries again"
  )
  func repeatedRemoval() throws {
    let broker = try TestBroker(Self.users(purge: false))
    let options = BrokerOptions(servers: ["nats://u:p@127.0.0.1:\(broker.port)"])
    func delete(_ location: String, at server: LogServer) throws -> Int {
      let client = try server.connect()
      try client.request("DELETE", location)
      return try client.final(withBody: false).answer.status
    }
    var location = ""
    do {
      let server = try Self.server(broker, options, lifetime: 8)
      location = try server.create("bytes", ["Upload-Length: 50"])
      // Without an open upload, there are no ticks.
      _ = try server.create("live", ["Stream-ID: ticking"])
      #expect(try delete(location, at: server) == 204)
      // A server that begins after two more ticks does not remove the bytes by itself.
      let stream = try BrokerLoop(options).open("sluice")
      for number in 0..<3 {
        let before = try stream.lastMessage(of: "served")?.sequence
        try waitUntil("there is tick \(number)") { try stream.lastMessage(of: "served")?.sequence != before }
      }
    }
    let server = try Self.server(broker, options, lifetime: 3600)
    for _ in 0..<2 { #expect(try delete(location, at: server) == 410) }
    try server.events.first("the report") { Self.isRefusedRemoval($0) }
    let stream = try BrokerLoop(options).open("sluice")
    func bytes() throws -> [UInt8] {
      try stream.messages(of: String(location.dropFirst("/.uploads/".count))).flatMap(\.content.payload)
    }
    #expect(try bytes() == Array("bytes".utf8))
    try broker.kill()
    try broker.start(Self.users(purge: true))
    try waitUntil("its bytes are removed") { (try? bytes()) == [] }
    #expect(server.events.all.filter(Self.isRefusedRemoval).count == 1)
  }

  @Test("a broker that is killed delays the end of an upload and does not prevent it")
  func brokerRestart() throws {
    let broker = try TestBroker()
    let servers = try (0..<2).map { _ in try LogServer(broker, Self.short(1)) }
    let location = try servers[0].create("live", ["Stream-ID: kept"])
    try broker.kill()
    try broker.start()
    try waitUntil("it is over") { servers.contains { $0.events.all.contains(where: Self.isEnd) } }
    #expect(try broker.bytes(of: location) == Array("live".utf8))
    #expect(servers.reduce(0) { $0 + $1.events.all.filter(Self.isEnd).count } == 1)
  }
}
