import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import UploadClient

@Suite("The content of a request", .serialized)
struct BodyTests {
  @Test(
    "a request without content has no field for it, and its response is read: a head for HEAD, and a body for others",
    arguments: ["HEAD", "GET", "OPTIONS", "DELETE"])
  func without(_ method: String) throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session in
      let request = try RunningRequest(session, UploadRequest(method, "\(server.url)/a"))
      let outcome = try request.result().get()
      #expect(outcome.response.status == 200 && !outcome.isEarly)
      #expect(outcome.response.text == (method == "HEAD" ? nil : "done"))
      #expect(request.connectedCount == 1 && request.endCount == 1)
      #expect(request.task.sentByteCount == 0 && request.task.acknowledgedByteCount == 0)
    }
    let head = try #require(seen.all.first?.head)
    #expect(head.line == "\(method) /a HTTP/1.1")
    #expect(head["Content-Length"] == nil && head["Transfer-Encoding"] == nil && head["Expect"] == nil)
  }

  @Test("an empty content has its field: Content-Length: 0", arguments: ["POST", "PUT", "PATCH"])
  func empty(_ method: String) throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let file = try PatternFile(size: 10)
    try withSession { session in
      for isFile in [false, true] {
        let request = try RunningRequest(
          session, UploadRequest(method, server.url), isFile ? try file.body(4..<4) : .empty)
        #expect(try request.response().text == "done")
        #expect(request.connectedCount == 1)
      }
    }
    #expect(seen.all.count == 2)
    for request in seen.all {
      #expect(request.method == method && request.head["Content-Length"] == "0")
      #expect(request.head["Transfer-Encoding"] == nil && request.head["Expect"] == nil)
    }
  }

  @Test("a range of a file arrives byte for byte, with its length and without Expect", arguments: Seed.several(3))
  func file(_ seed: Seed) throws {
    var random = seed.generator
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let file = try PatternFile(size: 5_000_000, seed: seed.value)
    try withSession { session in
      for number in 0..<10 {
        let start = number == 0 ? 0 : Int.random(in: 0..<file.size, using: &random)
        // The first one is the whole file. From 1 MiB on, libcurl would by itself wait for 100 (Continue).
        let count = number == 0 ? file.size : Int.random(in: 1...file.size - start, using: &random)
        var request = UploadRequest("PATCH", server.url)
        request.uploadBufferSize = [16 << 10, 64 << 10, 2 << 20].randomElement(using: &random) ?? 0
        let upload = try RunningRequest(session, request, try file.body(start..<start + count))
        #expect(try upload.response().status == 200)
        let body = try seen.wait("the request") { $0.count > number ? $0[number] : nil }
        #expect(body.body.count == count && file.holds(body.body, at: start))
        #expect(body.head["Content-Length"] == "\(count)")
        #expect(body.head["Transfer-Encoding"] == nil && body.head["Expect"] == nil)
        #expect(upload.task.sentByteCount == UInt64(count) && upload.task.acknowledgedByteCount == UInt64(count))
        #expect(upload.connectedCount == 1)
      }
    }
  }

  @Test("a file that is truncated while it is sent fails the request, and the error has the position")
  func shortened() throws {
    let mayRead = try EventCounter()
    let ends = try EventLog<String>()
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      _ = try connection.head()
      guard waitUntilReadable(mayRead.descriptor) else { return }
      let all = connection.readToEnd()
      ends.append("\(all.count)")
    }
    let file = try PatternFile(size: 4_000_000)
    try withSession { session in
      var request = UploadRequest("PATCH", server.url)
      request.socket.sendBuffer = 65_536
      let upload = try RunningRequest(session, request, try file.body(1000..<file.size))
      // All buffers are full.
      let sent = try settled { upload.task.sentByteCount }
      #expect(sent > 0 && sent < 1_500_000)
      file.truncate(to: 2_000_000)
      mayRead.signal()
      let error = try upload.failure()
      #expect(error.kind == .bodyFailed)
      #expect(
        error.description.contains(
          "\(file.path) was shortened while it was being sent: it ended at byte 2000000 instead of 4000000"), "\(error)"
      )
      #expect(upload.task.sentByteCount == 1_999_000)
    }
    #expect(Int(try ends.wait("the end") { $0.first }) ?? .max <= 1_999_000)
  }

  @Test("an unreadable position is an error with the position, and an invalid descriptor is refused at once")
  func unreadable() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    var ends: [Int32] = [-1, -1]
    #expect(pipe(&ends) == 0)
    let directory = open("/", O_RDONLY | O_CLOEXEC)
    try withSession { session in
      for (descriptor, reason) in [(directory, "Is a directory"), (ends[0], "Illegal seek")] {
        let body = try FileBody(descriptor: descriptor, range: 7..<100, name: "recording.wav")
        // The request has a descriptor of its own.
        close(descriptor)
        let error = try RunningRequest(session, UploadRequest("PUT", server.url), .file(body)).failure()
        #expect(error.kind == .bodyFailed)
        #expect(error.description == "reading recording.wav at byte 7: \(reason)" && !error.mayPass)
      }
    }
    close(ends[1])
    #expect(throws: SystemError.self) { try FileBody(descriptor: -1, range: 0..<1, name: "nothing") }
  }

  @Test("a response before the end of a file stops the sending", arguments: [200, 413])
  func earlyAnswer(_ status: Int) throws {
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      _ = try connection.head()
      _ = try connection.bytes(1000)
      try connection.respond("\(status) Early", body: "enough")
      _ = connection.readToEnd()
    }
    let file = try PatternFile(size: 8_000_000)
    try withSession { session in
      var request = UploadRequest("PUT", server.url)
      request.socket.sendBuffer = 65_536
      let upload = try RunningRequest(session, request, try file.body())
      let outcome = try upload.result().get()
      #expect(outcome.isEarly && outcome.response.status == status && outcome.response.text == "enough")
      #expect(upload.task.sentByteCount < 8_000_000)
    }
  }

  @Test("content that a method excludes is refused before anything is sent")
  func refused() throws {
    let file = try PatternFile(size: 10)
    try withSession { session in
      func refusal(_ method: String, _ body: consuming UploadBody) -> UploadError.Kind? {
        do {
          _ = try RunningRequest(session, UploadRequest(method, "http://127.0.0.1:1/"), body)
          return nil
        } catch {
          return (error as? UploadError)?.kind
        }
      }
      for method in ["POST", "PUT", "PATCH"] {
        let kind = refusal(method, .none)
        #expect(kind == .invalidRequest)
      }
      let (empty, content) = (refusal("HEAD", .empty), refusal("HEAD", try file.body()))
      #expect(empty == .invalidRequest && content == .invalidRequest)
      var request = UploadRequest("POST", "http://127.0.0.1:1/")
      request.fields = ["Expect": "100-continue"]
      #expect(throws: UploadError.self) { try request.validate() }
    }
  }

  /// The kinds of body, for tests that go through all of them.
  enum Kind: String, CaseIterable, Sendable {
    case none, empty, stream, file
  }

  @Test(
    "a redirect is returned unchanged, and not followed", arguments: [301, 302, 303, 307, 308],
    Kind.allCases)
  func redirect(_ status: Int, _ kind: Kind) throws {
    let lines = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        lines.append(head.line)
        _ = try connection.anyBody(head)
        try connection.respond("\(status) Elsewhere", ["Location: /other?x"], body: "go there")
      }
    }
    let file = try PatternFile(size: 100_000)
    try withSession { session in
      let response: HTTPResponse
      switch kind {
      case .none: response = try RunningRequest(session, UploadRequest("GET", server.url)).response()
      case .empty: response = try RunningRequest(session, UploadRequest("POST", server.url), .empty).response()
      case .stream: response = try session.send(UploadRequest("POST", server.url), streaming: "text")
      case .file: response = try RunningRequest(session, UploadRequest("PUT", server.url), try file.body()).response()
      }
      #expect(response.status == status && response["Location"] == "/other?x" && response.text == "go there")
      // A second request. If the redirect had been followed, that would be visible by now.
      #expect(try RunningRequest(session, UploadRequest("GET", "\(server.url)/second")).response().status == status)
    }
    #expect(lines.all.count == 2 && lines.all.last == "GET /second HTTP/1.1")
  }

  @Test("after the response timeout, a request without content and without a response ends")
  func noResponse() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    try withSession { session in
      for method in ["HEAD", "POST"] {
        var request = UploadRequest(method, server.url)
        request.limits.response = .milliseconds(200)
        let running = try RunningRequest(session, request, method == "HEAD" ? .none : .empty)
        let error = try running.failure()
        #expect(error.kind == .timedOut && error.description.contains("0.2 s"))
      }
    }
  }

  @Test("a task reports the end of its content, for any content, and not before")
  func contentEnd() throws {
    let heads = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      while true {
        let head = try connection.head()
        heads.append(head.line)
        _ = try connection.anyBody(head)
        try connection.respond("200 OK")
      }
    }
    let file = try PatternFile(size: 100_000)
    try withSession { session throws in
      let stream = try RunningUpload(session, UploadRequest(url: server.url))
      try stream.body.write("some")
      try heads.wait("the head") { $0.first }
      #expect(stream.task.contentEndedAt == nil)
      var begun = MonotonicInstant.now
      stream.body.end()
      #expect(try stream.response().status == 200)
      #expect(stream.task.contentEndedAt.map { (begun...MonotonicInstant.now).contains($0) } == true)
      for number in 0..<4 {
        begun = .now
        let request =
          switch number {
          case 0: try RunningRequest(session, UploadRequest("GET", server.url))
          case 1: try RunningRequest(session, UploadRequest("PUT", server.url), .empty)
          case 2: try RunningRequest(session, UploadRequest("PUT", server.url), .bytes([1, 2, 3]))
          default: try RunningRequest(session, UploadRequest("PUT", server.url), try file.body())
          }
        #expect(try request.response().status == 200)
        #expect(request.task.contentEndedAt.map { (begun...MonotonicInstant.now).contains($0) } == true, "\(number)")
      }
    }
  }
}
