// The resources of one request: memory, files, connections, and the effect of its end on the peer.

import CCurl
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("The limits of one request")
struct LimitsOfOneRequestTests {
  @Test(
    "a response ends its request early only if it preceded the body's end, and with its last byte",
    arguments: [false, true])
  func end(early: Bool) {
    for length in [0, 1, 5, 10] {
      for piece in [1, 2, 5, 7] {
        var machine = UploadStateMachine()
        if !early { _ = machine.bodyEnded() }
        let head = HTTPResponse(status: 413, fields: ["Content-Length": "\(length)"])
        #expect(
          machine.received(head: head)
            == (early ? length == 0 ? .endEarly : .stopSending : length == 0 ? .none : .startResponseBodyLimit))
        var left = length
        // A server that sends more than it announced must not end anything twice.
        for _ in 0..<12 {
          let isLast = left > 0 && left <= piece
          left -= piece
          let action = machine.received(body: [UInt8](repeating: 1, count: piece))
          #expect(action == (early && isLast ? .endEarly : .none), "\(length) in pieces of \(piece)")
        }
      }
    }
  }

  /// The bytes that a server sends after the head of its final response.
  enum Tail: String, CaseIterable {
    case nothing, drips, floods
  }

  @Test(
    "the head of the final response decides, on either HTTP version, although its body does not end",
    arguments: Tail.allCases, [UploadRequest.HTTPVersion.http1, .http2])
  func endlessBody(_ tail: Tail, _ version: UploadRequest.HTTPVersion) throws {
    let piece = [UInt8](repeating: 120, count: tail == .drips ? 1 : 16_384)
    let server = try ScriptedServer { connection, _ in
      if version == .http2 {
        let http2 = try HTTP2Connection(connection)
        let stream = try http2.request()
        try http2.content(of: stream)
        try connection.send(HTTP2Connection.response(201, [("upload-complete", "?1")], isInterim: true, to: stream))
        if tail != .nothing { connection.sendUntilEnd(slowly: tail == .drips, HTTP2Connection.data(piece, to: stream)) }
      } else {
        _ = try connection.head()
        _ = try connection.body()
        try connection.send("HTTP/1.1 201 Created\r\nUpload-Complete: ?1\r\n\r\n")
        if tail != .nothing { connection.sendUntilEnd(slowly: tail == .drips, piece) }
      }
      _ = connection.waitForBytes()
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    request.httpVersion = version
    request.limits.response = .seconds(60)
    let pair = BoundPair.make(bufferSize: 4096)
    let running = try RunningRequest(session, request, .stream(pair.input))
    let feed = try BodyFeed(pair.output)
    try feed.write("hello")
    feed.end()
    let start = MonotonicInstant.now
    let outcome = try running.result().get()
    #expect(outcome.response.status == 201 && !outcome.isEarly && outcome.response["Upload-Complete"] == "?1")
    #expect(outcome.response.body.count <= HTTPResponse.bodyLimit)
    // Before the server stops waiting.
    #expect(MonotonicInstant.now - start < .seconds(25))
  }

  @Test(
    "the client reads only the useful part of a response's body, however much is waiting",
    arguments: [1024, 16 << 10], [false, true])
  func floodThatWaits(bufferSize: Int, isEarly: Bool) throws {
    let full = try EventCounter()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
      let piece = [UInt8](repeating: 120, count: 1 << 16)
      var entry = pollfd(fd: connection.descriptor, events: Int16(POLLOUT), revents: 0)
      // Until the kernel accepts no more of it, and nothing follows it.
      while poll(&entry, 1, 0) == 1 { if send(entry.fd, piece, piece.count, Int32(MSG_DONTWAIT)) <= 0 { break } }
      full.signal()
      _ = connection.waitForEnd()
    }
    try withSession { session in
      var request = UploadRequest(isEarly ? "POST" : "GET", server.url)
      (request.receiveBufferSize, request.isMeasured) = (bufferSize, true)
      let pair = BoundPair.make(bufferSize: 4096)
      let ended = try EventLog<Result<UploadTask.Outcome, UploadError>>()
      let task = try session.upload(request, body: isEarly ? .stream(pair.input) : .none) { event in
        // The loop continues to read when all of it is there.
        if case .interimResponse = event { #expect(waitUntilReadable(full.descriptor)) }
        if case .finished(let result) = event { ended.append(result) }
      }
      let feed = try BodyFeed(pair.output)
      if isEarly { try feed.write("hello") }
      let outcome = try ended.first("the end") { _ in true }.get()
      #expect(outcome.response.status == 200 && outcome.isEarly == isEarly && outcome.bodyFailure == nil)
      let size = try onThread(of: session) { task.measure()?.responseBodySize } ?? 0
      #expect(size > 1 << 20 && size <= 1 << 20 + 2 * UInt64(bufferSize), "\(size) bytes")
    }
  }

  @Test("for any number of pending chunks, the ledger has a bounded number of entries, and its errors are too low")
  func ledger() {
    var ledger = ChunkLedger()
    for count in 1...10_000 {
      ledger.append(count % 100 + 1)
      let entries = Mirror(reflecting: ledger).children.first { $0.label == "entries" }?.value as? [Any]
      #expect((entries?.count ?? .max) <= ChunkLedger.maximumEntries)
    }
    #expect(ledger.acknowledge(wireCount: ledger.wireByteCount / 2) <= ledger.bodyByteCount / 2 + 100)
    #expect(ledger.acknowledge(wireCount: ledger.wireByteCount) == ledger.bodyByteCount)
  }

  @Test("libcurl's files must be regular or absent, for each option")
  func files() throws {
    let directory = try TemporaryDirectory()
    let fifo = "\(directory.path)/fifo"
    let file = "\(directory.path)/file"
    #expect(mkfifo(fifo, 0o600) == 0)
    close(open(file, O_WRONLY | O_CREAT, 0o600))
    let uses: [WritableKeyPath<UploadRequest, String?>] = [
      \.netrcFile, \.certificateAuthorities, \.clientCertificate, \.clientKey,
    ]
    for use in uses {
      for (path, isRefused) in [(fifo, true), (directory.path, true), (file, false), ("\(directory.path)/none", false)]
      {
        var request = UploadRequest(url: "https://127.0.0.1:9/")
        request[keyPath: use] = path
        do throws(UploadError) {
          try request.checkFiles()
          #expect(!isRefused, "\(path)")
        } catch {
          #expect(isRefused && error.kind == .other && "\(error)".contains("not a regular file"), "\(path)")
        }
      }
    }
  }

  @Test("an aborted connection is reset, so the peer cannot mistake it for the end of the body")
  func cut() throws {
    let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    defer { close(listener) }
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = UInt32(INADDR_LOOPBACK).bigEndian
    var length = socklen_t(MemoryLayout<sockaddr_in>.size)
    withUnsafeMutablePointer(to: &address) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        #expect(bind(listener, $0, length) == 0 && listen(listener, 4) == 0)
        getsockname(listener, $0, &length)
      }
    }
    let port = UInt16(bigEndian: address.sin_port)
    try withSession { session in
      let upload = try RunningUpload(session, UploadRequest("PATCH", "http://127.0.0.1:\(port)/"))
      let peer = accept(listener, nil, nil)
      defer { close(peer) }
      try upload.body.write("some of it")
      // Until the body has arrived, chunk by chunk.
      var received: [UInt8] = []
      var buffer = [UInt8](repeating: 0, count: 4_096)
      while !String(decoding: received, as: UTF8.self).contains("some of it") {
        let count = read(peer, &buffer, buffer.count)
        guard count > 0 else { throw TestFailure("the request did not come") }
        received += buffer[..<count]
      }
      upload.task.cut()
      #expect(try upload.failure().kind == .cut)
      var count = 0
      repeat { count = read(peer, &buffer, buffer.count) } while count > 0
      #expect(count == -1 && errno == ECONNRESET)
    }
  }

  @Test("requests that end together leave their connections to the following ones", arguments: [2, 3, 4, 9])
  func reuse(count: Int) throws {
    let seen = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      while true {
        let head = try connection.head()
        seen.append(number)
        _ = try connection.anyBody(head)
        try connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
      }
    }
    defer { server.close() }
    try withSession { session in
      for _ in 0..<4 {
        let uploads = try (0..<count).map { _ in try RunningUpload(session, UploadRequest("PATCH", server.url)) }
        for upload in uploads {
          try upload.body.write("some of it")
          try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
        }
        for upload in uploads { upload.body.end() }
        for upload in uploads { #expect(try upload.response().status == 200) }
      }
    }
    #expect(seen.all.count == 4 * count && Set(seen.all).count == count)
  }
}
