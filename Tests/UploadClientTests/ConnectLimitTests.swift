// A server that does not answer connection attempts, and the meaning of a proxy's answers.

import CCurl
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("Establishing a connection")
struct ConnectLimitTests {
  /// A port whose kernel no longer answers, because its queue is full.
  private final class SilentPort {
    let port: Int
    private var descriptors: [Int32] = []

    init() throws {
      let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
      let listener = try retryingInterrupts("socket") { socket(AF_INET, type, 0) }
      descriptors.append(listener)
      let address = try IPv4Address("127.0.0.1:0")
      try retryingInterrupts("bind") { address.withPointer { Glibc.bind(listener, $0, $1) } }
      try retryingInterrupts("listen") { listen(listener, 0) }
      let bound = try IPv4Address(of: listener)
      port = Int(bound.description.split(separator: ":")[1]) ?? 0
      // There is space for one connection. The next one is not answered.
      for _ in 0..<4 {
        let client = try retryingInterrupts("socket") {
          socket(AF_INET, type | Int32(SOCK_NONBLOCK.rawValue), 0)
        }
        descriptors.append(client)
        _ = bound.withPointer { connect(client, $0, $1) }
      }
    }

    deinit { for descriptor in descriptors { close(descriptor) } }
  }

  @Test("a connection attempt without a reply ends after the limit")
  func silence() throws {
    let silent = try SilentPort()
    try withSession { session throws in
      var request = UploadRequest(url: "http://127.0.0.1:\(silent.port)/take")
      request.method = "GET"
      request.limits.connect = .milliseconds(300)
      let start = MonotonicInstant.now
      let error = #expect(throws: UploadError.self) { try RunningRequest(session, request).response() }
      // libcurl's own limit is five minutes, and the kernel's is more than two.
      #expect(.now - start < .seconds(60))
      #expect(error?.kind == .timedOut, "\(String(describing: error))")
    }
  }

  @Test("each attempt has its own limit, however short, and whatever limits others had before or have now")
  func limits() throws {
    let silent = try SilentPort()
    try withSession { session throws in
      func attempt(_ limit: Duration) throws -> RunningRequest {
        var request = UploadRequest("GET", "http://127.0.0.1:\(silent.port)/")
        request.limits.connect = limit
        return try RunningRequest(session, request)
      }
      for _ in 0..<20 { #expect(try attempt(.milliseconds(1)).failure().kind == .timedOut) }
      // A limit that was withdrawn, and then a later one.
      let cancelled = try attempt(.milliseconds(100))
      _ = try onThread(of: session) { true }
      cancelled.task.cancel()
      _ = try cancelled.failure()
      #expect(try attempt(.milliseconds(300)).failure().kind == .timedOut)
      // An earlier limit beside a later one.
      let patient = try attempt(.seconds(3600))
      _ = try onThread(of: session) { true }
      #expect(try attempt(.milliseconds(50)).failure().kind == .timedOut)
      patient.task.cancel()
      #expect(try patient.failure().kind == .cancelled)
    }
  }

  @Test("of two simultaneous addresses, the one that answers becomes the connection, which is then reused")
  func twoAddresses() throws {
    let chunks = try EventLog<Int>()
    let server = try ScriptedServer { connection, _ in
      while true {
        _ = try connection.head()
        while let chunk = try connection.chunk() { chunks.append(chunk.count) }
        try connection.respond("200 OK")
      }
    }
    let silent = try SilentIPv6Port(server.port)
    try withSession { session throws in
      for round in 1...2 {
        // libcurl knows both addresses of this name itself, and tries IPv6 first.
        let upload = try RunningUpload(session, UploadRequest(url: "http://localhost:\(server.port)/"))
        try upload.body.write("twelve bytes")
        try chunks.wait("the bytes") { $0.count == round ? true : nil }
        try eventually("their acknowledgement") {
          session.loop.execute { upload.task.updateAcknowledged() }
          return upload.task.acknowledgedByteCount == 12
        }
        upload.body.end()
        #expect(try upload.response().status == 200)
        let isNew = upload.events.all.contains { if case .connected(isNew: true) = $0 { true } else { false } }
        #expect(isNew == (round == 1))
        #expect(try onThread(of: session) { session.lanes[0].connections.count } == 1)
      }
    }
    withExtendedLifetime(silent) {}
  }

  /// A port of ::1 whose kernel does not answer, because its queue is full.
  private final class SilentIPv6Port {
    private var descriptors: [Int32] = []

    init(_ port: UInt16) throws {
      let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
      var name = sockaddr_in6()
      name.sin6_family = sa_family_t(AF_INET6)
      name.sin6_addr = in6addr_loopback
      name.sin6_port = port.bigEndian
      for number in 0..<5 {
        let descriptor = try retryingInterrupts("socket") { socket(AF_INET6, type, 0) }
        descriptors.append(descriptor)
        let code = withUnsafePointer(to: &name) {
          $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
            let length = socklen_t(MemoryLayout<sockaddr_in6>.size)
            if number > 0 { return connect(descriptor, address, length) }
            return Glibc.bind(descriptor, address, length) == 0 ? listen(descriptor, 0) : -1
          }
        }
        if number == 0, code != 0 { throw SystemError.last("listening on ::1") }
      }
    }

    deinit { for descriptor in descriptors { close(descriptor) } }
  }

