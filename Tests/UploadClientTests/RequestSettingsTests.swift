// The settings of a request, where they take effect: at its socket, in libcurl and in its head.

import CLinux
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("The settings of a request", .serialized)
struct RequestSettingsTests {
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
}
