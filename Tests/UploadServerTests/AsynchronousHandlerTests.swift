// Tests handlers that are tasks. Whatever a client does, they see one request with its whole body, or an error.

import Digests
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Handlers that are tasks", .serialized)
struct AsynchronousHandlerTests {
  /// How the content reaches the server.
  enum Transport: String, CaseIterable, CustomStringConvertible {
    case sized, chunked, resumable, resumedTwice, overARestart
    var description: String { rawValue }
  }

  /// How the handler reads the content.
  enum Reading: String, CaseIterable, CustomStringConvertible {
    case atOnce, later, inTheEnd
    var description: String { rawValue }
  }

  private func server(_ directory: TemporaryDirectory = TemporaryDirectory(), _ reading: Reading = .atOnce) throws
    -> TestServer
  {
    // Before the server runs, uploads of an earlier server look for their handler.
    try TestServer(
      in: directory,
      routes: { server in
        server.on(.post, "/checksum") { request in
          var digest = RunningDigest(.sha256)
          var all: [UInt8] = []
          for try await chunk in request.body {
            switch reading {
            case .atOnce: digest.update(chunk)
            case .later:
              for _ in 0..<20 { await Task.yield() }
              digest.update(chunk)
            case .inTheEnd: all += chunk
            }
          }
          digest.update(all)
          return .ok(digest.value().hexadecimal)
        }
      })
  }

  private func content(_ count: Int, _ random: inout SplitMix64) -> [UInt8] {
    (0..<count).map { _ in UInt8.random(in: 97...122, using: &random) }
  }

  private func send(_ content: [UInt8], by transport: Transport, _ reading: Reading, _ random: inout SplitMix64)
    throws -> RawClient.Answer
  {
    let directory = TemporaryDirectory()
    var test = try server(directory, reading)
    let text = String(decoding: content, as: UTF8.self)
    let client = try test.connect()
    switch transport {
    case .sized:
      try client.request("POST", "/checksum", version: nil, body: text)
      return try client.final().answer
    case .chunked:
      try client.request("POST", "/checksum", version: nil, chunked: true)
      var rest = text[...]
      while !rest.isEmpty {
        let piece = rest.prefix(Int.random(in: 1...200_000, using: &random))
        try client.sendChunk(String(piece))
        rest = rest.dropFirst(piece.count)
      }
      try client.send("0\r\n\r\n")
      return try client.final().answer
    case .resumable:
      try client.request("POST", "/checksum", ["Upload-Complete: ?1"], body: text)
      return try client.final().answer
    case .resumedTwice, .overARestart:
      let location = try test.create("/checksum")
      var offset = 0
      for cut in [Int.random(in: 0...content.count, using: &random), content.count].sorted() where cut > offset {
        let transfer = try test.connect()
        try transfer.patch(location, at: offset, chunked: true)
        try transfer.sendChunk(String(decoding: content[offset..<cut], as: UTF8.self))
        try transfer.awaitProgress(cut)
        transfer.reset()
        offset = cut
        if transport == .overARestart {
          test.stop()
          test = try server(directory, reading)
        }
      }
      let last = try test.connect()
      try last.patch(location, at: offset, completes: true, body: "")
      return try last.final().answer
    }
  }

  @Test(
    "it receives all of the content in order, for any pieces and any times of reads",
    arguments: Transport.allCases, Seed.several(1))
  func content(_ transport: Transport, _ seed: Seed) throws {
    var random = seed.generator
    for count in [0, 1, Int.random(in: 2...100_000, using: &random), 300_000] {
      let content = content(count, &random)
      let digest = Digest(.sha256, of: content.span.bytes).hexadecimal
      for reading in Reading.allCases {
        let answer = try send(content, by: transport, reading, &random)
        #expect(answer.status == 200 && answer.body == digest, "\(transport), \(reading), \(count) bytes")
      }
    }
  }

