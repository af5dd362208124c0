import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@testable import UploadClient

@Suite("One connection for successive requests", .serialized)
struct ConnectionReuseTests {
  /// Sends a request of a random kind, and waits for its end.
  private func anyRequest(
    _ session: UploadSession, _ url: String, _ file: PatternFile, _ random: inout SplitMix64
  ) throws -> HTTPResponse {
    switch Int.random(in: 0..<8, using: &random) {
    case 0: return try session.send(UploadRequest("HEAD", url))
    case 1: return try session.send(UploadRequest("GET", url))
    case 2: return try session.send(UploadRequest("OPTIONS", url))
    case 3: return try session.send(UploadRequest("DELETE", url))
    case 4: return try session.send(UploadRequest("POST", url), .empty)
    case 5:
      let count = random.size(upTo: file.size)
      return try session.send(UploadRequest("PATCH", url), file: file, 0..<count)
    default: return try session.send(UploadRequest("PATCH", url), streaming: "some of it")
    }
  }

  @Test("for any methods and bodies, two hundred requests use one connection", arguments: Seed.several(2))
  func anyMixture(_ seed: Seed) throws {
    var random = seed.generator
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let file = try PatternFile(size: 300_000)
    try withSession { session throws in
      for _ in 0..<200 { #expect(try anyRequest(session, server.url, file, &random).status == 200) }
    }
    #expect(seen.all.count == 200)
    #expect(Set(seen.all.map(\.connection)) == [0])
  }

  @Test(
    "a server that refuses a request with content may leave it unread, and receives no other request after it; after a status that may come from a failing or a wrong server, no request uses the same connection; all others do",
    arguments: [
      200, 204, 300, 302, 304, 399, 400, 401, 403, 404, 405, 408, 409, 410, 412, 413, 416, 421, 422, 423, 425, 429, 500,
      501, 502, 503, 504, 511, 599,
    ])
  func afterRefusal(_ status: Int) throws {
    let seen = try EventLog<SeenRequest>()
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        seen.append(SeenRequest(connection: number, head: head, body: try connection.anyBody(head)))
        try connection.send(
          "HTTP/1.1 \(status) Said\r\n\([204, 304].contains(status) ? "" : "Content-Length: 0\r\n")\r\n")
      }
    }
    try withSession { session throws in
      #expect(try session.send(UploadRequest("HEAD", server.url)).status == status)
      #expect(try session.send(UploadRequest("POST", server.url), streaming: "some of it").status == status)
      #expect(try session.send(UploadRequest("HEAD", server.url)).status == status)
      #expect(try session.send(UploadRequest("DELETE", server.url)).status == status)
    }
    let isRefusalOfRequest = [401, 403, 409, 410, 412, 413, 416].contains(status)
    let isAccepted = [200, 204, 304].contains(status)
    let connections = isAccepted ? [0, 0, 0, 0] : isRefusalOfRequest ? [0, 0, 1, 1] : [0, 1, 2, 3]
    #expect(seen.all.map(\.connection) == connections)
  }

  @Test(
    "a connection whose server answers every request with an error is ended after the first one, and another that works is kept",
    arguments: [404, 429, 500, 502, 503], ["HEAD", "GET", "POST", "PATCH"])
  func pinned(_ status: Int, _ method: String) throws {
    let seen = try EventLog<Int>()
    let ended = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      defer { if connection.isEnded { ended.append(number) } }
      while true {
        let head = try connection.head()
        _ = try connection.anyBody(head)
        seen.append(number)
        try connection.send("HTTP/1.1 \(number == 0 ? status : 200) Said\r\nContent-Length: 0\r\n\r\n")
      }
    }
    try withSession { session throws in
      func send(_ method: String) throws -> Int {
        let hasBody = ["POST", "PATCH"].contains(method)
        return try session.send(UploadRequest(method, server.url), hasBody ? .empty : .none).status
      }
      #expect(try send(method) == status)
      #expect(try ended.wait("the end of the bad connection") { $0.first } == 0)
      for next in [method, "HEAD", "GET", "POST", "PATCH"] { #expect(try send(next) == 200) }
    }
    #expect(seen.all == [0, 1, 1, 1, 1, 1])
  }

  @Test("refusals of OPTIONS and DELETE keep the connection, and server errors do not")
  func questions() throws {
    let seen = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        seen.append(number)
        let status = head.line.split(separator: " ")[1].dropFirst()
        try connection.send("HTTP/1.1 \(status) Said\r\nContent-Length: 0\r\n\r\n")
      }
    }
    try withSession { session throws in
      for status in [400, 404, 405, 503, 501, 404] {
        for method in ["OPTIONS", "DELETE"] {
          #expect(try session.send(UploadRequest(method, "\(server.url)/\(status)")).status == status)
        }
      }
    }
    #expect(seen.all == [0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 4])
  }

  @Test("a redirect to the same origin keeps the connection, one to another origin does not", arguments: [302, 307])
  func redirects(_ status: Int) throws {
    let seen = try EventLog<Int>()
    let locations = Lock<[String]>([])
    let server = try ScriptedServer { connection, number in
      while true {
        _ = try connection.head()
        seen.append(number)
        let location = locations.withLock { $0.removeFirst() }
        try connection.send("HTTP/1.1 \(status) Said\r\nLocation: \(location)\r\nContent-Length: 0\r\n\r\n")
      }
    }
    let all = ["/login", "\(server.url)/there", "http://portal.example/login", "/there", "https://127.0.0.1/", "/end"]
    locations.withLock { $0 = all }
    try withSession { session throws in
      for _ in all { #expect(try session.send(UploadRequest("HEAD", "\(server.url)/x")).status == status) }
    }
    #expect(seen.all == [0, 0, 0, 1, 1, 2])
  }

  @Test("over HTTP/2, a connection that answers every request with an error is left, and another is kept")
  func pinnedHTTP2() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let context = try TLSContext(certificate: "\(directory.path)/server.pem", key: "\(directory.path)/server.key")
    let seen = try EventLog<String>()
    let server = try ScriptedServer { connection, number in
      try connection.startTLS(context)
      let http2 = try HTTP2Connection(connection)
      while true {
        let request = try http2.nextRequest()
        seen.append("\(number) \(request.head.line.prefix { $0 != " " })")
        if request.hasContent { try http2.content(of: request.stream) }
        try http2.respond(number == 0 ? 503 : 200, to: request.stream)
      }
    }
    try withSession { session throws in
      func request(_ method: String) -> UploadRequest {
        var request = UploadRequest(method, "https://localhost:\(server.port)/")
        request.addressFamily = .ipv4
        request.certificateAuthorities = "\(directory.path)/ca.pem"
        request.httpVersion = .http2
        return request
      }
      #expect(try session.send(request("HEAD")).status == 503)
      #expect(try session.send(request("HEAD")).status == 200)
      #expect(try session.send(request("PATCH"), streaming: "some of it").status == 200)
      #expect(try session.send(request("GET")).status == 200)
    }
    #expect(seen.all == ["0 HEAD", "1 HEAD", "1 PATCH", "1 GET"])
  }

  /// Appends that roll over. Each begins in the handler that receives the end of the previous one.
  private final class RollingUpload: Sendable {
    let statuses: EventLog<Int>
    private let session: UploadSession
    private let request: UploadRequest
    private let left: Lock<Int>

    init(_ session: UploadSession, _ request: UploadRequest, rounds: Int) throws {
      self.session = session
      self.request = request
      left = Lock(rounds)
      statuses = try EventLog()
    }

    func start() throws {
      let round = left.withLock { left in
        left -= 1
        return left
      }
      var request = request
      // Alternates between HEAD, PATCH and POST.
      let method = ["HEAD", "PATCH", "POST"][round % 3]
      request.method = method
      let body: UploadBody = method == "HEAD" ? .none : .empty
      _ = try session.upload(request, body: body) { [self] event in
        guard case .finished(let result) = event else { return }
        statuses.append((try? result.get().response.status) ?? 0)
        if round > 0 { try? start() }
      }
    }
  }

  @Test("sixty uploads whose requests all end at once continue over sixty connections")
  func manyAtOnce() throws {
    let (uploads, rounds) = (60, 12)
    let seen = try EventLog<SeenRequest>()
    // Answers only when all sixty wait, so that their ends occur in one turn of the loop.
    let waiting = Lock<[ServerConnection]>([])
    let connections = Lock(0)
    let server = try ScriptedServer { connection, _ in
      connections.withLock { $0 += 1 }
      while true {
        let head = try connection.head()
        seen.append(SeenRequest(connection: 0, head: head, body: []))
        let all = waiting.withLock { waiting -> [ServerConnection] in
          waiting.append(connection)
          guard waiting.count == uploads else { return [] }
          defer { waiting = [] }
          return waiting
        }
        for other in all { try other.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") }
      }
    }
    try withSession { session throws in
      let running = try (0..<uploads).map { _ in
        try RollingUpload(session, UploadRequest(url: server.url), rounds: rounds)
      }
      for upload in running { try upload.start() }
      for upload in running {
        try upload.statuses.wait("all rounds") { $0 == [Int](repeating: 200, count: rounds) ? true : nil }
      }
    }
    #expect(seen.all.count == uploads * rounds)
    #expect(connections.withLock { $0 } == uploads)
  }

  @Test("a request that requires a new connection gets one, although an idle one exists")
  func fresh() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      var request = UploadRequest("POST", server.url)
      #expect(try session.send(request, streaming: "first").status == 200)
      request.usesFreshConnection = true
      #expect(try session.send(request, streaming: "second").status == 200)
    }
    #expect(seen.all.map(\.connection) == [0, 1])
  }

  @Test("two concurrent uploads have a connection each, and both are reused afterwards")
  func neverShared() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      for _ in 0..<3 {
        let uploads = try (0..<2).map { _ in
          let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
          try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
          return upload
        }
        for upload in uploads { try upload.body.write("mine") }
        for upload in uploads {
          upload.body.end()
          #expect(try upload.response().status == 200)
        }
      }
    }
    #expect(seen.all.map(\.connection).sorted() == [0, 0, 0, 1, 1, 1])
  }

  @Test("with sluice serve: streams, files, HEAD and refusals without content")
  func ownServer() throws {
    let server = try StreamServer()
    let connections = try EventLog<Int>()
    let relay = try ScriptedServer { connection, number in
      connections.append(number)
      try connection.relay(toPort: server.port)
    }
    let file = try PatternFile(size: 200_000)
    try withSession { session throws in
      for number in 0..<10 {
        var request = UploadRequest("PUT", "\(relay.url)/kitchen")
        request.fields = ["Stream-ID": "f\(number)"]
        #expect(try session.send(request, file: file).status == 201)
        request.fields = ["Stream-ID": "s\(number)"]
        #expect(try session.send(request, streaming: "a stream").status == 201)
        #expect(try session.send(UploadRequest("HEAD", relay.url)).status > 0)
        #expect(try session.send(UploadRequest("DELETE", relay.url)).status >= 400)
      }
    }
    #expect(connections.all == [0])
    #expect(server.directory.names.count == 20)
  }

  @Test("through nginx, over TLS: HTTP/1.1 and HTTP/2", arguments: [UploadRequest.HTTPVersion.http1, .negotiated])
  func nginx(_ version: UploadRequest.HTTPVersion) throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    let file = try PatternFile(size: 300_000)
    let seed = Seed.several(1)[0]
    var random = seed.generator
    try withSession { session throws in
      for number in 0..<60 {
        var request = UploadRequest("PATCH", "https://localhost:\(nginx.port)/")
        request.addressFamily = .ipv4
        request.certificateAuthorities = nginx.authority
        request.httpVersion = version
        switch number % 4 {
        case 0:
          request.method = ["HEAD", "OPTIONS", "DELETE"].randomElement(using: &random) ?? "HEAD"
          #expect(try session.send(request).status == 200)
        case 1:
          #expect(try session.send(request, .empty).status == 200)
        case 2:
          let count = random.size(upTo: file.size)
          let upload = try RunningRequest(session, request, try file.body(0..<count))
          #expect(try upload.response().status == 200)
          #expect(upload.task.acknowledgedByteCount == UInt64(count))
          #expect(file.holds(seen.all.last?.body ?? []) && seen.all.last?.body.count == count, "\(seed)")
        default:
          #expect(try session.send(request, streaming: "a stream").status == 200)
        }
      }
    }
    try eventually("nginx's log") { nginx.connectionLog.count == 60 }
    #expect(Set(nginx.connectionLog).count == 1)
    #expect(nginx.accessLog.contains(version == .http1 ? "HTTP/1.1 200" : "HTTP/2.0 200"))
    #expect(seen.all.count == 60 && seen.all.allSatisfy { $0.head["Expect"] == nil })
  }

  @Test("a connection that the server closed while it was idle is not used, and no request of any kind fails")
  func closedWhileIdle() throws {
    let closed = try EventLog<Int>()
    let seen = try EventLog<SeenRequest>()
    let server = try ScriptedServer { connection, number in
      let head = try connection.head()
      seen.append(SeenRequest(connection: number, head: head, body: try connection.anyBody(head)))
      try connection.respond("200 OK")
      connection.close()
      closed.append(number)
    }
    let file = try PatternFile(size: 100_000)
    try withSession { session throws in
      var number = 0
      func afterwards() throws {
        try closed.wait("the end of a connection") { $0.count > number ? true : nil }
        number += 1
        // Until its FIN has also reached us, which takes a moment with a busy kernel.
        while try hasEstablishedConnection(toPort: server.port) { sched_yield() }
      }
      for _ in 0..<5 {
        #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
        try afterwards()
        #expect(try session.send(UploadRequest("POST", server.url), .empty).status == 200)
        try afterwards()
        #expect(try session.send(UploadRequest("PUT", server.url), file: file).status == 200)
        try afterwards()
        #expect(try session.send(UploadRequest("PATCH", server.url), streaming: "text").status == 200)
        try afterwards()
      }
    }
    #expect(seen.all.map(\.connection) == Array(0..<20))
  }

  @Test(
    "a connection whose server refused a request without reading its content carries no other",
    arguments: ["400 Bad Request", "409 Conflict", "500 Internal Server Error"])
  func refusedUnread(_ status: String) throws {
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      try connection.respond(number == 0 ? status : "200 OK")
      // The content stays unread, so anything after it would stay unread, too.
      if number == 0 { _ = connection.waitForEnd() }
    }
    let file = try PatternFile(size: 20_000)
    try withSession { session throws in
      #expect(try session.send(UploadRequest("PUT", server.url), file: file).status == Int(status.prefix(3)))
      #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
    }
  }

  /// Whether this machine has a connection to that port that neither side has ended (`st` 01 in /proc/net/tcp,
  /// proc(5)).
  private func hasEstablishedConnection(toPort port: UInt16) throws -> Bool {
    let file = try #require(fopen("/proc/net/tcp", "r"), "no /proc/net/tcp")
    defer { fclose(file) }
    var line = [CChar](repeating: 0, count: 512)
    let wanted = String(port, radix: 16, uppercase: true)
    // Its remote port and its state, which are adjacent. Lines are not parsed, because other tests leave tens of
    // thousands of them.
    let established = ":" + String(repeating: "0", count: 4 - wanted.count) + wanted + " 01 "
    while fgets(&line, Int32(line.count), file) != nil {
      if strstr(line, established) != nil { return true }
    }
    return false
  }

  /// Answers a first request on each connection, and ends the connection when the second one's head has arrived, or
  /// some of its body.
  private func quittingServer(_ lines: EventLog<String>, inBody: Bool) throws -> ScriptedServer {
    try ScriptedServer { connection, number in
      for isFirst in [true, false] {
        let head = try connection.head()
        lines.append("\(number) \(head.line.prefix { $0 != " " })")
        guard isFirst else {
          if inBody { _ = try connection.bytes(1) }
          return connection.reset()
        }
        _ = try connection.anyBody(head)
        try connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
      }
    }
  }

  @Test("one that ends just as a request without body bytes goes out costs nothing: the request goes out again")
  func retried() throws {
    let lines = try EventLog<String>()
    let server = try quittingServer(lines, inBody: false)
    try withSession { session throws in
      for method in ["HEAD", "DELETE", "PATCH"] {
        #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
        let request = try RunningRequest(session, UploadRequest(method, server.url), method == "PATCH" ? .empty : .none)
        #expect(try request.response().status == 200)
        #expect(request.connectedCount == 1 && request.endCount == 1)
      }
    }
    // The third line repeats the second request. The next GET finds that connection and is retried itself.
    #expect(lines.all.prefix(3) == ["0 GET", "0 HEAD", "1 HEAD"])
    #expect(lines.all.filter { $0.hasSuffix("DELETE") }.count <= 2)
  }

  @Test("of a body nothing is sent twice by itself: the request fails as lost, and no other connection is made for it")
  func notRetried() throws {
    let lines = try EventLog<String>()
    let server = try quittingServer(lines, inBody: true)
    let file = try PatternFile(size: 100_000)
    try withSession { session throws in
      for number in 0..<6 {
        #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
        if number.isMultiple(of: 2) {
          let error = try RunningRequest(session, UploadRequest("PATCH", server.url), try file.body()).failure()
          #expect(error.kind == .connectionLost, "\(error)")
        } else {
          let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
          try upload.body.write("some")
          let error = try upload.failure()
          #expect(error.kind == .connectionLost, "\(error)")
        }
      }
    }
    #expect(lines.all == (0..<6).flatMap { ["\($0) GET", "\($0) PATCH"] })
  }

  @Test("on a unix socket, too, and there the end of a used connection is noticed while a stream is silent")
  func unixSocket() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let connections = try EventLog<Int>()
    let server = try ScriptedServer(.unix(path)) { connection, number in
      connections.append(number)
      for _ in 0..<3 {
        _ = try connection.anyBody(try connection.head())
        try connection.respond("200 OK")
      }
      _ = try connection.head()
      _ = try connection.chunk()
      connection.shutdownWriting()
      _ = connection.waitForEnd()
    }
    let file = try PatternFile(size: 100_000)
    try withSession { session throws in
      var request = UploadRequest("PATCH", "http://some.host/path")
      request.unixSocket = path
      #expect(try session.send(request, file: file).status == 200)
      #expect(try session.send(request, .empty).status == 200)
      #expect(try session.send(request, streaming: "text").status == 200)
      let upload = try RunningUpload(session, request)
      try upload.body.write("begun")
      #expect(try upload.failure().kind == .connectionLost)
    }
    #expect(connections.all == [0])
    server.close()
  }
}
