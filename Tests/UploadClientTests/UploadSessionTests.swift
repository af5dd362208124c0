import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadServer

@testable import UploadClient

@Suite("An upload over a real socket", .serialized)
struct UploadSessionTests {
  /// A server that accepts one body and answers 201, and the bytes it received.
  private func takingServer(_ bodies: EventLog<[UInt8]>) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        bodies.append(try connection.body())
        try connection.respond("201 Created")
      }
    }
  }

  @Test("close returns after the thread's last work")
  func closeWaits() throws {
    let session = try UploadSession()
    let begun = EndSignal()
    let isDone = Lock(false)
    session.loop.execute {
      begun.signal()
      poll(nil, 0, 100)
      isDone.withLock { $0 = true }
    }
    begun.wait()
    session.close()
    #expect(isDone.withLock { $0 })
  }

  @Test("a body arrives byte for byte, in any pieces", arguments: Seed.several(4))
  func exact(_ seed: Seed) throws {
    var random = seed.generator
    let pattern = OffsetPattern(seed: seed.value)
    let bodies = try EventLog<[UInt8]>()
    let server = try takingServer(bodies)
    try withSession { session in
      var request = UploadRequest(url: server.url)
      request.uploadBufferSize = [16 << 10, 64 << 10, 256 << 10].randomElement(using: &random) ?? 0
      let upload = try RunningUpload(session, request, pairSize: Int.random(in: 1...70_000, using: &random))
      var offset: UInt64 = 0
      for _ in 0..<40 {
        let piece = pattern[Int(offset)..<Int(offset) + random.size(upTo: 60_000)]
        try upload.body.write(piece)
        offset += UInt64(piece.count)
      }
      upload.body.end()
      #expect(try upload.response().status == 201)
      let body = try bodies.wait("the body") { $0.first }
      #expect(body.count == Int(offset))
      #expect(body == pattern[0..<body.count])
      #expect(upload.task.sentByteCount == offset && upload.task.acknowledgedByteCount == offset)
    }
  }

  @Test("an empty body is a valid request")
  func empty() throws {
    let bodies = try EventLog<[UInt8]>()
    let server = try takingServer(bodies)
    try withSession { session in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      upload.body.end()
      #expect(try upload.response().status == 201)
      #expect(bodies.all == [[]])
    }
  }

  @Test("a silent body causes no wake-up; a byte from another thread or from the session's thread wakes it")
  func silence() throws {
    let chunks = try EventLog<[UInt8]>()
    let server = try chunkServer(chunks)
    try withSession { session in
      let accounts = try EventLog<ThreadAccount>()
      session.loop.execute { accounts.append(ThreadAccount()) }
      let thread = try accounts.wait("the session's thread") { $0.first }
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      try upload.body.write("one")
      try chunks.wait("a chunk") { $0.contains(Array("one".utf8)) ? true : nil }
      _ = try settled { try? thread.sleepCount() }
      let before = try thread.sleepCount()
      // Not a synchronization: this is the time over which events are counted.
      let never = try EventCounter()
      #expect(!waitUntilReadable(never.descriptor, limit: .seconds(2)))
      #expect(try thread.sleepCount() - before <= 1)
      #expect(try thread.state() == "S")

      try upload.body.write("two")
      try chunks.wait("a chunk") { $0.contains(Array("two".utf8)) ? true : nil }
      session.loop.execute { try? upload.body.write("three") }
      try chunks.wait("a chunk") { $0.contains(Array("three".utf8)) ? true : nil }
      session.loop.execute { upload.body.end() }
      #expect(try upload.response().status == 200)
    }
  }

  @Test("interim responses reach the caller, each with its fields, before the final one")
  func interim() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nLink: </b>\r\n\r\n")
      for offset in [1, 2, 3] {
        _ = try connection.chunk()
        try connection.send("HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: \(offset)\r\n\r\n")
      }
      _ = try connection.body()
      try connection.respond("200 OK", body: "done\n")
    }
    try withSession { session in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      for count in 1...3 {
        try upload.body.write("x")
        try upload.events.wait("104") { _ in upload.interim.count == count + 1 ? true : nil }
      }
      upload.body.end()
      let response = try upload.response()
      #expect(response.status == 200 && response.text == "done")
      #expect(upload.interim.map(\.status) == [103, 104, 104, 104])
      #expect(upload.interim[0].fields.all.map(\.value) == ["</a>", "</b>"])
      #expect(upload.interim.dropFirst().map { $0["upload-offset"] } == ["1", "2", "3"])
    }
  }

  struct EarlyAnswer: Sendable, CustomTestStringConvertible {
    var status: String
    var fields: [String] = []
    var thenCloses = false
    var testDescription: String { "\(status) \(fields)\(thenCloses ? ", then FIN" : "")" }
  }

  @Test(
    "a final response before the body's end stops the sending and is reported with its body",
    arguments: ["200 OK", "201 Created", "401 Unauthorized", "413 Content Too Large", "503 Service Unavailable"].flatMap
    { status in
      [
        EarlyAnswer(status: status), EarlyAnswer(status: status, fields: ["Connection: close"]),
        EarlyAnswer(status: status, fields: ["Connection: close"], thenCloses: true),
      ]
    })
  func early(_ answer: EarlyAnswer) throws {
    let afterwards = try EventLog<[UInt8]>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.chunk()
      try connection.respond(answer.status, answer.fields, body: "because\n")
      if answer.thenCloses { connection.shutdownWriting() }
      let rest = connection.readToEnd()
      if connection.isEnded { afterwards.append(rest) }
    }
    try withSession { session in
      var request = UploadRequest(url: server.url)
      // Far beyond the test's own limit, because the answer must be enough.
      request.limits.response = .seconds(300)
      let upload = try RunningUpload(session, request)
      try upload.body.write("first")
      // Then the source is silent, so only the answer can end this.
      let outcome = try upload.result().get()
      #expect(outcome.isEarly)
      #expect(outcome.response.text == "because")
      #expect(answer.status.hasPrefix("\(outcome.response.status)"))
      try upload.body.waitUntilOver()
      #expect(try afterwards.wait("the connection's end") { $0.first } == [])
      #expect(upload.task.acknowledgedByteCount <= 5)
    }
  }

  @Test("an early response to a source that never pauses ends it as well", arguments: [200, 413])
  func earlyWhileSending(_ status: Int) throws {
    let server = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      _ = try connection.head()
      for _ in 0..<5 { _ = try connection.chunk() }
      try connection.respond("\(status) Early", body: "enough")
      _ = connection.readToEnd()
    }
    try withSession { session in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      let block = [UInt8](repeating: 7, count: 100_000)
      // Ends only because the pair is closed from the other side.
      try upload.body.writeUntilOver(block)
      let outcome = try upload.result().get()
      #expect(outcome.isEarly && outcome.response.status == status && outcome.response.text == "enough")
    }
  }

  @Test("an early response of unknown length is awaited briefly and then reported", arguments: [true, false])
  func earlyWithoutLength(_ closes: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.chunk()
      try connection.send(
        "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nnot \r\n3\r\nyou\r\n0\r\n\r\n")
      if closes { connection.shutdownWriting() }
      _ = connection.readToEnd()
    }
    try withSession { session in
      var request = UploadRequest(url: server.url)
      request.limits.response = .seconds(300)
      let upload = try RunningUpload(session, request)
      try upload.body.write("first")
      let outcome = try upload.result().get()
      #expect(outcome.isEarly && outcome.response.status == 403 && outcome.response.text == "not you")
    }
  }

  @Test("cancelling ends the request at once, without the last chunk, and is reported once")
  func cancel() throws {
    let ends = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      ends.append("first \(try connection.chunk()?.count ?? -1)")
      do { ends.append("then \(try connection.chunk().map { "\($0)" } ?? "the last chunk")") } catch {
        ends.append(connection.isEnded ? "broken off" : "\(error)")
      }
    }
    try withSession { session in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      try upload.body.write("some")
      try ends.first("the first chunk") { $0 == "first 4" }
      upload.task.cancel()
      upload.task.cancel()
      #expect(try upload.failure().kind == .cancelled)
      try upload.body.waitUntilOver()
      #expect(try ends.wait("the end") { $0.count > 1 ? $0[1] : nil } == "broken off")
      #expect(upload.endCount == 1)
    }
  }

  @Test("a failed body aborts the connection, so a server never treats it as complete")
  func bodyFails() throws {
    let ends = try EventLog<String>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.chunk()
      ends.append("first")
      do { ends.append("then \(try connection.chunk().map { "\($0)" } ?? "the last chunk")") } catch {
        ends.append(connection.isEnded ? "broken off" : "\(error)")
      }
    }
    try withSession { session in
      let upload = try RunningUpload(session, UploadRequest(url: server.url))
      try upload.body.write("some")
      try ends.first("the first chunk") { $0 == "first" }
      upload.body.fail()
      let error = try upload.failure()
      #expect(error.kind == .bodyFailed && error.description == "the microphone burnt")
      #expect(try ends.wait("the end") { $0.count > 1 ? $0[1] : nil } == "broken off")
    }
  }

  @Test("closing a session ends its uploads as cancelled")
  func closing() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let session = try UploadSession()
    let uploads = try (0..<5).map { _ in try RunningUpload(session, UploadRequest(url: server.url)) }
    for upload in uploads {
      try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
    }
    session.close()
    for upload in uploads { #expect(try upload.failure().kind == .cancelled) }
  }

  @Test("a request in a session that is closed, or is closing, is refused as cancelled")
  func closed() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.readToEnd() }
    let session = try UploadSession()
    let request = UploadRequest(url: server.url)
    let kinds = try EventLog<UploadError.Kind?>()
    let start: @Sendable () -> Void = {
      do {
        _ = try RunningRequest(session, request, .empty)
        kinds.append(nil)
      } catch {
        kinds.append((error as? UploadError)?.kind)
      }
    }
    #expect(session.whenClosing(start) != nil)
    session.close()
    start()
    #expect(kinds.all == [.cancelled, .cancelled])
  }

  @Test(
    "an invalid request is refused before anything is sent",
    arguments: ["gopher://h", "", "h", "h:80/a", "http:h", "http:/h", "http:/h?for=http://i/", "u:p@h/?for=http://i/"])
  func refused(url: String) throws {
    try withSession { session in
      #expect(throws: UploadError.self) { try RunningUpload(session, UploadRequest(url: url)) }
    }
  }

  @Test("a refused connection, an unknown name and a response that is not HTTP each have their kind")
  func kinds() throws {
    let gibberish = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("SSH-2.0-OpenSSH_9.2\r\n")
      _ = connection.readToEnd()
    }
    let hangingUp = try ScriptedServer { connection, _ in _ = try connection.head() }
    try withSession { session in
      func kind(_ url: String) throws -> UploadError.Kind {
        let upload = try RunningUpload(session, UploadRequest(url: url))
        upload.body.end()
        return try upload.failure().kind
      }
      let port = try freePort()
      #expect(try kind("http://127.0.0.1:\(port)/") == .unreachable)
      // RFC 6761, section 6.4: such a name never exists.
      #expect(try kind("http://nowhere.invalid/") == .unknownHost)
      #expect(try kind(gibberish.url) == .protocolViolation)
      #expect(try kind(hangingUp.url) == .connectionLost)
    }
  }

  @Test("a response head that is truncated at any byte is a lost connection, whether the body has ended or not")
  func cutHeads() throws {
    let head = "HTTP/1.1 204 No Content\r\nUpload-Draft-Interop-Version: 8\r\n\r\n"
    let interim = "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 1\r\n\r\n"
    try withSession { session in
      for before in ["", interim] {
        // libcurl treats a head as complete even if its last line feed is missing.
        for count in 0..<head.utf8.count - 1 {
          for bodyEnds in [true, false] {
            let server = try ScriptedServer { connection, _ in
              _ = try connection.head()
              try connection.send(before + String(decoding: head.utf8.prefix(count), as: UTF8.self))
            }
            let upload = try RunningUpload(session, UploadRequest(url: server.url))
            if bodyEnds { upload.body.end() }
            let kind = try upload.failure().kind
            #expect(kind == .connectionLost, "\(before.isEmpty ? "" : "after a 104, ")\(count) bytes of the head")
          }
        }
      }
    }
  }

  @Test("2,000 concurrent uploads in one session run on one thread, each to its own end")
  func many() throws {
    try raiseDescriptorLimit()
    let server = try StreamServer()
    let threads = Lock<Set<UInt>>([])
    try withSession { session in
      let uploads = try (0..<2_000).map { number in
        var request = UploadRequest(url: "\(server.url)/many")
        request.fields = ["Stream-ID": "s\(number)", "Content-Type": "text/plain"]
        return try RunningUpload(session, request) { threads.withLock { _ = $0.insert(UInt(pthread_self())) } }
      }
      // All are active at the same time, half written, before the first one ends.
      for (number, upload) in uploads.enumerated() { try upload.body.write("begin \(number) ") }
      try server.events.wait("2,000 streams") { events in events.count { $0.kind == .begun } == 2_000 ? true : nil }
      for upload in uploads {
        try upload.body.write("end")
        upload.body.end()
      }
      for upload in uploads { #expect(try upload.response().status == 201) }
      #expect(threads.withLock { $0.count } == 1)
      for number in [0, 1, 999, 1_999] {
        #expect(try server.directory.contents("many-s\(number).txt") == Array("begin \(number) end".utf8))
      }
      #expect(server.directory.names.count == 2_000)
    }
  }
}
