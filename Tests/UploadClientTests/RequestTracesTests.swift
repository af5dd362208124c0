// What a request leaves on its socket, in its session and on the loop.

import CLinux
import CallCounter
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
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

  private static func option(_ socket: Int32, _ level: Int32, _ name: Int32) -> Int32 {
    var (value, length): (Int32, socklen_t) = (-1, 4)
    return getsockopt(socket, level, name, &value, &length) == 0 ? value : -1
  }

  @Test("the kernel's settings of a request are on its socket, and its fields stay as long as it does")
  func socketOptions() throws {
    let server = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    try withSession { session throws in
      var request = UploadRequest("PATCH", server.url)
      request.socket.sendBuffer = 50_000
      request.socket.maximumSegment = 1000
      request.limits.unacknowledged = .milliseconds(12_345)
      let upload = try RunningUpload(session, request)
      try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
      let found = try onThread(of: session) { () -> [Int32] in
        let socket = session.lanes[0].transfers.values.first?.socket ?? -1
        return [
          Self.option(socket, SOL_SOCKET, SO_SNDBUF), Self.option(socket, Int32(IPPROTO_TCP), TCP_MAXSEG),
          Self.option(socket, Int32(IPPROTO_TCP), TCP_USER_TIMEOUT),
        ]
      }
      // The kernel doubles the size of the buffer, socket(7), and deducts TCP's options from a segment.
      #expect(found[0] == 100_000 && (500...1000).contains(found[1]) && found[2] == 12_345, "\(found)")
      let fields = try onThread(of: session) {
        session.lanes[0].transfers.values.first.map { "\(Mirror(reflecting: $0).descendant("fieldList") ?? "nil")" }
      }
      #expect(fields != nil && fields != "nil")
      upload.task.cancel()
      #expect(try upload.failure().kind == .cancelled)
    }
  }

  @Test("libcurl asks for as many bytes as its buffer holds", arguments: [16 << 10, 128 << 10])
  func uploadBuffer(_ size: Int) throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      var request = UploadRequest("PUT", server.url)
      (request.uploadBufferSize, request.tellsAccepted) = (size, true)
      let running = try RunningRequest(session, request, .bytes([UInt8](repeating: 1, count: 600_000)))
      #expect(try running.response().status == 200)
      let told = running.events.all.compactMap { if case .accepted(let count) = $0 { count } else { nil } }
      let steps = zip([0] + told, told).map { $1 - $0 }
      #expect(steps.max() == UInt64(size), "\(told)")
      #expect(running.task.passedOnByteCount == 600_000)
    }
  }

  @Test("a limited rate holds back the rest of a body")
  func rate() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      var request = UploadRequest("PUT", server.url)
      (request.maximumSendRate, request.tellsAccepted) = (1, true)
      let running = try RunningRequest(session, request, .bytes([UInt8](repeating: 1, count: 600_000)))
      try running.events.first("a connection") { if case .connected = $0 { true } else { false } }
      let sent = try settled { running.task.sentByteCount }
      #expect(sent < 600_000 && running.endCount == 0)
      running.task.cancel()
      #expect(try running.failure().kind == .cancelled)
    }
  }

  @Test("a client's encrypted key is an error, and nobody is asked for its pass phrase, even on a terminal")
  func encryptedKey() async {
    await #expect(processExitsWith: .success) {
      // A terminal of its own, which nobody uses.
      guard setsid() >= 0 else { throw TestFailure("no session") }
      let outer = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)
      // TIOCSPTLCK and TIOCGPTN, which Glibc's module omits: unlock the inner end, and get its number.
      var (locked, number) = (Int32(0), Int32(0))
      guard outer >= 0, ioctl(outer, 0x4004_5431, &locked) == 0, ioctl(outer, 0x8004_5430, &number) == 0,
        open("/dev/pts/\(number)", O_RDWR) >= 0
      else { throw TestFailure("no terminal") }
      let directory = try TemporaryDirectory()
      try TestCertificates.make(in: directory)
      let key = "\(directory.path)/encrypted.key"
      let openssl = try TestProcess(
        "openssl",
        ["ec", "-in", "\(directory.path)/client.key", "-aes256", "-passout", "pass:secret", "-out", key])
      guard try openssl.wait() == 0 else { throw TestFailure("openssl: \(openssl.errors)") }
      let server = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
      try withSession { session throws in
        var request = UploadRequest("GET", "https://127.0.0.1:\(server.port)/")
        request.clientCertificate = "\(directory.path)/client.pem"
        request.clientKey = key
        let error = try RunningRequest(session, request).failure()
        guard error.kind == .badCredentialsFile else { throw TestFailure("\(error.kind): \(error)") }
      }
    }
  }

  @Test("a coding of the response is accepted if the request asks for it")
  func acceptedCodings() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    try withSession { session throws in
      for coding in [nil, "gzip", ""] {
        var request = UploadRequest("GET", server.url)
        request.acceptEncoding = coding
        #expect(try session.send(request).status == 200)
      }
    }
    let codings = seen.all.map { $0.head["Accept-Encoding"] }
    #expect(codings.count == 3 && codings[0] == nil && codings[1] == "gzip" && codings[2]?.contains("deflate") == true)
  }

  @Test("a file that libcurl could not open at once ends the request before a connection")
  func files() throws {
    let directory = try TemporaryDirectory()
    try withSession { session throws in
      var request = UploadRequest("GET", "https://127.0.0.1:9/")
      request.certificateAuthorities = directory.path
      let error = try RunningRequest(session, request).failure()
      #expect(error.kind == .other && error.description.contains("is not a regular file"), "\(error)")
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
    let (mayAnswer, mayEnd) = (try EventCounter(), try EventCounter())
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

  // MARK: The session

  @Test("a session has one lane unless more are wanted, and uses the first one unless another is named")
  func lanes() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let sessions = [(try UploadSession(), 1), (try UploadSession(lanes: 0), 1), (try UploadSession(lanes: 2), 2)]
    for (session, count) in sessions {
      defer { session.close() }
      #expect(session.lanes.count == count)
      #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
      let used = try onThread(of: session) { session.lanes.map(\.connections.count) }
      #expect(used == [1] + [Int](repeating: 0, count: count - 1))
    }
  }

  @Test("a session that nobody refers to any more ends, and so do its idle connections")
  func dropped() throws {
    let ended = try EventLog<Bool>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK")
      ended.append(connection.readToEnd().isEmpty)
    }
    let closing = try EventCounter()
    do {
      let session = try UploadSession()
      let number = session.whenClosing { closing.signal() }
      #expect(number != nil)
      #expect(try session.send(UploadRequest("GET", server.url)).status == 200)
    }
    #expect(waitUntilReadable(closing.descriptor))
    #expect(try ended.wait("the end of the connection") { $0.first })
  }

  @Test(
    "a session that is closed on its own thread leaves none of the thread's memory",
    .enabled(if: call_counter_works(), "a sanitizer keeps the memory of threads"))
  func closedByItself() async {
    await #expect(processExitsWith: .success) {
      func addressSpace() throws -> Int {
        let status = String(decoding: try fileContents("/proc/self/status"), as: UTF8.self)
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmSize:") }
        guard let kilobytes = line.flatMap({ Int($0.filter(\.isNumber)) }) else { throw TestFailure("no VmSize") }
        return kilobytes
      }
      func threadCount() throws -> Int {
        try fileNames(in: "/proc/self/task").count { thread in
          let name = (try? fileContents("/proc/self/task/\(thread)/comm")) ?? []
          return name.starts(with: "sluice-network".utf8)
        }
      }
      func run(_ count: Int) throws {
        for _ in 0..<count {
          let session = try UploadSession()
          session.loop.execute { session.close() }
          try waitUntil("the thread ends") { try threadCount() == 0 }
        }
      }
      try run(10)
      let before = try addressSpace()
      try run(60)
      // The stacks of 60 threads would be 480 MiB.
      let growth = try addressSpace() - before
      guard growth < 200 << 10 else { throw TestFailure("\(growth) KiB more") }
    }
  }

  private final class Load: Sendable {}

  @Test("a closed session keeps neither what it was to do when it closes, nor the body of a request that it refuses")
  func closed() throws {
    weak var left: Load?
    let session = try UploadSession()
    do {
      let load = Load()
      left = load
      let number = session.whenClosing { withExtendedLifetime(load) {} }
      #expect(number != nil)
    }
    #expect(left != nil)
    session.close()
    try eventually("the end of what it keeps") { left == nil }
    let pair = BoundPair.make()
    let feed = try BodyFeed(pair.output)
    do throws(UploadError) {
      _ = try session.upload(UploadRequest(url: "http://127.0.0.1:9"), body: .stream(pair.input)) { _ in }
      Issue.record("a closed session took a request")
    } catch {
      #expect(error.kind == .cancelled)
    }
    try feed.waitUntilOver()
    withExtendedLifetime(session) {}
  }
}
