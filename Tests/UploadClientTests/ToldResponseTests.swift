import EventLoops
import NetworkTesting
import PropertyTesting
import Testing

@testable import UploadClient

@Suite("Responses that are delivered as they arrive")
struct ToldResponseTests {
  @Test("head and body of a response are delivered, and all of the body, for any length")
  func told() throws {
    let body = String(repeating: "0123456789", count: 10_000)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 103 Early Hints\r\n\r\n")
      try connection.respond("200 OK", ["X-A: b"], body: body)
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    (request.method, request.tellsResponse) = ("GET", true)
    let running = try RunningRequest(session, request)
    let outcome = try running.result().get()
    #expect(outcome.response.body.isEmpty && outcome.bodyFailure == nil)
    var (heads, received): ([Int], [UInt8]) = ([], [])
    for event in running.events.all {
      if case .response(let head) = event {
        #expect(received.isEmpty)
        heads.append(head.status)
      }
      if case .responseBody(let bytes) = event { received += bytes }
    }
    #expect(heads == [200])
    #expect(received == Array(body.utf8))
    let isLast = if case .finished? = running.events.all.last { true } else { false }
    #expect(isLast, "nothing is delivered after the end")
  }

  @Test("pieces that arrive together are delivered together, up to the size of a block, whose memory is used again")
  func pieces() throws {
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest("GET", "http://127.0.0.1:9/")
    request.tellsResponse = true
    let told = try EventLog<[UInt8]>()
    let transfer = CurlTransfer(request: request, body: .none, loop: session.loop, session: session) { event in
      if case .responseBody(let bytes) = event { told.append(bytes) }
    }
    defer { transfer.task.isOver(nil) }
    session.reuse([UInt8](repeating: 0, count: ResponseBlocks.size))
    #expect(session.responseBlocks.count == 1)
    let counts = [Int](repeating: 16_384, count: 5) + [100]
    let unused = try onThread(of: session) { () -> Int in
      for (number, count) in counts.enumerated() {
        [UInt8](repeating: UInt8(number), count: count).withUnsafeBytes { transfer.collect($0) }
      }
      return session.responseBlocks.count
    }
    #expect(unused == 0)
    try told.wait("both blocks") { $0.count == 2 ? true : nil }
    _ = try onThread(of: session) { [7].withUnsafeBytes { transfer.collect($0) } }
    try told.wait("a small piece") { $0.count > 2 ? true : nil }
    #expect(told.all.map(\.count) == [65_536, 16_484, MemoryLayout<Int>.size])
    let all = counts.enumerated().flatMap { number, count in [UInt8](repeating: UInt8(number), count: count) }
    #expect(told.all.prefix(2).flatMap(\.self) == all)
  }

  @Test("while its owner pauses it, a response has no time limit, and afterwards it has one")
  func paused() throws {
    // A busy machine may stop the server for as long as the limit before it responds.
    for limit in [.milliseconds(300), .seconds(2)] as [Duration] {
      if try isPausedWithoutLimit(limit) { return }
    }
    #expect(try isPausedWithoutLimit(.seconds(6)), "the response came too late each time")
  }

  /// Pauses a response for more than twice its limit. Returns false if the response did not begin within the limit.
  private func isPausedWithoutLimit(_ limit: Duration) throws -> Bool {
    let body = [UInt8](repeating: 120, count: 200_000)
    let mayAnswer = try EventCounter()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      guard waitUntilReadable(mayAnswer.descriptor) else { return }
      // One byte is missing, and nothing follows.
      try connection.send("HTTP/1.1 200 OK\r\nContent-Length: \(body.count + 1)\r\n\r\n")
      try connection.send(body)
      _ = connection.waitForEnd()
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest("GET", server.url)
    request.tellsResponse = true
    request.limits.response = limit
    let running = try RunningRequest(session, request)
    running.task.pauseReception()
    mayAnswer.signal()
    let first = try running.events.first("the head") {
      switch $0 {
      case .response, .finished: true
      default: false
      }
    }
    if case .finished = first { return false }
    let passed = try EventCounter()
    session.loop.execute { session.loop.schedule(after: limit * 7 / 3) { passed.signal() } }
    #expect(waitUntilReadable(passed.descriptor, limit: .seconds(120)))
    func received() -> [UInt8] {
      running.events.all.flatMap { event in if case .responseBody(let bytes) = event { bytes } else { [UInt8]() } }
    }
    #expect(running.endCount == 0 && received().isEmpty)
    running.task.resumeReception()
    let outcome = try running.result().get()
    #expect(received() == body)
    #expect(outcome.bodyFailure == UploadError(.timedOut, "the response's body did not end"))
    return true
  }

  @Test("trailers that follow the content are in the response")
  func trailers() throws {
    let server = try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        try connection.send(
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
            + "5\r\ndone\n\r\n0\r\nX-Sum: abc\r\n\r\n")
      }
    }
    let session = try UploadSession()
    defer { session.close() }
    let response = try session.send(UploadRequest("GET", server.url))
    #expect(response.text == "done" && response.trailers == ["X-Sum": "abc"] && response["X-Sum"] == nil)
  }

  @Test("a body that ends before its time is a response with a failure")
  func truncated() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    (request.method, request.tellsResponse) = ("GET", true)
    let outcome = try RunningRequest(session, request).result().get()
    #expect(outcome.response.status == 200)
    #expect(outcome.bodyFailure?.kind == .connectionLost)
  }

  @Test("the requested length of a body is kept")
  func kept() throws {
    let body = String(repeating: "x", count: HTTPResponse.bodyLimit + 1)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", body: body)
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    (request.method, request.responseBodyLimit) = ("GET", .max)
    #expect(try RunningRequest(session, request).response().body == Array(body.utf8))
  }
}
