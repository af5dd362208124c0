// Each fault of the chaos proxy on a real connection.

import EventLoops
import NetworkTesting
import PropertyTesting
import Testing

@Suite("A fault of the chaos proxy")
struct ChaosProxyFaultTests {
  private let bench: ChaosBench
  private var server: WatchingServer { bench.server }
  private var proxy: ChaosProxy { bench.proxy }
  private var pattern: [UInt8] { bench.pattern }

  init() throws { bench = try ChaosBench() }

  @Test("reset: both sides see a reset, in the middle of the content")
  func reset() throws {
    try proxy.arm(ChaosFault(.reset, .requestBody(after: 100_000), .reset))
    let client = try bench.client()
    // A socket reports a reset once, and the client may still be sending then.
    let hasSent = (try? bench.beginPatch(client, sent: 200_000)) != nil
    if hasSent { #expect(try !bench.endsOrderly(client)) }
    #expect(try !server.waitForEnd(0))
    #expect(server.content(0).count <= 100_000)
    #expect(server.content(0).elementsEqual(pattern.prefix(server.content(0).count)))
    #expect(proxy.counts == [.reset: 1])
  }

  @Test("reset before a request: the server never receives it")
  func resetBeforeRequest() throws {
    try proxy.arm(ChaosFault(.reset, .beforeRequest, .reset, methods: ["HEAD"]))
    let client = try bench.client()
    try bench.beginPatch(client, length: 10, sent: 10)
    #expect(try client.head().line.contains("204"))
    try client.send("HEAD /upload HTTP/1.1\r\nHost: x\r\n\r\n")
    #expect(try !bench.endsOrderly(client))
    #expect(try !server.waitForEnd(0))
    #expect(server.requests(0).count == 1)
  }

  @Test(
    "reset within and after a response: the client receives half of its head, or all of it", arguments: [false, true])
  func resetAtResponse(after: Bool) throws {
    try proxy.arm(ChaosFault(.reset, after ? .afterResponse : .withinResponse, .reset))
    let client = try bench.client()
    try bench.beginPatch(client, length: 10, sent: 10)
    var answer: [UInt8] = []
    let isOrderly = try bench.endsOrderly(client) { answer += $0 }
    #expect(!isOrderly)
    let text = String(decoding: answer, as: UTF8.self)
    #expect(text.hasPrefix("HTTP/1.1 204"))
    #expect(text.hasSuffix("\r\n\r\n") == after)
    #expect(server.content(0).count == 10)
  }

  @Test(
    "fin-to-server: the server receives an orderly end in the middle, and the client's bytes are still accepted",
    arguments: [false, true]
  )
  func finToServer(reachesClient: Bool) throws {
    try proxy.arm(ChaosFault(.finToServer, .requestBody(after: 70_000), .finToServer(reachesClient: reachesClient)))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 300_000)
    #expect(try server.waitForEnd(0))
    #expect(server.content(0) == Array(pattern[..<70_000]))
    if reachesClient {
      #expect(try bench.endsOrderly(client))
    } else {
      // More than all buffers hold, so something must be reading it.
      try client.send([UInt8](repeating: 0, count: 2_000_000))
      // The server has closed long before. Nothing should arrive, so there is no event to wait for.
      #expect(!waitUntilReadable(client.descriptor, limit: .milliseconds(300)))
    }
    client.close()
    try bench.waitUntilClosed(0)
  }

