import EventLoops
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@testable import UploadClient

@Suite("TLS and HTTP/2, with nginx in front of the server", .serialized)
struct TLSTests {
  private struct Site {
    let server: StreamServer
    let nginx: TLSFrontEnd

    init() throws {
      server = try StreamServer()
      nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    }

    func request(_ name: String, port: UInt16? = nil) -> UploadRequest {
      var request = UploadRequest(url: "https://localhost:\(port ?? nginx.port)/\(name)")
      request.addressFamily = .ipv4
      request.certificateAuthorities = nginx.authority
      request.fields = ["Stream-ID": name, "Content-Type": "text/plain"]
      return request
    }

    func stored(_ name: String) throws -> String {
      String(decoding: try server.directory.contents("\(name)-\(name).txt"), as: UTF8.self)
    }
  }

  private func send(_ session: UploadSession, _ request: UploadRequest, _ text: String = "over TLS") throws
    -> HTTPResponse
  {
    let upload = try RunningUpload(session, request)
    try upload.body.write(text)
    upload.body.end()
    return try upload.response()
  }

  @Test("HTTP/2 if ALPN negotiates it, HTTP/1.1 if it is not requested, and a client certificate if it is")
  func versionsAndCertificates() throws {
    let site = try Site()
    try withSession { session throws in
      #expect(try send(session, site.request("two")).status == 201)
      #expect(try site.stored("two") == "over TLS")

      var request = site.request("one")
      request.httpVersion = .http1
      #expect(try send(session, request).status == 201)
      #expect(try site.stored("one") == "over TLS")

      request = site.request("known", port: site.nginx.clientCertificatePort)
      #expect(try send(session, request).status == 400)
      request.clientCertificate = site.nginx.clientCertificate
      request.clientKey = site.nginx.clientKey
      #expect(try send(session, request).status == 201)
      #expect(try site.stored("known") == "over TLS")
    }
    func log() -> [String] { site.nginx.accessLog.split(separator: "\n").map(String.init) }
    // nginx writes a request's line after its answer.
    try eventually("nginx's log") { log().count == 4 }
    #expect(log() == ["HTTP/2.0 201 -", "HTTP/1.1 201 -", "HTTP/2.0 400 -", "HTTP/2.0 201 CN=kitchen-microphone"])
  }

  @Test("a certificate of an unknown authority or for another name, and invalid files, each have an error")
  func untrusted() throws {
    let site = try Site()
    let directory = try TemporaryDirectory()
    let nonsense = try directory.write("nonsense.pem", "this is not a certificate\n")
    try withSession { session throws in
      func failure(_ change: (inout UploadRequest) -> Void) throws -> UploadError {
        var request = site.request("never")
        change(&request)
        return try RunningUpload(session, request).failure()
      }
      let unknown = try failure { $0.certificateAuthorities = nil }
      #expect(unknown.kind == .certificateNotTrusted && unknown.description.lowercased().contains("certificate"))
      let badAuthority = try failure { $0.certificateAuthorities = nonsense }
      #expect(badAuthority.kind == .badCredentialsFile && badAuthority.description.contains(nonsense))
      let badCertificate = try failure { $0.clientCertificate = nonsense }
      #expect(badCertificate.kind == .badCredentialsFile)
      let notTLS = try failure { $0.url = "https://127.0.0.1:\(site.server.port)/" }
      #expect(notTLS.kind == .tlsFailed)
    }
    #expect(site.server.events.all.allSatisfy { $0.kind == .refused })
  }

  @Test("through a proxy's CONNECT, and a refusing proxy has its own error")
  func throughProxy() throws {
    let site = try Site()
    let lines = try EventLog<String>()
    let proxy = try ScriptedServer { connection, number in
      let head = try connection.head()
      lines.append(head.line)
      if number == 0 {
        return try connection.respond("407 Proxy Authentication Required", ["Proxy-Authenticate: Basic realm=\"x\""])
      }
      let port = head.line.split(separator: " ")[1].split(separator: ":")[1]
      try connection.send("HTTP/1.1 200 Connection established\r\n\r\n")
      try connection.relay(toPort: UInt16(port) ?? 0)
    }
    try withSession { session throws in
      var request = site.request("tunnelled")
      request.proxy = proxy.url
      let refused = try RunningUpload(session, request).failure()
      #expect(refused.kind == .proxyRefused && refused.description.contains("407"), "\(refused.kind) \(refused)")
      #expect(try send(session, request).status == 201)
      #expect(try site.stored("tunnelled") == "over TLS")
    }
    #expect(lines.all.allSatisfy { $0 == "CONNECT localhost:\(site.nginx.port) HTTP/1.1" })
  }

  @Test(
    "a proxy's response to CONNECT is not a response to the request, and its HTTP/1.1 is not the request's version",
    arguments: [UploadRequest.HTTPVersion.negotiated, .http1, .http2])
  func proxysOwnAnswer(_ version: UploadRequest.HTTPVersion) throws {
    let site = try Site()
    let proxy = try ScriptedServer { connection, _ in
      let head = try connection.head()
      let port = head.line.split(separator: " ")[1].split(separator: ":")[1]
      try connection.send(
        "HTTP/1.1 200 Connection established\r\nLocation: /proxy\r\nUpload-Offset: 7\r\nVia: 1.1 proxy\r\n\r\n")
      try connection.relay(toPort: UInt16(port) ?? 0)
    }
    try withSession { session throws in
      var request = site.request("tunnelled")
      request.proxy = proxy.url
      request.httpVersion = version
      let upload = try RunningUpload(session, request)
      try upload.body.write("first ")
      // A live stream would end here if it mistook the proxy's answer for its own.
      try eventually("the first part at the server") {
        ((try? site.server.directory.contents("tunnelled-tunnelled.part")) ?? []).count == 6
      }
      try upload.body.write("second")
      upload.body.end()
      guard case .success(let outcome) = try upload.result() else {
        Issue.record("\(try upload.result())")
        return
      }
      #expect(outcome.response.status == 201 && !outcome.isEarly && outcome.response["Via"] == nil)
      #expect(upload.interim.isEmpty)
      #expect(try site.stored("tunnelled") == "first second")
    }
  }

  @Test("uploads to one HTTP/2 server have separate acknowledgements, because they do not share a connection")
  func severalOverHTTP2() throws {
    let site = try Site()
    try withSession { session throws in
      let uploads = try (0..<3).map { number in
        let upload = try RunningUpload(session, site.request("s\(number)"))
        // The next one finds this connection, and knows that it supports HTTP/2.
        try upload.events.first("a connection") { if case .connected = $0 { true } else { false } }
        return upload
      }
      let block = [UInt8](repeating: 0x61, count: 400_000)
      for upload in uploads { try upload.body.write(block) }
      for (number, upload) in uploads.enumerated() {
        // The last chunk and libcurl's buffered bytes stay uncertain.
        try eventually("an acknowledgement of \(number)") {
          session.loop.execute { upload.task.updateAcknowledged() }
          return upload.task.acknowledgedByteCount > 300_000
        }
        upload.body.end()
        #expect(try upload.response().status == 201)
      }
    }
  }
}
