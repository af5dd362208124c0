// What a request leaves on the loop and in the table of connections.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import UploadClient

@Suite("The traces of a request", .serialized)
struct RequestTracesTests {
  /// The number of timers on the session's loop.
  private func timerCount(_ session: UploadSession) throws -> Int {
    try onThread(of: session) {
      (Mirror(reflecting: session.loop).descendant("timers", "heap") as? [Any])?.count ?? -1
    }
  }

  // MARK: Timers

  private func patient(_ method: String, _ url: String) -> UploadRequest {
    var request = UploadRequest(method, url)
    let limit = Duration.seconds(3600)
    (request.limits.connect, request.limits.unacknowledged, request.limits.response) = (limit, limit, limit)
    return request
  }

  @Test("a response's head replaces the time limit before it, and a request that has ended leaves no timer")
  func timers() throws {
    let mayAnswer = try EventCounter()
    let mayEnd = try EventCounter()
    let heads = try EventLog<Bool>()
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      heads.append(true)
      guard waitUntilReadable(mayAnswer.descriptor) else { return }
      try connection.send(head)
      guard waitUntilReadable(mayEnd.descriptor) else { return }
      try connection.send("done\n")
      _ = connection.waitForEnd()
    }
    try withSession { session throws in
      let running = try RunningRequest(session, patient("GET", server.url))
      try heads.first("the request") { $0 }
      let before = try timerCount(session)
      #expect(before > 0)
      mayAnswer.signal()
      try eventually("the response's head") { running.task.responseHeaderByteCount == head.utf8.count }
      #expect(try timerCount(session) <= before)
      mayEnd.signal()
      #expect(try running.response().text == "done")
      try eventually("the end of all timers") { (try? timerCount(session)) == 0 }
      let watches = try onThread(of: session) {
        (Mirror(reflecting: session.lanes[0]).descendant("changedSockets") as? [Int32])?.count
      }
      #expect(watches == 0)
    }
  }

  @Test("neither a sent body nor a request that waits for the connection of another leaves a timer")
  func otherTimers() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      #expect(try session.send(patient("PATCH", server.url), streaming: "some of it").status == 200)
      try eventually("the end of all timers") { (try? timerCount(session)) == 0 }
    }
    // It accepts connections, and never answers TLS.
    let silent = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    let session = try UploadSession(connections: .shared(maximumUploads: 100))
    defer { session.close() }
    var request = patient("GET", "https://127.0.0.1:\(silent.port)/")
    request.httpVersion = .http2
    let (first, second) = (try RunningRequest(session, request), try RunningRequest(session, request))
    #expect(try timerCount(session) > 0)
    for running in [second, first] {
      running.task.cancel()
      #expect(try running.failure().kind == .cancelled)
    }
    try eventually("the end of all timers") { (try? timerCount(session)) == 0 }
  }

  // MARK: Connections

  @Test("after a request without content, its connection is known to carry nothing else, as the next body requires")
  func transparent() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    try withSession { session throws in
      #expect(try session.send(UploadRequest("OPTIONS", server.url)).status == 200)
      #expect(try onThread(of: session) { session.lanes[0].connections.isIdle })
      let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
      try upload.events.first("a used connection") { if case .connected(isNew: false) = $0 { true } else { false } }
      let isTransparent = try onThread(of: session) {
        session.lanes[0].transfers.values.first?.connection?.isTransparent
      }
      #expect(isTransparent == true)
      upload.task.cancel()
      #expect(try upload.failure().kind == .cancelled)
    }
  }

  @Test("a connection that ends before its server's first bytes has no effect on the next one with its number")
  func reusedNumber() throws {
    let silent = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      for _ in 0..<10 {
        var request = UploadRequest("GET", silent.url)
        request.httpVersion = .http2
        let running = try RunningRequest(session, request)
        try running.events.first("a connection") { if case .connected = $0 { true } else { false } }
        running.task.cancel()
        #expect(try running.failure().kind == .cancelled)
        var next = UploadRequest("GET", server.url)
        next.usesFreshConnection = true
        #expect(try session.send(next).status == 200)
      }
    }
  }

  @Test("a socket that is writable without need is not watched for that until it has a reason, or some time has passed")
  func restrained() throws {
    let session = try UploadSession()
    let sockets = SocketTable()
    let multi = try CurlMulti(
      loop: session.loop, sockets: sockets, lookups: NameLookups(), connections: .onePerUpload)
    var ends: [Int32] = [-1, -1]
    let code = socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &ends)
    #expect(code == 0)
    let socket = ends[0]
    defer {
      session.close()
      for descriptor in ends { close(descriptor) }
      withExtendedLifetime(multi) {}
    }
    let isWatched: @Sendable () -> Bool? = { sockets[socket]?.watched?.contains(.writable) }
    let seen = try onThread(of: session) { () -> [Bool?] in
      var seen: [Bool?] = []
      sockets[socket] = SocketTable.Entry(wanted: [.readable, .writable])
      // One that is not restrained is not watched anew, whatever it had to send.
      multi.release(socket)
      multi.restrain(socket)
      seen.append(isWatched())
      for _ in 0..<4 { multi.restrain(socket) }
      seen.append(isWatched())
      multi.release(socket)
      seen += [isWatched(), sockets[socket]?.idleWrites == 0]
      for _ in 0..<4 { multi.restrain(socket) }
      seen.append(isWatched())
      return seen
    }
    #expect(seen == [nil, false, true, true, false])
    try eventually("the end of the restraint") { (try? onThread(of: session, isWatched)) == true }
    let isRestrained = try onThread(of: session) { () -> Bool? in
      defer {
        session.loop.deregister(socket)
        sockets[socket] = nil
      }
      return sockets[socket]?.isRestrained
    }
    #expect(isRestrained == false)
  }

  @Test("the caller decides with the final response whether its connection is used again")
  func keptConnection() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen) { _, connection in try connection.send("HTTP/1.1 103 Early Hints\r\n\r\n") }
    try withSession { session throws in
      for isKept in [true, false, true] {
        let (statuses, ends) = (try EventLog<Int>(), try EventLog<Bool>())
        _ = try session.upload(
          UploadRequest("GET", server.url), body: .none, lane: 0,
          keepsConnection: { response in
            statuses.append(response.status)
            return isKept
          }
        ) { event in
          if case .finished(.success) = event { ends.append(true) }
        }
        try ends.first("the end") { $0 }
        #expect(statuses.all == [200])
      }
    }
    #expect(seen.all.map(\.connection) == [0, 0, 1])
  }

  @Test("bytes of a request that is redirected are acknowledged when it ends, because its connection stays")
  func redirected() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("307 Temporary Redirect", ["Location: /there"])
      _ = connection.waitForEnd()
    }
    try withSession { session throws in
      let upload = try RunningUpload(session, UploadRequest("PATCH", server.url))
      try upload.body.write("hello")
      upload.body.end()
      #expect(try upload.response().status == 307)
      #expect(upload.task.acknowledgedByteCount == 5)
      #expect(try onThread(of: session) { session.lanes[0].connections.count } == 1)
    }
  }

  @Test("a request has a limit for the connection of others until it opens one, and then one for its peer")
  func limitsInTurn() throws {
    let session = try UploadSession(connections: .shared(maximumUploads: 2))
    defer { session.close() }
    let transfer = CurlTransfer(
      request: patient("PUT", "http://127.0.0.1:9"), body: .bytes([1, 2]), loop: session.loop, session: session
    ) { _ in }
    let found = try onThread(of: session) { () -> [Int] in
      func timers() -> Int { (Mirror(reflecting: session.loop).descendant("timers", "heap") as? [Any])?.count ?? -1 }
      var counts = [timers()]
      _ = transfer.prepare(multi: session.lanes[0])
      counts.append(timers())
      _ = transfer.opened(-1)
      counts.append(timers())
      let ends = ConnectionTable.Ends(local: "127.0.0.1", localPort: 1000, remote: "127.0.0.1", remotePort: 9)
      _ = transfer.connected(ends)
      counts.append(timers())
      transfer.cancel()
      return counts + [timers()]
    }
    #expect(found == [0, 1, 0, 1, 0])
  }

  @Test("a request whose body has begun is not sent again on another connection")
  func begunBody() throws {
    try withSession { session throws in
      func transfer() -> CurlTransfer {
        CurlTransfer(
          request: UploadRequest(url: "http://127.0.0.1:9"), body: .bytes([1, 2]), loop: session.loop, session: session
        ) { _ in }
      }
      let (fresh, begun) = (transfer(), transfer())
      defer { for transfer in [fresh, begun] { transfer.task.isOver(nil) } }
      let answers = try onThread(of: session) { () -> [Bool] in
        let ends = ConnectionTable.Ends(local: "127.0.0.1", localPort: 1000, remote: "127.0.0.1", remotePort: 9)
        begun.acknowledgement.handedOver(1)
        return [fresh.opened(-1), begun.opened(-1), begun.connected(ends)]
      }
      #expect(answers == [true, false, false])
      #expect(fresh.ownFailure == nil && begun.ownFailure?.kind == .connectionLost)
    }
  }
}
