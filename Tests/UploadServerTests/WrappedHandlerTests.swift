// Tests handlers behind resumable uploads: each sees one ordinary request, whatever happens to the connections.

import EventLoops
import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("A handler behind resumable uploads", .serialized)
struct WrappedHandlerTests {
  /// The calls that all handlers of a test received, in order.
  final class Log: Sendable {
    private let lines = Lock<[String]>([])
    func add(_ line: String) { lines.withLock { $0.append(line) } }
    var all: [String] { lines.withLock { $0 } }

    /// How many handlers exist.
    let living = Lock(0)
  }

  /// Keeps nothing, and answers with all bytes that it received.
  final class Echo: RequestHandler {
    private let head: RequestHead
    private let log: Log
    private let answers: (String) -> Response?
    private var exchange: (any Exchange)?
    private var body = ""

    /// - Parameter answers: an early answer to the bytes so far.
    init(_ head: RequestHead, _ log: Log, _ answers: @escaping (String) -> Response?) {
      self.head = head
      self.log = log
      self.answers = answers
      log.living.withLock { $0 += 1 }
    }

    deinit { log.living.withLock { $0 -= 1 } }

    func begin(_ exchange: any Exchange) {
      self.exchange = exchange
      let fields = head.fields.all.map { "\($0.name)=\($0.value)" }.joined(separator: " ")
      log.add("begin \(head.method) \(head.target.path) \(fields) \(head.framing)")
      exchange.acceptBody()
    }
    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
      for piece in pieces { for index in piece { body.unicodeScalars.append(Unicode.Scalar(bytes[index])) } }
      if let answer = answers(body) { exchange?.respond(answer) }
    }
    func end() {
      log.add("end \(body)")
      exchange?.respond(Response(200, ["x-length": "\(body.utf8.count)"], body: body))
    }
    func aborted(_ reason: AbortReason) { log.add("aborted: \(reason)") }
    func serverStops() { log.add("stops") }
  }

  private func server(
    _ log: Log, in directory: TemporaryDirectory = TemporaryDirectory(),
    answers: @escaping @Sendable (String) -> Response? = { _ in nil }
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.handler = { head in head.target.path == "/echo" ? Echo(head, log, answers) : nil }
    }
  }

  /// Sends a transfer that is cut off.
  private func interrupted(_ test: TestServer, _ location: String, at offset: Int, _ text: String) throws {
    let client = try test.connect()
    try client.patch(location, at: offset, chunked: true)
    try client.sendChunk(text)
    try client.awaitProgress(offset + text.utf8.count)
    client.reset()
  }

  @Test("the handler runs once, receives the body in order, and ends once, over any number of connections")
  func oneRequest() throws {
    let log = Log()
    let test = try server(log)
    let location = try test.create("/echo", ["X-Mine: yes", "Authorization: Bearer secret", "Upload-Length: 9"])
    #expect(log.all == [])
    for (index, text) in ["ab", "cd", "ef"].enumerated() { try interrupted(test, location, at: index * 2, text) }
    let client = try test.connect()
    #expect(try client.head(location)["upload-offset"] == "6")
    try client.patch(location, at: 6, completes: true, body: "ghi")
    let answer = try client.final().answer
    #expect(answer.status == 200 && answer.body == "abcdefghi" && answer["x-length"] == "9")
    #expect(answer["upload-complete"] == "?1")
    #expect(log.all == ["begin POST /echo host=h x-mine=yes sized(9)", "end abcdefghi"])
    // Its bytes no longer belong to an upload.
    #expect(!(try ScratchListing(test.directory.path + "/.uploads").names.contains { $0.hasSuffix(".body") }))
  }

  @Test("after a restart, the handler starts again and receives the body from its beginning")
  func restarted() throws {
    let directory = TemporaryDirectory()
    let log = Log()
    var location = ""
    do {
      let test = try server(log, in: directory)
      location = try test.create("/echo")
      try interrupted(test, location, at: 0, "abc")
      _ = try test.events.wait(.interrupted)
      test.stop()
    }
    let test = try server(log, in: directory)
    let client = try test.connect()
    #expect(try client.head(location)["upload-offset"] == "3")
    try client.patch(location, at: 3, body: "def")
    #expect(try client.final().answer["upload-offset"] == "6")
    try client.patch(location, at: 6, completes: true, body: "")
    #expect(try client.final().answer.body == "abcdef")
    #expect(log.all.count { $0.hasPrefix("begin") } == 2 && log.all.last == "end abcdef")
    // A handler that gets the bytes again does not make the upload begin again.
    #expect(!test.events.all.contains { $0.kind == .begun })
  }

  @Test(
    "a server that has ended retains no byte of an unfinished upload, whoever stored its bytes",
    arguments: ["/echo", "/t"])
  func endedServer(path: String) throws {
    // The server and the handlers that it makes retain this object.
    weak var left: Log?
    do {
      let log = Log()
      left = log
      let test = try server(log)
      try interrupted(test, try test.create(path), at: 0, "abc")
      _ = try test.events.wait(.interrupted)
      test.stop()
    }
    // The thread has announced its end, but may need a moment to end.
    try waitUntil("the server is released") { left == nil }
  }

  typealias Resumption = @Sendable () -> Void

  /// Pauses its body at its first piece, and answers with all of it.
  final class Pausing: RequestHandler {
    private let received: EventLog<String>
    private let pauses: EventLog<Resumption>
    private var exchange: (any Exchange)?
    private var isFirst = true

    /// - Parameter pauses: receives what resumes the body, on any thread.
    init(_ received: EventLog<String>, _ pauses: EventLog<Resumption>) {
      (self.received, self.pauses) = (received, pauses)
    }

    func begin(_ exchange: any Exchange) {
      self.exchange = exchange
      exchange.acceptBody()
    }

    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
      var text = ""
      for piece in pieces { for index in piece { text.unicodeScalars.append(Unicode.Scalar(bytes[index])) } }
      received.append(text)
      guard isFirst, let exchange else { return }
      isFirst = false
      exchange.pauseBody()
      let loop = exchange.loop
      // Used on the loop's thread only. The test's thread merely asks for it.
      nonisolated(unsafe) let paused = exchange
      pauses.append { loop.execute { paused.resumeBody() } }
    }

    func end() { exchange?.respond(Response(200, body: received.all.joined())) }
    func aborted(_ reason: AbortReason) { exchange = nil }
    func serverStops() {}
  }

  @Test("while it pauses its body, the server stores and acknowledges further bytes, and it receives them afterwards")
  func paused() throws {
    let (received, pauses) = (try EventLog<String>(), try EventLog<Resumption>())
    let test = try TestServer { $0.handler = { _ in Pausing(received, pauses) } }
    let location = try test.create("/echo")
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    for (index, text) in ["ab", "cd", "ef"].enumerated() {
      try client.sendChunk(text)
      try client.awaitProgress(2 * index + 2)
    }
    #expect(received.all == ["ab"])
    let resume = try pauses.wait("the pause") { $0.first }
    resume()
    try received.wait("the rest") { $0.joined() == "abcdef" ? true : nil }
    try client.send("0\r\n\r\n")
    #expect(try client.final().answer["upload-offset"] == "6")
    try client.patch(location, at: 6, completes: true, body: "")
    #expect(try client.final().answer.body == "abcdef")
  }

  @Test("a file that cannot be opened fails one request, and not the following ones")
  func unopened() throws {
    let log = Log()
    let test = try server(log)
    let location = try test.create("/echo")
    let body = test.directory.path + location + ".body"
    mkdir(body, 0o755)
    let client = try test.connect()
    try client.patch(location, at: 0, body: "")
    #expect(try client.final().answer.status == 204)
    let refused = try test.connect()
    try refused.patch(location, at: 0, chunked: true)
    let answer = try refused.final().answer
    #expect(answer.status == 500 && answer["upload-offset"] == "0" && answer["retry-after"] == "2")
    rmdir(body)
    try client.patch(location, at: 0, completes: true, body: "abc")
    #expect(try client.final().answer.body == "abc")
  }

  @Test(
    "its bytes are removed with the upload, for any end", arguments: ["end", "early", "DELETE", "length", "expiry"])
  func spoolRemoved(how: String) throws {
    let log = Log()
    let test = try TestServer {
      $0.handler = { head in Echo(head, log) { how == "early" && $0.utf8.count > 2 ? Response(422) : nil } }
      if how == "expiry" { $0.uploads.maximumAge = .seconds(5) }
    }
    // Age never removes an upload that may be a live stream.
    let location = try test.create("/echo", ["length", "expiry"].contains(how) ? ["Upload-Length: 4"] : [])
    let client = try test.connect()
    try client.patch(location, at: 0, body: "ab")
    _ = try client.final()
    func exists() -> Bool { test.directory.exists(location.dropFirst() + ".body") }
    #expect(exists())
    switch how {
    case "end": try client.patch(location, at: 2, completes: true, body: "c")
    case "early": try client.patch(location, at: 2, body: "c")
    case "DELETE": try client.request("DELETE", location)
    case "length": try client.patch(location, at: 2, body: "cde")
    default: _ = try test.events.wait(.expired)
    }
    if how != "expiry" { _ = try client.final() }
    #expect(!exists())
    try waitUntil("the disk has removed them") {
      try ScratchListing(test.directory.path + "/.uploads").names.allSatisfy { !$0.contains(".body") }
    }
  }

  @Test("spooled bytes count against the quota until the upload has ended")
  func spoolCounted() throws {
    let log = Log()
    let test = try TestServer {
      $0.handler = { head in Echo(head, log) { _ in nil } }
      $0.uploads.quota = 5
    }
    for _ in 0..<3 {
      let location = try test.create("/echo")
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abcd")
      #expect((200..<300).contains(try client.final().answer.status))
      try client.patch(location, at: 4, completes: true, body: "")
      #expect(try client.final().answer.body == "abcd")
    }
  }

  @Test("a handler is not called for content of which the quota accepts no byte")
  func refusedContent() throws {
    let log = Log()
    let test = try TestServer {
      $0.handler = { head in
        Echo(head, log) { body in
          log.add("received \(body)")
          return nil
        }
      }
      $0.uploads.quota = 3
    }
    let location = try test.create("/echo")
    let client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    #expect(try client.final().answer["upload-offset"] == "3")
    let calls = log.all
    #expect(calls.last == "received abc")
    let refused = try test.connect()
    try refused.patch(location, at: 3, body: "d")
    #expect(try refused.final().answer.status == 507)
    #expect(log.all == calls)
  }

  @Test(
    "an ended upload retains no handler and no open file", arguments: ["end", "early", "DELETE", "digest", "restart"])
  func released(how: String) throws {
    let (log, directory) = (Log(), TemporaryDirectory())
    func serve() throws -> TestServer {
      try server(log, in: directory) { how == "early" && $0.utf8.count > 2 ? Response(422) : nil }
    }
    var test = try serve()
    for _ in 0..<3 {
      // The SHA-256 of "abc" (FIPS 180-4), which does not match the content.
      let digest = "Repr-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"
      let location = try test.create("/echo", how == "digest" ? [digest] : [])
      let client = try test.connect()
      try client.patch(location, at: 0, body: "ab")
      _ = try client.final()
      #expect(log.living.withLock { $0 } == 1)
      if how == "restart" {
        // The next handler receives bytes that are read back.
        test.stop()
        test = try serve()
      }
      let last = how == "restart" ? try test.connect() : client
      switch how {
      case "DELETE": try last.request("DELETE", location)
      case "early": try last.patch(location, at: 2, body: "d")
      default: try last.patch(location, at: 2, completes: true, body: "d")
      }
      _ = try last.final()
      try waitUntil("the handler is gone") { log.living.withLock { $0 } == 0 }
      try waitUntil("the file is closed") {
        try openPaths().allSatisfy { !$0.hasPrefix(test.directory.path + location + ".body") }
      }
    }
  }

  @Test(
    "its early response completes the upload and reaches the client, and any client that asks again (draft, section Completeness)"
  )
  func early() throws {
    let log = Log()
    let test = try server(log) { $0.utf8.count >= 3 ? Response(422, body: "no more\n") : nil }
    let location = try test.create("/echo")
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("abc")
    let answer = try client.final().answer
    #expect(answer.status == 422 && answer["upload-complete"] == "?1" && answer.body == "no more\n")
    let again = try test.connect()
    #expect(try again.head(location)["upload-complete"] == "?1")
    try again.patch(location, at: 3, completes: true, body: "")
    #expect(try again.final().answer.status == 422)
  }

  @Test(
    "a response that cannot be sent becomes a 500, also for a client that asks again and after a restart",
    arguments: [Response(199), Response(1000), Response(200, ["x": "a\r\nb"])])
  func unsendable(_ response: Response) throws {
    let (log, directory) = (Log(), TemporaryDirectory())
    let first = try server(log, in: directory) { _ in response }
    let location = try first.create("/echo")
    let client = try first.connect()
    try client.patch(location, at: 0, completes: true, body: "abc")
    let answer = try client.final().answer
    #expect(answer.status == 500 && answer["upload-complete"] == "?1" && answer.body.contains("cannot be sent"))
    func askAgain(_ test: TestServer) throws {
      let again = try test.connect()
      try again.patch(location, at: 3, completes: true, body: "")
      #expect(try again.final().answer.status == 500)
    }
    try askAgain(first)
    first.stop()
    try askAgain(try server(log, in: directory))
  }

  @Test("a response that requests a retry keeps the upload's offset")
  func postponed() throws {
    let log = Log()
    let attempts = Lock(0)
    let test = try server(log) { _ in
      attempts.withLock {
        $0 += 1
        return $0 == 1 ? Response(503, ["retry-after": "1"], body: "later\n") : nil
      }
    }
    let location = try test.create("/echo")
    let client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    let refused = try client.final().answer
    #expect(refused.status == 503 && refused["upload-complete"] == "?0" && refused["upload-offset"] == "3")
    let again = try test.connect()
    #expect(try again.head(location)["upload-offset"] == "3")
    try again.patch(location, at: 3, completes: true, body: "")
    #expect(try again.final().answer.body == "abc")
  }

  @Test(
    "only 503 and 507 with Retry-After request a retry, and any other response completes the upload",
    arguments: [(503, false), (507, false), (500, true), (422, true), (201, true)])
  func notPostponed(status: Int, retries: Bool) throws {
    let log = Log()
    let test = try server(log) { _ in Response(status, retries ? ["retry-after": "1"] : [:]) }
    let location = try test.create("/echo")
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, body: "abc")
    let answer = try client.final().answer
    #expect(answer.status == status && answer["upload-complete"] == "?1")
    #expect(try test.connect().head(location)["upload-complete"] == "?1")
  }

  @Test("it receives only the end of a cancelled upload")
  func cancelled() throws {
    let log = Log()
    let test = try server(log)
    let location = try test.create("/echo")
    try interrupted(test, location, at: 0, "abc")
    let client = try test.connect()
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 204)
    #expect(log.all.last == "aborted: the upload was cancelled" && log.all.count == 2)
  }

  @Test(
    "content is passed on only if its digest is right, and dropped if it is wrong (draft, section Content Digests)")
  func contentDigest() throws {
    let log = Log()
    let test = try server(log)
    let location = try test.create("/echo", ["Want-Repr-Digest: sha-256=1"])
    let client = try test.connect()
    // The SHA-256 of "abc" (FIPS 180-4).
    let value = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"
    let digest = "Content-Digest: \(value)"
    try client.patch(location, at: 0, [digest], body: "abd")
    let wrong = try client.final().answer
    #expect(wrong.status == 400 && wrong["upload-offset"] == "0" && wrong["upload-complete"] == "?0")
    #expect(try client.head(location)["upload-offset"] == "0")
    try client.patch(location, at: 0, [digest], body: "abc")
    let right = try client.final().answer
    #expect(right["upload-offset"] == "3" && right["repr-digest"] == value, "the dropped bytes are not included")
    // A digest cannot be checked if the content was cut short. The server keeps the bytes that arrived.
    let cut = try test.connect()
    try cut.patch(location, at: 3, [digest], chunked: true)
    try cut.awaitProgress(3)
    try cut.sendChunk("ab")
    try waitUntil("all has arrived") { cut.unacknowledged == 0 }
    #expect(try client.head(location)["upload-offset"] == "5")
    // A client that begins at the announced offset sends the bytes again, so unverified bytes are dropped.
    let older = try test.connect()
    try older.patch(location, at: 5, [digest], chunked: true)
    try older.awaitProgress(5)
    try older.sendChunk("XY")
    try waitUntil("all has arrived") { older.unacknowledged == 0 }
    try client.patch(location, at: 5, ["Content-Digest: unknown=:AA==:"], body: "c")
    #expect(try client.final().answer["upload-offset"] == "6")
    try client.patch(location, at: 6, completes: true, body: "")
    #expect(try client.final().answer.body == "abcabc")
  }

  @Test(
    "it receives content that was cut short although its digest cannot be checked, for any end of the request",
    arguments: ["disconnection", "HEAD", "quota"])
  func cutContent(end: String) throws {
    let received = try EventLog<String>()
    let log = Log()
    let test = try TestServer {
      $0.handler = { head in
        Echo(head, log) { body in
          received.append(body)
          return nil
        }
      }
      if end == "quota" { $0.uploads.quota = 3 }
    }
    let location = try test.create("/echo")
    let client = try test.connect()
    try client.patch(location, at: 0, body: "a")
    _ = try client.final()
    let cut = try test.connect()
    // The SHA-256 of "abc" (FIPS 180-4).
    let digest = "Content-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:"
    try cut.patch(location, at: 1, [digest], chunked: true)
    try cut.awaitProgress(1)
    try cut.sendChunk(end == "quota" ? "bcd" : "bc")
    switch end {
    case "disconnection":
      cut.shutdownWriting()
      _ = try test.events.wait(.interrupted)
    case "HEAD":
      try waitUntil("all has arrived") { cut.unacknowledged == 0 }
      #expect(try client.head(location)["upload-offset"] == "3")
    default: #expect(try cut.final().answer.status == 507)
    }
    try received.first("the cut content") { $0 == "abc" }
    try client.patch(location, at: 3, completes: true, body: "")
    #expect(try client.final().answer.body == "abc")
  }

  @Test("it is informed that the representation has another digest, and receives no end")
  func representationDigest() throws {
    let log = Log()
    let test = try server(log)
    // The SHA-256 of "abc" (FIPS 180-4).
    let location = try test.create(
      "/echo", ["Repr-Digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:", "Upload-Length: 3"])
    let client = try test.connect()
    try client.patch(location, at: 0, body: "ab")
    _ = try client.final()
    try client.patch(location, at: 2, completes: true, body: "d")
    #expect(try client.final().answer.status == 400)
    #expect(
      log.all.count == 2 && log.all.last?.hasPrefix("aborted: the representation does not match") == true, "\(log.all)")
  }

  @Test("plain requests reach it unchanged")
  func plain() throws {
    let log = Log()
    let test = try server(log)
    let client = try test.connect()
    try client.request("PUT", "/echo", version: nil, body: "abc")
    let answer = try client.answer()
    #expect(answer.body == "abc" && answer["upload-complete"] == nil)
    try client.request("PUT", "/echo", version: 99, ["Upload-Complete: ?1"], body: "abc")
    #expect(try client.answer().body == "abc")
    #expect(!test.directory.exists(".uploads"))
  }
}

/// The names in a directory.
struct ScratchListing {
  let names: [String]
  init(_ path: String) throws {
    guard let directory = opendir(path) else { throw TestFailure("no directory \(path)") }
    defer { closedir(directory) }
    var names: [String] = []
    while let entry = readdir(directory) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if name != "." && name != ".." { names.append(name) }
    }
    self.names = names.sorted()
  }
}