  @Test("a handler that does not read pauses its sender, and continues when it reads")
  func backpressure() throws {
    let test = try TestServer()
    let gate = Gate()
    test.server.on(.post, "/slow") { request in
      var count = 0
      for try await chunk in request.body {
        if count == 0 { await gate.wait() }
        count += chunk.count
      }
      return .ok("\(count)")
    }
    let client = try test.connect()
    let total = 64 << 20
    try client.send("POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: \(total)\r\n\r\n")
    let piece = [UInt8](repeating: 120, count: 1 << 16)
    func sendWhatGoes(_ sent: inout Int, patience: Int32) {
      var descriptor = pollfd(fd: client.descriptor, events: Int16(POLLOUT), revents: 0)
      while sent < total, poll(&descriptor, 1, patience) > 0 {
        sent += max(0, Glibc.send(client.descriptor, piece, min(piece.count, total - sent), Int32(MSG_DONTWAIT)))
      }
    }
    var sent = 0
    sendWhatGoes(&sent, patience: 300)
    #expect(sent < total / 2, "\(sent) bytes went to a handler that did not read")
    gate.open()
    sendWhatGoes(&sent, patience: 20_000)
    let answer = try client.final().answer
    #expect(answer.body == "\(total)")
  }

  @Test("an error of a handler is a 500 and an event, and the next request is served")
  func failure() throws {
    struct Refusal: Error {}
    let test = try TestServer()
    test.server.on(.get, "/x") { _ in throw Refusal() }
    for _ in 0..<2 {
      let client = try test.connect()
      try client.request("GET", "/x", version: nil)
      #expect(try client.final().answer.status == 500)
    }
    #expect(try test.events.wait(.warning, count: 2).reason?.contains("GET /x failed: Refusal") == true)
  }

  @Test("a client that disconnects causes an error in the body, and cancels the task")
  func brokenOff() throws {
    let test = try TestServer()
    let (begun, ended) = (try EventLog<Bool>(), try EventLog<String>())
    test.server.on(.put, "/x") { request in
      var count = 0
      do {
        for try await chunk in request.body {
          count += chunk.count
          begun.append(true)
        }
        ended.append("complete")
      } catch {
        ended.append("\(count) bytes, \(error is RequestAborted), cancelled \(Task.isCancelled)")
      }
      return .ok()
    }
    let client = try test.connect()
    try client.send("PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n01234")
    _ = try begun.wait("the first bytes") { $0.first }
    client.reset()
    let end = try ended.wait("the end") { $0.first }
    #expect(end == "5 bytes, true, cancelled true")
    #expect(!test.events.all.contains { $0.kind == .warning })
  }

  @Test("a newer request for the response of a handler that is still at work takes the place of the older one")
  func repeatedWait() throws {
    let (begun, gate) = (try EventLog<String>(), Gate())
    let test = try TestServer(routes: { server in
      server.on(.post, "/x") { request in
        for try await _ in request.body {}
        begun.append("all is there")
        await gate.wait()
        return .ok("done")
      }
    })
    let location = try test.create("/x")
    let older = try test.connect()
    try older.patch(location, at: 0, completes: true, body: "01234")
    _ = try begun.wait("the handler") { $0.first }
    let newer = try test.connect()
    try newer.patch(location, at: 5, completes: true, body: "")
    let end = try #require(throws: TestFailure.self, "it gets no final response") { try older.final() }
    #expect(["the server closed", "reset"].contains { "\(end)".contains($0) }, "\(end)")
    gate.open()
    let answer = try newer.final().answer
    #expect(answer.status == 200 && answer.body == "done" && answer["upload-complete"] == "?1")
  }

  @Test("a cancelled read is not the end of the body", arguments: [false, true])
  func cancelledRead(_ comesBefore: Bool) throws {
    let test = try TestServer()
    let (cancelled, ended) = (try EventLog<Bool>(), try EventLog<String>())
    let gate = Gate()
    test.server.on(.put, "/x") { request in
      if comesBefore {
        for try await _ in request.body { break }
      }
      let reading = Task {
        for try await _ in request.body {}
      }
      reading.cancel()
      let first = await reading.result
      cancelled.append(true)
      await gate.wait()
      var count = 0
      do {
        for try await chunk in request.body { count += chunk.count }
        ended.append("complete with \(count) bytes")
      } catch {
        ended.append("\(error)")
      }
      if case .success = first { ended.append("the cancelled read was complete") }
      return .ok()
    }
    let client = try test.connect()
    try client.send("PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n\(comesBefore ? "01234" : "")")
    _ = try cancelled.wait("the cancelled read") { $0.first }
    try client.send(comesBefore ? "56789" : "0123456789")
    gate.open()
    _ = try client.final()
    #expect(ended.all == ["cancelled"])
  }

