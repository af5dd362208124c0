// A server that does not answer the attempt to connect, and what a proxy's answers mean.

import CCurl
import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import UploadClient

@Suite("The way to a connection")
struct ConnectLimitTests {
  /// A port whose kernel answers nobody any more: its queue is full.
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
      // One connection has room; the next one is not answered.
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

  @Test("an attempt to connect that nobody answers ends after the limit")
  func silence() throws {
    let silent = try SilentPort()
    try withSession { session throws in
      var request = UploadRequest(url: "http://127.0.0.1:\(silent.port)/take")
      request.method = "GET"
      request.limits.connect = .milliseconds(300)
      let start = MonotonicInstant.now
      #expect(throws: UploadError.self) { try RunningRequest(session, request).response() }
      // libcurl's own limit is five minutes, and the kernel's more than two.
      #expect(.now - start < .seconds(60))
      do {
        _ = try RunningRequest(session, request).response()
      } catch let error as UploadError {
        #expect(error.kind == .timedOut, "\(error)")
      }
    }
  }

  @Test("a proxy that refuses is told from one that does not get through, and from the host itself")
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

  @Test("a proxy is what libcurl can use as one")
  func proxies() {
    for text in ["localhost:8080", "http://proxy", "https://proxy:1", "socks5h://proxy", "SOCKS4a://proxy"] {
      #expect(UploadRequest.isProxy(text), "\(text)")
    }
    for text in ["", "nonsense://proxy", "unix:/tmp/x", "http://", "://"] {
      #expect(!UploadRequest.isProxy(text), "\(text)")
    }
    #expect(UploadRequest.host(ofProxy: "http://Proxy.Example:8080") == "proxy.example")
  }

  @Test("a request that may only go over HTTP/2 fails at a server that answers in HTTP/1.1, and says why")
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
      #expect(failure?.description == "the server does not speak HTTP/2: it answers in HTTP/1.1")
    }
  }

  @Test("the same where TLS has agreed on HTTP/1.1, before anything is sent")
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
      #expect(failure?.description == "the server does not speak HTTP/2: TLS agreed on HTTP/1.1")
    }
  }
}
