// The interface between a connection and its handler: late decisions, interim answers, and answers from other threads.
// The store needs few of these features, but a resumable upload handler around it needs them all.

import EventLoops
import Glibc
import NetworkTesting
import Synchronization
import Testing

@testable import HTTPServer

@Suite("The interface of connection and handler", .serialized)
struct HandlerSeamTests {
  /// Sends a 104 for each piece, accepts and answers late, and answers with the bytes it received.
  private final class LateHandler: RequestHandler {
    private let loop: EventLoop
    private var exchange: (any Exchange)?
    private var body: [UInt8] = []
    init(loop: EventLoop) { self.loop = loop }

    func begin(_ exchange: any Exchange) {
      self.exchange = exchange
      // In the next turn of the loop, as if it had waited for a disk.
      loop.schedule(after: .milliseconds(1)) { exchange.acceptBody() }
    }
    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
      for piece in pieces { for index in piece { body.append(bytes[index]) } }
      exchange?.sendInterim(104, ["upload-offset": "\(body.count)"])
    }
    func end() {
      loop.schedule(after: .milliseconds(1)) { [self] in
        exchange?.respond(Response(200, body: String(decoding: body, as: UTF8.self)))
        // Too late, so it is ignored.
        exchange?.respond(Response(500))
        exchange = nil
      }
    }
    func aborted(_ reason: AbortReason) { exchange = nil }
    func serverStops() {}
  }

  /// Answers with what the test has provided, after an interim response with the same fields.
  private final class EchoHandler: RequestHandler {
    static let response = Lock(Response(200))
    /// The queries of all requests.
    static let order = Lock<[String]>([])
    private let query: String?

    init(_ head: RequestHead) { query = head.target.query }

    func begin(_ exchange: any Exchange) {
      if let query { Self.order.withLock { $0.append(query) } }
      let response = Self.response.withLock { $0 }
      exchange.sendInterim(response.status, response.fields)
      exchange.respond(response)
    }
    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
    func end() {}
    func aborted(_ reason: AbortReason) {}
    func serverStops() {}
  }

  /// Does what the test has provided.
  private final class ScriptedHandler: RequestHandler {
    var begins: (any Exchange) -> Void = { _ in }
    var receives: () -> Void = {}
    var ends: () -> Void = {}

    func begin(_ exchange: any Exchange) { begins(exchange) }
    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) { receives() }
    func end() { ends() }
    func aborted(_ reason: AbortReason) {}
    func serverStops() {}
  }

  /// A loop, a listener and connections, with the test's router.
  private final class Bed: @unchecked Sendable {
    let loop: EventLoop
    let listener: Listener
    private var context: ConnectionContext?
    private var connections: [Int32: HTTPConnection] = [:]
    private let ended = EndSignal()

    init() throws {
      let loop = try EventLoop()
      self.loop = loop
      let address = try ListenAddress("127.0.0.1:0")
      listener = try Listener(address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
      let context = ConnectionContext(
        loop: loop, timeouts: Timeouts(loop: loop) { _ in .zero }, parserLimits: .init(),
        router: { head in
          if head.target.path == "/echo" { return EchoHandler(head) }
          return LateHandler(loop: loop)
        }, refused: { _, _ in })
      self.context = context
      context.closed = { [unowned self] in connections[$0] = nil }
      listener.accepted = { [unowned self] descriptor, peer in
        connections[descriptor] = try? HTTPConnection(descriptor: descriptor, peer: peer, context: context)
      }
      try listener.start()
      try NamedThread("late-handlers") { [self] in
        loop.run()
        ended.signal()
      }.detach()
    }

    /// Queries the loop's state on its thread.
    func ask<Answer: Sendable>(_ question: @escaping @Sendable (Bed) -> Answer) throws -> Answer {
      let answers = try EventLog<Answer>()
      loop.execute { [self] in answers.append(question(self)) }
      return try answers.first("the loop's answer") { _ in true }
    }

    var connectionCount: Int { connections.count }
    /// How many of each status were sent.
    var interimResponses: [Int: UInt64] { context?.figures.values.interimResponses ?? [:] }
    /// How much a bulk upload may read at once.
    var readLimit: Int { context?.allowance.limit(expectsHead: false) ?? 0 }

    func stop() {
      loop.execute { [self] in
        listener.stop()
        for connection in connections.values { connection.abandon() }
      }
      loop.stop()
      ended.wait()
    }
  }

  @Test("a body waits until it is accepted, interim responses come within it, and pipelined requests wait their turn")
  func lateDecisions() throws {
    let bed = try Bed()
    defer { bed.stop() }
    let client = try RawClient(bed.listener.address)
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    // Two complete requests at once, and the beginning of a third. All but the first must be kept until it is answered.
    try client.send(head + "3\r\nabc\r\n0\r\n\r\n" + head + "2\r\nde\r\n0\r\n\r\n" + head)
    for text in ["abc", "de"] {
      #expect(try client.answer().status == 100)
      let interim = try client.answer()
      #expect(interim.status == 104 && interim["upload-offset"] == "\(text.utf8.count)")
      let answer = try client.answer()
      #expect(answer.status == 200 && answer.body == text)
    }
    #expect(try client.answer().status == 100)
    for count in 1...3 {
      try client.sendChunk("x")
      #expect(try client.answer()["upload-offset"] == "\(count)")
    }
    try client.send("0\r\n\r\n")
    #expect(try client.answer().body == "xxx")
    // 100 is the server's own, not a handler's.
    #expect(try bed.ask { $0.interimResponses } == [104: 5])
  }

  @Test("a response that is larger than the socket's buffers arrives completely, and so does the next one")
  func largeResponses() throws {
    let bed = try Bed()
    defer { bed.stop() }
    let text = String(repeating: "0123456789abcdef", count: 1 << 20)
    EchoHandler.response.withLock { $0 = Response(200, body: text) }
    defer { EchoHandler.response.withLock { $0 = Response(200) } }
    let client = try RawClient(bed.listener.address)
    for _ in 0..<2 {
      try client.send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n")
      let answer = try client.answer()
      #expect(answer.status == 200 && answer.body == text)
    }
  }

  @Test("a client that disconnects while its handler decides or responds leaks nothing")
  func vanishes() throws {
    let bed = try Bed()
    defer { bed.stop() }
    let head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n"
    for round in 0..<50 {
      let client = try RawClient(bed.listener.address)
      try client.send(round % 2 == 0 ? head : head + "abc")
      client.reset()
    }
    let client = try RawClient(bed.listener.address)
    try client.send(head + "abc")
    #expect(try client.answer().status == 104)
    #expect(try client.answer().body == "abc")
  }

  @Test("a call reads large pieces only for a single bulk upload, and an ended connection no longer counts")
  func longCalls() throws {
    let bed = try Bed()
    defer { bed.stop() }
    func waitFor(connections count: Int) throws {
      try waitUntil("\(count) connections") { (try? bed.ask { $0.connectionCount }) == count }
    }
    let piece = [UInt8](repeating: 1, count: 256 << 10)
    let ends: [(RawClient) -> Void] = [{ $0.reset() }, { $0.disconnect() }]
    for round in 0..<4 {
      let bulk = try RawClient(bed.listener.address)
      try bulk.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n")
      var sent = 0
      func streamAlone() throws {
        // The last read of a piece may be short, like a live stream's.
        for _ in 0..<1000 {
          try bulk.send(piece)
          sent += piece.count
          while try bulk.answer()["upload-offset"] != "\(sent)" {}
          if try bed.ask({ $0.readLimit }) == ReadAllowance.alone { return }
        }
        Issue.record("a bulk upload alone is read in short calls")
      }
      try streamAlone()
      let live = try RawClient(bed.listener.address)
      try waitFor(connections: 2)
      #expect(try bed.ask { $0.readLimit } == ReadAllowance.shared)
      if round < 2 {
        ends[round % 2](live)
        try waitFor(connections: 1)
        try streamAlone()
        ends[round % 2](bulk)
      } else {
        ends[round % 2](bulk)
        try waitFor(connections: 1)
        #expect(try bed.ask { $0.readLimit } == ReadAllowance.shared)
        ends[round % 2](live)
      }
      try waitFor(connections: 0)
      #expect(try bed.ask { $0.readLimit } == ReadAllowance.alone)
    }
  }

  @Test(
    "the server sends no interim responses to HTTP/1.0, because clients treat the first as final (RFC 9110, section 15.2)"
  )
  func http10() throws {
    let bed = try Bed()
    defer { bed.stop() }
    let client = try RawClient(bed.listener.address)
    try client.send("POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc")
    let answer = try client.answer()
    #expect(answer.status == 200 && answer.body == "abc")
  }

  @Test(
    "after interim responses to a proxy, the connection ends, because a proxy that treats the first as final waits for it"
  )
  func forwarded() throws {
    let bed = try Bed()
    defer { bed.stop() }
    for field in ["X-Forwarded-For: 192.0.2.7", "Via: 1.1 front", "Forwarded: for=192.0.2.7"] {
      let client = try RawClient(bed.listener.address)
      for isForwarded in [false, true] {
        try client.send(
          "POST / HTTP/1.1\r\nHost: h\r\n\(isForwarded ? field + "\r\n" : "")Content-Length: 3\r\n\r\nabc")
        #expect(try client.answer().status == 104)
        let answer = try client.answer()
        #expect(answer.status == 200 && answer.body == "abc")
        #expect((answer["connection"] == "close") == isForwarded)
      }
      #expect(client.isClosedByServer())
    }
  }

  @Test("for any response of a handler, the client reads one response, which belongs to its request")
  func responses() throws {
    let bed = try Bed()
    defer { bed.stop() }
    let names = [
      "x-a", "X-B", "", "a b", "a\r\nb", "a:", "\u{212A}", "content-length", "transfer-encoding", "connection",
    ]
    let values = [
      "", "v", " v\t", "a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\0b", "\u{7f}", "\u{fc}", "\r\n\r\nHTTP/1.1 200 OK",
      "chunked", "3",
    ]
    let statuses = [0, 99, 100, 101, 104, 199, 200, 201, 204, 205, 304, 400, 503, 599, 600, 1000, -1, Int.max]
    let client = try RawClient(bed.listener.address)
    var number = 0
    for name in names {
      for value in values {
        for status in statuses {
          // Each name is combined with each value and each status, but not all three with each other.
          number += 1
          guard status == 200 || number % 7 == 0 else { continue }
          let response = Response(status, [name: value], body: "body")
          EchoHandler.response.withLock { $0 = response }
          let isInvalid =
            ["", "a b", "a\r\nb", "a:", "\u{212A}"].contains(name)
            || value.unicodeScalars.contains { $0 != "\t" && ($0.value < 32 || $0.value == 127) }
          #expect(response.fields.isValid != isInvalid)
          for method in ["GET", "HEAD"] {
            let claim: Comment = "\(method) \(status) \(name.debugDescription): \(value.debugDescription)"
            try client.send("\(method) /echo HTTP/1.1\r\nHost: h\r\n\r\n")
            var answer = try client.answer(withBody: method == "GET")
            if answer.status < 200 {
              #expect(!isInvalid && answer.status == status && status != 101, claim)
              #expect(answer["content-length"] == nil && answer["transfer-encoding"] == nil, claim)
              answer = try client.answer(withBody: method == "GET")
            }
            #expect(answer.status == (isInvalid || !(200...599).contains(status) ? 500 : status), claim)
            #expect(answer["set-cookie"] == nil && answer["transfer-encoding"] == nil, claim)
            let hasLength = ![204, 304].contains(answer.status)
            #expect(answer.fields.count { $0.name == "content-length" } == (hasLength ? 1 : 0), claim)
            let hasBody = hasLength && answer.status != 205 && method == "GET"
            #expect(answer.body.isEmpty != hasBody, claim)
          }
        }
      }
    }
    // Nothing remains of any of them.
    client.shutdownWriting()
    #expect(client.isClosedByServer())
  }

  @Test("a client that sends thousands of requests at once receives responses in order, and does not delay the others")
  func fairness() throws {
    let bed = try Bed()
    defer { bed.stop() }
    EchoHandler.response.withLock { $0 = Response(204) }
    EchoHandler.order.withLock { $0 = [] }
    let clients = try (0..<3).map { _ in try RawClient(bed.listener.address) }
    let (entered, gate) = (EndSignal(), EndSignal())
    try waitUntil("all are accepted") { (try? bed.ask { $0.connectionCount }) == 3 }
    // Everything arrives before the loop checks.
    bed.loop.execute {
      entered.signal()
      gate.wait()
    }
    entered.wait()
    let count = 1500
    for (number, client) in clients.enumerated() {
      let requests = (0..<(number == 2 ? 1 : count)).map { "GET /echo?\(number)-\($0) HTTP/1.1\r\nHost: h\r\n\r\n" }
      try client.send(requests.joined())
      try waitUntil("all has arrived") { client.unacknowledged == 0 }
    }
    gate.signal()
    for (number, client) in clients.enumerated() {
      for _ in 0..<(number == 2 ? 1 : count) { #expect(try client.answer().status == 204) }
    }
    let all = EchoHandler.order.withLock { $0 }
    let place = try #require(all.firstIndex(of: "2-0"))
    #expect(place <= 64, "a single request is served behind a turn of each of the others at most")
    for number in 0..<2 {
      #expect(all.filter { $0.hasPrefix("\(number)-") } == (0..<count).map { "\(number)-\($0)" })
    }
    // The two alternate instead of following each other.
    let first = try #require(all.firstIndex(of: "0-\(count - 1)"))
    #expect(all[..<first].contains { $0.hasPrefix("1-") })
  }

  @Test("while a request takes the bytes that arrived for another one, no further request of that connection begins")
  func arrivedBytes() throws {
    let loop = try EventLoop()
    let address = try ListenAddress("127.0.0.1:0")
    let listener = try Listener(address, try SocketAddress.resolve(address)[0], options: .init(), loop: loop)
    let (older, newer) = (try RawClient(listener.address), try RawClient(listener.address))
    var order: [String] = []
    var exchange: (any Exchange)?
    let context = ConnectionContext(
      loop: loop, timeouts: Timeouts(loop: loop) { _ in .zero }, parserLimits: .init(),
      router: { head in
        let handler = ScriptedHandler()
        switch head.target.path {
        case "/older":
          handler.begins = { own in
            exchange = own
            own.acceptBody()
          }
          handler.receives = {
            guard order.isEmpty else { return }
            order.append("received")
            try? newer.send("GET /newer HTTP/1.1\r\nHost: h\r\n\r\n")
          }
          handler.ends = {
            order.append("ended")
            exchange?.respond(Response(204))
          }
        case "/newer":
          handler.begins = { own in
            try? older.send("0\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n")
            try? waitUntil("all has arrived") { older.unacknowledged == 0 }
            exchange?.takeArrived()
            order.append("taken")
            own.respond(Response(204))
          }
        default:
          handler.begins = { own in
            order.append("next")
            own.respond(Response(204))
            loop.stop()
          }
        }
        return handler
      }, refused: { _, _ in })
    var connections: [Int32: HTTPConnection] = [:]
    context.closed = { connections[$0] = nil }
    listener.accepted = { descriptor, peer in
      connections[descriptor] = try? HTTPConnection(descriptor: descriptor, peer: peer, context: context)
    }
    try listener.start()
    try older.send("POST /older HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    loop.schedule(after: .seconds(60)) { loop.stop() }
    loop.run()
    listener.stop()
    for connection in connections.values { connection.abandon() }
    #expect(order == ["received", "ended", "taken", "next"])
  }

  @Test("a handler cannot open a tunnel")
  func tunnel() throws {
    let bed = try Bed()
    defer { bed.stop() }
    let client = try RawClient(bed.listener.address)
    try client.send("CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n")
    #expect(try client.answer().status == 500)
  }
}
