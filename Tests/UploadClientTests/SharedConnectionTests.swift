// HTTP/2: several uploads over one connection, without effects on each other.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("Uploads that share a connection", .serialized)
struct SharedConnectionTests {
  private struct Received: Sendable {
    var path: String
    var body: [UInt8]
  }

  /// Accepts any number of bodies, and keeps those that end.
  private func backend(_ received: EventLog<Received>) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      while true {
        let path = String(try connection.head().line.split(separator: " ")[1])
        received.append(Received(path: path, body: try connection.body()))
        try connection.respond("200 OK")
      }
    }
  }

  private func request(_ nginx: TLSFrontEnd, _ path: String) -> UploadRequest {
    var request = UploadRequest("PATCH", "https://localhost:\(nginx.port)\(path)")
    request.certificateAuthorities = nginx.authority
    request.addressFamily = .ipv4
    request.httpVersion = .http2
    return request
  }

  private func withSharing(_ count: Int, _ body: (UploadSession) throws -> Void) throws {
    let session = try UploadSession(connections: .shared(maximumUploads: count))
    defer { session.close() }
    try body(session)
  }

  private func isNew(_ upload: RunningUpload) -> Bool {
    upload.events.all.contains { if case .connected(isNew: true) = $0 { true } else { false } }
  }

  @Test(
    "all of them arrive byte for byte over one connection, independently of the others", arguments: Seed.several(2))
  func together(seed: Seed) throws {
    var random = seed.generator
    let received = try EventLog<Received>()
    let backend = try backend(received)
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    let patterns = (0..<24).map { OffsetPattern(seed: seed.value &+ UInt64($0)) }
    try withSharing(100) { session in
      let uploads = try patterns.indices.map { try RunningUpload(session, request(nginx, "/\($0)")) }
      var counts = [Int](repeating: 0, count: uploads.count)
      func write(_ number: Int, _ count: Int) throws {
        let start = counts[number]
        try uploads[number].body.write(patterns[number][start..<start + count])
        counts[number] += count
      }
      for number in uploads.indices { try write(number, random.size(upTo: 6_000)) }
      for upload in uploads {
        try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
      }
      // Two are aborted in the middle, and two pause for a while.
      uploads[0].task.cancel()
      uploads[1].task.cut()
      uploads[2].task.suspend()
      uploads[3].task.suspend()
      #expect(try uploads[0].failure().kind == .cancelled)
      #expect(try uploads[1].failure().kind == .cut)
      for _ in 0..<150 {
        let number = Int.random(in: 4..<uploads.count, using: &random)
        try write(number, random.size(upTo: 6_000))
      }
      for upload in uploads.dropFirst(4).shuffled(using: &random) { upload.body.end() }
      for upload in uploads.dropFirst(4) { #expect(try upload.response().status == 200) }
      for number in 2...3 {
        uploads[number].task.resume()
        try write(number, 20_000)
        uploads[number].body.end()
        #expect(try uploads[number].response().status == 200)
      }
      for number in 2..<uploads.count {
        let body = received.all.first { $0.path == "/\(number)" }?.body ?? []
        #expect(body.count == counts[number] && body == patterns[number][0..<body.count])
        #expect(uploads[number].task.acknowledgedByteCount == UInt64(counts[number]), "\(seed)")
      }
      #expect(uploads.count(where: isNew) == 1)
      // The connection outlives all of this.
      let last = try RunningUpload(session, request(nginx, "/last"))
      last.body.end()
      #expect(try last.response().status == 200)
      #expect(!isNew(last))
    }
    #expect(Set(nginx.connectionLog).count == 1)
  }

  @Test("requests that wait for the connection of others end after twice the limit, and their number does not matter")
  func waiting() throws {
    // It accepts connections, and never answers TLS.
    let silent = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    try withSharing(100) { session in
      let requests = try (0..<12).map { number in
        var request = UploadRequest("GET", "https://127.0.0.1:\(silent.port)/\(number)")
        request.httpVersion = .http2
        request.limits.connect = .milliseconds(400)
        return try RunningRequest(session, request)
      }
      let failures = try requests.map { try $0.failure() }
      #expect(failures.allSatisfy { $0.kind == .timedOut }, "\(failures)")
      // libcurl alone would try one after the other.
      #expect(failures.contains { "\($0)" == "no connection was available for 0.8 s" }, "\(failures)")
      #expect(try onThread(of: session) { session.lanes[0].connections.isIdle && session.lanes[0].transfers.isEmpty })
    }
  }

  @Test("an upload over the connection of another has no limit of its own for connecting")
  func joining() throws {
    let received = try EventLog<Received>()
    let backend = try backend(received)
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    try withSharing(100) { session in
      let first = try RunningUpload(session, request(nginx, "/first"))
      try first.events.first("a connection") { if case .connected = $0 { true } else { false } }
      var quick = request(nginx, "/second")
      quick.limits.connect = .milliseconds(50)
      let second = try RunningUpload(session, quick)
      try second.events.first("a connection") { if case .connected = $0 { true } else { false } }
      // More than twice the limit passes.
      let passed = try EventCounter()
      session.loop.execute { session.loop.schedule(after: .milliseconds(300)) { passed.signal() } }
      #expect(waitUntilReadable(passed.descriptor))
      let users = try onThread(of: session) { () -> Int? in
        let multi = session.lanes[0]
        return multi.transfers.values.first?.connection.map { multi.users(of: $0).count }
      }
      #expect(users == 2)
      for upload in [first, second] {
        try upload.body.write("text")
        upload.body.end()
        #expect(try upload.response().status == 200)
      }
      #expect(isNew(first) && !isNew(second))
    }
  }

  @Test("the number of uploads on a connection is limited", arguments: [1, 2, 3])
  func limit(_ maximum: Int) throws {
    let received = try EventLog<Received>()
    let backend = try backend(received)
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    try withSharing(maximum) { session in
      let uploads = try (0..<6).map { try RunningUpload(session, request(nginx, "/\($0)")) }
      for upload in uploads {
        try upload.body.write("text")
        try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
      }
      for upload in uploads {
        upload.body.end()
        #expect(try upload.response().status == 200)
      }
    }
    try eventually("nginx's log") { nginx.connectionLog.count == 6 }
    let users = Dictionary(grouping: nginx.connectionLog, by: \.self).mapValues(\.count)
    #expect(users.values.max() == maximum)
  }

  @Test(
    "without TLS, each has its own connection, if libcurl cannot share one",
    .enabled(if: UploadSession.cannotReusePlainHTTP2 != nil, "this libcurl can"))
  func plain() throws {
    let served = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      let http2 = try HTTP2Connection(connection)
      while true {
        let stream = try http2.request()
        served.append(number)
        try http2.content(of: stream)
        try http2.respond(200, to: stream)
      }
    }
    try withSharing(100) { session in
      var request = UploadRequest("PATCH", server.url)
      request.httpVersion = .http2
      // During another one, and after one that is over.
      for round in 1...2 {
        let uploads = try (0..<3).map { _ in
          let upload = try RunningUpload(session, request)
          try upload.body.write("begun")
          try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
          return upload
        }
        try served.wait("all requests") { $0.count == 3 * round ? true : nil }
        for upload in uploads {
          upload.body.end()
          #expect(try upload.response().status == 200)
        }
        #expect(uploads.allSatisfy(isNew))
        try eventually("the end of all connections") {
          (try? onThread(of: session) { session.lanes[0].connections.count }) == 0
        }
      }
    }
    #expect(Set(served.all).count == 6)
  }

  @Test("one whose peer has closed its window does not delay the others, and causes no cost while it waits")
  func heldUp() throws {
    let received = try EventLog<Received>()
    let mayRead = try EventCounter()
    let descriptor = mayRead.descriptor
    let backend = try ScriptedServer(receiveBuffer: 65_536) { connection, _ in
      while true {
        let path = String(try connection.head().line.split(separator: " ")[1])
        if path == "/held", !waitUntilReadable(descriptor) { return }
        received.append(Received(path: path, body: try connection.body()))
        try connection.respond("200 OK")
      }
    }
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(backend.port)")
    try withSharing(100) { session in
      let resting = try (0..<3).map { try RunningUpload(session, request(nginx, "/\($0)")) }
      for upload in resting { try upload.body.write("begun") }
      let held = try RunningUpload(session, request(nginx, "/held"))
      let total = 8 << 20
      let feeder = try NamedThread("test feeder") {
        for _ in 0..<total >> 16 {
          guard (try? held.body.write([UInt8](repeating: 7, count: 1 << 16))) != nil else { return }
        }
        held.body.end()
      }
      defer { feeder.join() }
      let sent = try settled { held.task.sentByteCount }
      #expect(sent > 0 && sent < total)
      // Over more than one of the pauses in which libcurl is not called.
      let before = try onThread(of: session) { threadTime() }
      let never = try EventCounter()
      _ = waitUntilReadable(never.descriptor, limit: .milliseconds(800))
      let spent = try onThread(of: session) { threadTime() } - before
      #expect(spent < .milliseconds(200), "\(spent) in 0.8 s")
      for upload in resting {
        try upload.body.write(" and ended")
        upload.body.end()
        #expect(try upload.response().status == 200)
      }
      mayRead.signal()
      #expect(try held.response().status == 200)
      let body = received.all.first { $0.path == "/held" }?.body
      #expect(body == [UInt8](repeating: 7, count: total))
      #expect(received.all.count == 4)
    }
    withExtendedLifetime(mayRead) {}
  }
}

/// The result of `body` on the session's thread.
func onThread<Value: Sendable>(of session: UploadSession, _ body: @escaping @Sendable () -> Value) throws -> Value {
  let found = try EventLog<Value>()
  session.loop.execute { found.append(body()) }
  return try found.wait("the session's thread") { $0.first }
}