  @Test("ended requests leak nothing, at any point on the way to a response")
  func nothingStays() throws {
    let silent = try SilentPort()
    let resetting = try ScriptedServer { connection, _ in connection.reset() }
    let ending = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", ["Connection: close"])
    }
    let waiting = try ScriptedServer { connection, _ in _ = connection.waitForEnd() }
    try withSession { session throws in
      func request(_ url: String) -> UploadRequest {
        var request = UploadRequest("GET", url)
        request.limits.connect = .milliseconds(50)
        return request
      }
      let refused = "127.0.0.1:\(try freePort())"
      for _ in 0..<5 {
        // Before the connection: refused by both addresses of the name, not answered, and without TLS.
        for url in [
          "http://\(refused)", "http://localhost:\(try freePort())", "http://127.0.0.1:\(silent.port)",
          "https://127.0.0.1:\(ending.port)",
        ] {
          _ = try RunningRequest(session, request(url)).failure()
        }
        // Cancelled by its owner: at once, while connecting, and while waiting for the response.
        for (port, isBegun) in [(silent.port, false), (silent.port, true), (Int(waiting.port), true)] {
          let running = try RunningRequest(session, UploadRequest("GET", "http://127.0.0.1:\(port)"))
          if isBegun { _ = try onThread(of: session) { true } }
          running.task.cancel()
          #expect(try running.failure().kind == .cancelled)
        }
        _ = try RunningRequest(session, request(resetting.url)).failure()
        #expect(try RunningRequest(session, request(ending.url)).response().status == 200)
      }
      let (isIdle, open) = try onThread(of: session) {
        let multi = session.lanes[0]
        return (multi.connections.isIdle && multi.transfers.isEmpty, multi.connections.count)
      }
      // libcurl's pool: four for each simultaneous request. It keeps one that was reset while the request was sent.
      #expect(isIdle && open <= 4, "\(open) connections")
    }
  }

  /// How a request can end.
  enum Ending: String, CaseIterable {
    case refused, refusedByBoth, unanswered, noTLS, cancelledAtOnce, cancelledOnTheWay, cancelledInTime, reset, complete
  }

  @Test("a session has no record of a connection that libcurl has closed", arguments: Ending.allCases)
  func nothingKnown(_ ending: Ending) throws {
    let silent = try SilentPort()
    let server = try ScriptedServer { connection, _ in
      if ending == .reset {
        // Until then, libcurl may keep the connection in its pool.
        _ = try connection.head()
        return connection.reset()
      }
      guard ending == .complete || ending == .noTLS else {
        _ = connection.waitForEnd()
        return
      }
      _ = try connection.head()
      try connection.respond("200 OK", ["Connection: close"])
    }
    let url =
      switch ending {
      case .refused: "http://127.0.0.1:\(try freePort())"
      case .refusedByBoth: "http://localhost:\(try freePort())"
      case .unanswered, .cancelledAtOnce, .cancelledOnTheWay: "http://127.0.0.1:\(silent.port)"
      case .noTLS: "https://127.0.0.1:\(server.port)"
      case .cancelledInTime, .reset, .complete: server.url
      }
    try withSession { session throws in
      var request = UploadRequest("GET", url)
      if ending == .unanswered { request.limits.connect = .milliseconds(50) }
      let running = try RunningRequest(session, request)
      if ending == .cancelledInTime { try running.events.first("the connection") { _ in true } }
      if ending == .cancelledOnTheWay { _ = try onThread(of: session) { true } }
      if ending.rawValue.hasPrefix("cancelled") { running.task.cancel() }
      #expect(try running.result().isSuccess == (ending == .complete))
      let (isIdle, open) = try onThread(of: session) {
        let multi = session.lanes[0]
        return (multi.connections.isIdle && multi.transfers.isEmpty, multi.connections.count)
      }
      #expect(isIdle && open == 0, "\(open) connections")
    }
  }

  @Test("a socket with a reused number belongs to the request that has opened it last")
  func numberComesBack() throws {
    try withSession { session in
      func transfer() -> CurlTransfer {
        CurlTransfer(
          request: UploadRequest(url: "http://127.0.0.1:9"), body: .none, loop: session.loop, session: session
        ) { _ in }
      }
      let ends = ConnectionTable.Ends(local: "127.0.0.1", localPort: 1000, remote: "127.0.0.1", remotePort: 9)
      var table = ConnectionTable()
      let (first, second, third) = (transfer(), transfer(), transfer())
      defer { for transfer in [first, second, third] { transfer.task.isOver(nil) } }
      table.opened(100_000, by: first)
      let lost = table[100_000]
      table.opened(100_000, by: second)
      #expect(lost?.isOpen == false)
      table.forget(first)
      let used = table.use(ends, by: second)
      let connection = try #require(used)
      #expect(connection === table[100_000] && connection.isNew && connection.isOpen)
      // One that waits in libcurl's pool belongs to no attempt.
      table.opened(100_001, by: third)
      table.forget(second)
      #expect(table.count == 2)
      table.forget(third)
      #expect(table.count == 1 && table[100_000] === connection)
    }
  }

  @Test("requests of one lane use one connection one after another, and those of different lanes never do")
  func lanes() throws {
    let seen = try EventLog<SeenRequest>()
    let server = try obligingServer(seen)
    let session = try UploadSession(lanes: 3)
    defer { session.close() }
    for _ in 0..<2 {
      for lane in [0, 1, 2, 3, 7, 8, -1, .max, .min] {
        let events = try EventLog<UploadTask.Event>()
        _ = try session.upload(UploadRequest("GET", "\(server.url)/\(lane)"), body: .none, lane: lane) {
          events.append($0)
        }
        try events.first("the end") { if case .finished(.success) = $0 { true } else { false } }
      }
    }
    let connections = Dictionary(grouping: seen.all, by: { $0.head.line }).mapValues { Set($0.map(\.connection)) }
    #expect(connections.values.allSatisfy { $0.count == 1 })
    #expect(Set(seen.all.map(\.connection)) == [0, 1, 2])
  }

  @Test("a refusing proxy is distinguished from an unreachable one, and from the host itself")
  func proxyAnswers() {
    for status in [401, 403, 407] {
      #expect(UploadError(code: CURLE_RECV_ERROR, detail: "", proxyStatus: status).kind == .proxyRefused)
      #expect(
        UploadError(code: CURLE_RECV_ERROR, detail: "", proxyStatus: status).description
          == "the proxy answered \(status)")
    }
    for status in [300, 302, 400, 402, 404, 408, 500, 503] {
      #expect(UploadError(code: CURLE_RECV_ERROR, detail: "", proxyStatus: status).kind == .unreachable)
    }
    for status in [0, 100, 200, 299] {
      #expect(UploadError(code: CURLE_URL_MALFORMAT, detail: "", proxyStatus: status).kind == .invalidRequest)
    }
  }

  @Test("a connection that ends before libcurl can ask for its address was closed by the server at once")
  func endedAtOnce() {
    let words = "getpeername() failed with errno 107: Transport endpoint is not connected"
    for code in [CURLE_RECV_ERROR, CURLE_SEND_ERROR, CURLE_GOT_NOTHING] {
      let error = UploadError(code: code, detail: words)
      #expect(error.kind == .connectionLost)
      #expect(error.description == "the server closed the connection at once")
    }
  }

  @Test("unacknowledged bytes are a timeout, and any other failure of a socket is a lost connection")
  func systemErrors() {
    for code in [CURLE_SEND_ERROR, CURLE_RECV_ERROR] {
      for (number, kind) in [(ETIMEDOUT, .timedOut), (ECONNRESET, .connectionLost), (0, .connectionLost)]
        as [(Int32, UploadError.Kind)]
      {
        let error = UploadError(code: code, detail: "words", systemError: number)
        #expect(error.kind == kind && error.description.contains("words"))
      }
    }
    #expect(UploadError(code: CURLE_GOT_NOTHING, detail: "", systemError: ETIMEDOUT).kind == .connectionLost)
  }

  @Test("a lack of memory is explained with the head of the response only while that is due")
  func memory() {
    for isDue in [true, false] {
      let error = UploadError(code: CURLE_OUT_OF_MEMORY, detail: "", awaitsHead: isDue)
      #expect(error.kind == .other && error.description.contains("head") == isDue)
      #expect(error.description.hasPrefix("Out of memory"))
    }
  }

  @Test("a valid proxy is one that libcurl supports")
  func proxies() {
    for text in ["localhost:8080", "http://proxy", "https://proxy:1", "socks5h://proxy", "SOCKS4a://proxy"] {
      #expect(UploadRequest.isProxy(text), "\(text)")
    }
    for text in ["", "nonsense://proxy", "unix:/tmp/x", "http://", "://"] {
      #expect(!UploadRequest.isProxy(text), "\(text)")
    }
    #expect(UploadRequest.host(ofProxy: "http://Proxy.Example:8080") == "proxy.example")
  }

  @Test("a request that requires HTTP/2 fails at a server with HTTP/1.1, with the reason")
  func plainHTTP1() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("400 Bad Request")
    }
    try withSession { session throws in
      var request = UploadRequest(url: "http://127.0.0.1:\(server.port)/take")
      request.method = "GET"
      request.httpVersion = .http2
      let failure = #expect(throws: UploadError.self) { try RunningRequest(session, request).response() }
      #expect(failure?.kind == .http2NotSupported)
      #expect(failure?.description == "the server does not support HTTP/2: it answers in HTTP/1.1")
    }
  }

  @Test("the first bytes of such a server are enough, even if it says no more")
  func firstBytes() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.receive()
      try connection.send("HTTP/1.1")
      _ = connection.waitForEnd()
    }
    try withSession { session throws in
      var request = UploadRequest("GET", server.url)
      request.httpVersion = .http2
      request.limits.response = .seconds(3600)
      #expect(try RunningRequest(session, request).failure().kind == .http2NotSupported)
    }
  }

  @Test("the same if TLS negotiates HTTP/1.1, before anything is sent")
  func secureHTTP1() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let port = try freePort()
    let server = try TestProcess(
      "openssl",
      [
        "s_server", "-accept", "127.0.0.1:\(port)", "-cert", "\(directory.path)/server.pem", "-key",
        "\(directory.path)/server.key", "-alpn", "http/1.1", "-www",
      ])
    try server.lines.first("the server's start") { $0.text.contains("ACCEPT") }
    try withSession { session throws in
      var request = UploadRequest(url: "https://localhost:\(port)/take")
      request.method = "GET"
      request.addressFamily = .ipv4
      request.certificateAuthorities = "\(directory.path)/ca.pem"
      #expect(try RunningRequest(session, request).response().status == 200)
      request.httpVersion = .http2
      let failure = #expect(throws: UploadError.self) { try RunningRequest(session, request).response() }
      #expect(failure?.kind == .http2NotSupported)
      #expect(failure?.description == "the server does not support HTTP/2: TLS negotiated HTTP/1.1")
    }
  }

  @Test(
    "a certificate that is not valid yet is distinguished from an untrusted one, by number or by text",
    arguments: [
      (9, "", true), (11, "", true), (0, "certificate is not yet valid", true),
      (0, "Certificate is NOT YET valid", true),
      (9, "certificate is not yet valid", true), (10, "certificate has expired", false), (0, "", false),
      (18, "self-signed certificate", false),
    ] as [(Int, String, Bool)])
  func notYetValid(_ fault: Int, _ words: String, _ mayPass: Bool) {
    let error = UploadError(code: CURLE_PEER_FAILED_VERIFICATION, detail: words, certificateFault: fault)
    #expect(error.kind == (mayPass ? .certificateNotYetValid : .certificateNotTrusted))
  }
}

extension Result {
  fileprivate var isSuccess: Bool { if case .success = self { true } else { false } }
}