  @Test("fin-to-client: the client receives an orderly end, and its later bytes arrive")
  func finToClient() throws {
    try proxy.arm(ChaosFault(.finToClient, .requestBody(after: 70_000), .finToClient))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 100_000)
    #expect(try client.receive() == nil)
    try client.send(Array(pattern[100_000..<150_000]))
    try server.waitForContent(0, 150_000)
    #expect(server.content(0) == Array(pattern[..<150_000]))
    client.close()
    #expect(try server.waitForEnd(0))
    try bench.waitUntilClosed(0)
  }

  @Test("blackhole: bytes are accepted and dropped while the client waits, and the server's side outlives the client's")
  func blackhole() throws {
    try proxy.arm(ChaosFault(.blackhole, .requestBody(after: 70_000), .blackhole))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 300_000)
    try client.send([UInt8](repeating: 0, count: 2_000_000))
    try server.waitForContent(0, 70_000)
    client.close()
    // Nothing should happen, so there is no event to wait for. This is many times longer than the forwarding of an end
    // takes.
    #expect(throws: TestFailure.self) { try server.waitForEnd(0, within: .milliseconds(300)) }
    #expect(!bench.closed(0))
    #expect(server.content(0) == Array(pattern[..<70_000]))
  }

  @Test(
    "delay: bytes after the place arrive late, even after the client has disconnected", arguments: [false, true])
  func delay(clientGoes: Bool) throws {
    let pause = Duration.milliseconds(150)
    try proxy.arm(ChaosFault(.delay, .requestBody(after: 70_000), .delay(pause)))
    let client = try bench.client()
    try bench.beginPatch(client, length: 100_000, sent: 100_000)
    if clientGoes { client.close() }
    let start = try proxy.events.wait("the delay") { events -> MonotonicInstant? in
      for case .applied(_, _, _, let time) in events { return time }
      return nil
    }
    try server.waitForContent(0, 100_000)
    #expect(MonotonicInstant.now - start >= pause)
    #expect(server.content(0) == Array(pattern[..<100_000]))
    if !clientGoes { #expect(try client.head()["Upload-Offset"] == "100000") }
  }

  @Test("truncate: the last accepted bytes of the client do not arrive, and both sides receive an orderly end")
  func truncate() throws {
    try proxy.arm(ChaosFault(.truncate, .requestBody(after: 70_000), .truncate(30_000)))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 100_000)
    #expect(try server.waitForEnd(0))
    #expect(server.content(0) == Array(pattern[..<70_000]))
    #expect(try bench.endsOrderly(client))
  }

  @Test("double-fin: both sides receive an orderly end, and then the sockets are closed")
  func doubleFin() throws {
    try proxy.arm(ChaosFault(.doubleFin, .requestBody(after: 70_000), .doubleFin(.milliseconds(30))))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 70_001)
    #expect(try client.receive() == nil)
    #expect(try server.waitForEnd(0))
    #expect(server.content(0) == Array(pattern[..<70_000]))
    // Neither this client nor a third party has closed it.
    try bench.waitUntilClosed(0)
  }

  @Test(
    "replay: the bytes of an interrupted request arrive again after the client has continued", arguments: [false, true])
  func replay(hangs: Bool) throws {
    try proxy.arm(
      ChaosFault(
        .replay, .requestBody(after: 20_000), .replay(.milliseconds(20), ends: hangs ? .hang : .reset)))
    let first = try bench.client()
    try bench.beginPatch(first, sent: 30_000, offset: 7)
    #expect(try !bench.endsOrderly(first))
    #expect(try !server.waitForEnd(0))
    #expect(proxy.counts.isEmpty)
    let second = try bench.client()
    try bench.beginPatch(second, length: 10, sent: 10, offset: 27)
    #expect(try second.head().line.contains("204"))
    #expect(try bench.applied(.replay) == nil)
    try server.waitForContent(2, 20_000)
    #expect(server.requests(2).first?["Upload-Offset"] == "7")
    #expect(server.content(2) == Array(pattern[..<20_000]))
    if hangs { #expect(!server.hasEnded(2)) } else { #expect(try !server.waitForEnd(2)) }
  }

  @Test("a response instead of the server's: before the request, which the server never receives")
  func answerBeforeRequest() throws {
    try proxy.arm(
      ChaosFault(.serverError, .beforeRequest, .answer(.init(status: 503, retryAfter: 2)), methods: ["PATCH"]))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 100_000)
    let head = try client.head()
    #expect(head.line.hasPrefix("HTTP/1.1 503 "))
    #expect(head["Retry-After"] == "2")
    #expect(head["Connection"] == "close")
    // No reset overtakes the answer, however much more the client sends.
    try client.send([UInt8](repeating: 0, count: 1_000_000))
    #expect(try client.receive() == nil)
    client.close()
    try bench.waitUntilClosed(0)
    #expect(server.requests(0).isEmpty)
  }

  @Test("a response in the middle of the content: 409 with a wrong offset")
  func answerInTheMiddle() throws {
    try proxy.arm(
      ChaosFault(.conflict, .requestBody(after: 70_000), .answer(.init(status: 409, offsetFromRequest: -5))))
    let client = try bench.client()
    try bench.beginPatch(client, sent: 100_000, offset: 50)
    let head = try client.head()
    #expect(head.line.hasPrefix("HTTP/1.1 409 "))
    #expect(head["Upload-Offset"] == "45")
    #expect(try server.waitForEnd(0))
    #expect(server.content(0) == Array(pattern[..<70_000]))
  }

  @Test("a response that replaces the server's: the connection continues")
  func answerInsteadOfResponse() throws {
    try proxy.arm(ChaosFault(.locked, .beforeResponse, .answer(.init(status: 423))))
    let client = try bench.client()
    try bench.beginPatch(client, length: 10, sent: 10)
    #expect(try client.head().line.hasPrefix("HTTP/1.1 423 "))
    try bench.beginPatch(client, length: 10, sent: 10, offset: 10)
    #expect(try client.head()["Upload-Offset"] == "20")
    #expect(server.content(0).count == 20)
  }

  @Test("drop-response: the server has answered, and the client receives a reset and no byte")
  func dropResponse() throws {
    try proxy.arm(ChaosFault(.dropResponse, .beforeResponse, .dropResponse))
    let client = try bench.client()
    try bench.beginPatch(client, length: 10, sent: 10)
    var answer: [UInt8] = []
    let isOrderly = try bench.endsOrderly(client) { answer += $0 }
    #expect(!isOrderly && answer.isEmpty)
    #expect(try server.waitForEnd(0))
    #expect(server.content(0).count == 10)
  }

  @Test("drop-interims: no 104 is forwarded for a while, and 100 and the final response are")
  func dropInterims() throws {
    let server = try WatchingServer { connection, _, _ in
      try connection.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 104 Upload Resumption Supported\r\n\r\n")
      try connection.respond("204 No Content")
    }
    let proxy = try ChaosProxy(to: server.address)
    try proxy.arm(ChaosFault(.dropInterims, .requestBody(after: 0), .dropInterims(.seconds(60))))
    let client = try ServerConnection(connectingTo: proxy.address)
    try bench.beginPatch(client, length: 10, sent: 10)
    #expect(try client.head().line.contains(" 100 "))
    #expect(try client.head().line.contains(" 204 "))
    try proxy.events.first("the dropped 104") { if case .droppedInterim = $0 { true } else { false } }
  }

  @Test("a false offset has its kind, and occurs once", arguments: Seed.several(3))
  func lies(seed: Seed) throws {
    var random = seed.generator
    let choice = Int.random(in: 0..<1024, using: &random)
    let cases: [(ChaosFault.Kind, ChaosFault.Lie, ClosedRange<UInt64>)] = [
      // The server reports 1000, 10 bytes were acknowledged to the client, and it has sent more than 40,000.
      (.offsetLower, .lower(choice), 10...999), (.offsetHigher, .higher(choice), 1001...50_010),
      (.offsetBeyond, .beyond(choice), 40_011...60_000),
    ]
    for (kind, lie, range) in cases {
      let proxy = try ChaosProxy(to: server.address)
      let client = try ServerConnection(connectingTo: proxy.address)
      try bench.beginPatch(client, length: 10, sent: 10)
      #expect(try client.head()["Upload-Offset"] == "10")
      try proxy.arm(ChaosFault(kind, .requestBody(after: 40_000), .lie(lie)))
      try bench.beginPatch(client, length: 90_000, sent: 50_000, offset: 10)
      #expect(try bench.endsOrderly(client))
      let second = try ServerConnection(connectingTo: proxy.address)
      for isFirst in [true, false] {
        try second.send("HEAD /upload HTTP/1.1\r\nHost: x\r\n\r\n")
        let offset = try second.head()["Upload-Offset"].flatMap { UInt64($0) }
        if isFirst { #expect(range.contains(try #require(offset)), "\(kind)") } else { #expect(offset == 1000) }
      }
      #expect(proxy.counts == [kind: 1])
    }
  }

  @Test("a client has recovered when a new byte of an append is acknowledged, not when it asks")
  func recovery() throws {
    try proxy.arm(ChaosFault(.reset, .requestBody(after: 20_000), .reset))
    let first = try bench.client()
    try? bench.beginPatch(first, sent: 40_000)
    #expect(try !bench.endsOrderly(first))
    let second = try bench.client()
    try second.send("HEAD /upload HTTP/1.1\r\nHost: x\r\n\r\n")
    #expect(try second.head()["Upload-Offset"] == "1000")
    #expect(!proxy.events.all.contains { if case .recovered = $0 { true } else { false } })
    try bench.beginPatch(second, length: 5, sent: 5, offset: 1000)
    #expect(try second.head()["Upload-Offset"] == "1005")
    let acknowledged = try proxy.events.wait("the recovery") { events -> UInt64? in
      for case .recovered(1, .reset, let offset, let time) in events where time > .zero { return offset }
      return nil
    }
    #expect(acknowledged == 1005)
  }
}