  @Test("a handler learns that the server ends, although its upload continues with the next one")
  func serverEnds() throws {
    let ended = try EventLog<String>()
    let test = try TestServer(routes: { server in
      server.on(.post, "/x") { request in
        do {
          for try await _ in request.body {}
          ended.append("complete")
        } catch {
          ended.append("\(error)")
        }
        return .ok()
      }
    })
    let location = try test.create("/x")
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("01234")
    try client.awaitProgress(5)
    test.stop()
    #expect(try ended.wait("the handler's end") { $0.first } == "the server is stopping")
  }

  @Test("a handler that answers without the body refuses it before it is sent")
  func early() throws {
    let test = try TestServer()
    test.server.on(.put, "/x") { _ in Response(403, body: "no") }
    let client = try test.connect()
    try client.send("PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
    let (answer, interim) = try client.final()
    #expect(answer.status == 403 && interim.isEmpty)
  }

  @Test("a task that reads an incomplete body after the response receives an error", arguments: [false, true])
  func readAfterResponse(_ isResumable: Bool) throws {
    let ended = try EventLog<String>()
    let test = try TestServer()
    test.server.on(.put, "/x") { request in
      Task {
        do {
          for try await _ in request.body {}
          ended.append("complete")
        } catch {
          ended.append("\(error)")
        }
      }
      return Response(403)
    }
    let client = try test.connect()
    let fields = isResumable ? "Upload-Complete: ?1\r\n" : ""
    try client.send("PUT /x HTTP/1.1\r\nHost: h\r\n\(fields)Content-Length: 10\r\n\r\n01234")
    #expect(try client.final().answer.status == 403)
    let end = try ended.wait("the end of the body") { $0.first }
    #expect(end == "the response was sent before the end of the body")
  }

  @Test("a route applies to one method and path, the last one wins, and all other requests go to the store")
  func routes() throws {
    let test = try TestServer()
    test.server.on(.put, "/x") { _ in .ok("one") }.on(.put, "/x") { request in .ok("two \(request.method)") }
    func answer(_ method: String, _ path: String) throws -> RawClient.Answer {
      let client = try test.connect()
      try client.request(method, path, version: nil, body: "text")
      return try client.final().answer
    }
    #expect(try answer("PUT", "/x").body == "two PUT")
    #expect(try answer("POST", "/x").status == 201)
    #expect(try answer("PUT", "/x/y").status == 201)
  }

  @Test("a server that runs in a task ends when the task is cancelled", arguments: [false, true])
  func cancellation(_ atOnce: Bool) async throws {
    let directory = TemporaryDirectory()
    // Another process may be given the number of a free port at any moment.
    let server = try UploadServer(listen: "unix:\(directory.path)/socket", directory: directory.path)
    let task = Task { try await server.run() }
    if !atOnce {
      let client = try RawClient(server.localAddresses[0])
      try client.request("GET", "/", version: nil)
      #expect(try client.final().answer.status == 200)
    }
    task.cancel()
    try await task.value
    #expect(throws: (any Error).self) { try RawClient(server.localAddresses[0]) }
  }
}

/// A gate that opens once, for any number of tasks.
private final class Gate: Sendable {
  private let state = Lock<(isOpen: Bool, waiting: [CheckedContinuation<Void, Never>])>((false, []))

  func wait() async {
    await withCheckedContinuation { continuation in
      let isOpen = state.withLock { state in
        if !state.isOpen { state.waiting.append(continuation) }
        return state.isOpen
      }
      if isOpen { continuation.resume() }
    }
  }

  func open() {
    let waiting = state.withLock { state in
      state.isOpen = true
      return state.waiting
    }
    for continuation in waiting { continuation.resume() }
  }
}
