import NetworkTesting
import Testing

@testable import UploadClient

@Suite("Addresses of a server, and the fields of a request", .serialized)
struct RouteTests {
  /// Sends "hello", and returns the request's head as the server received it. The body must arrive, too.
  private func head(
    _ address: ScriptedServer.Address = .ipv4, _ request: @escaping (ScriptedServer) -> UploadRequest
  ) throws -> ServerConnection.Head {
    let heads = try EventLog<ServerConnection.Head>()
    let server = try ScriptedServer(address) { connection, _ in
      heads.append(try connection.head())
      if try connection.body() == Array("hello".utf8) { try connection.respond("201 Created") }
    }
    try withSession { session in
      let upload = try RunningUpload(session, request(server))
      try upload.body.write("hello")
      upload.body.end()
      #expect(try upload.response().status == 201)
      // A unix socket has no count of bytes acknowledged by TCP, but a 201 acknowledges them.
      #expect(upload.task.acknowledgedByteCount == 5)
    }
    return try heads.wait("the head") { $0.first }
  }

  @Test("a request is chunked, has a User-Agent, and waits for no 100")
  func ordinary() throws {
    let head = try head {
      var request = UploadRequest(url: "\($0.url)/a/b?c=d")
      request.method = "PUT"
      request.fields = ["X-Room": "kitchen", "X-Empty": ""]
      return request
    }
    #expect(head.line == "PUT /a/b?c=d HTTP/1.1")
    #expect(head["Transfer-Encoding"] == "chunked" && head["Content-Length"] == nil && head["Expect"] == nil)
    #expect(head["User-Agent"] == "sluice/\(sluiceVersion)")
    #expect(head["X-Room"] == "kitchen" && head["X-Empty"] == "")
    #expect(head["Authorization"] == nil)
  }

  @Test("fields are sent in their order, with names in the spelling of the caller")
  func spelling() throws {
    let head = try head {
      var request = UploadRequest(url: $0.url)
      request.fields = ["X-API-Key": "a", "x-api-key": "b", "ETag": "c", "lower": ""]
      return request
    }
    let own = head.fields.filter { ["x-api-key", "etag", "lower"].contains($0.name.lowercased()) }
    #expect(own.map(\.name) == ["X-API-Key", "x-api-key", "ETag", "lower"] && own.map(\.value) == ["a", "b", "c", ""])
  }

  @Test("a request with an invalid field fails before a connection, and the error names the field")
  func invalidField() throws {
    let server = try ScriptedServer { _, _ in Issue.record("the request has reached the server") }
    try withSession { session in
      for fields in [["X-Room": "a\r\nEvil: 1"], ["X-Room\n": "a"], ["A": "b", "X-Room:": "c"]] as [HeaderFields] {
        var request = UploadRequest(url: server.url)
        request.fields = fields
        let error = #expect(throws: UploadError.self) { try session.upload(request, body: .empty) { _ in } }
        #expect(error?.kind == .invalidRequest && error?.description.contains("X-Room") == true)
      }
    }
  }

  @Test("IPv6")
  func ipv6() throws {
    let head = try head(.ipv6) {
      var request = UploadRequest(url: "\($0.url)/six")
      request.addressFamily = .ipv6
      return request
    }
    #expect(head.line == "POST /six HTTP/1.1" && head["Host"]?.hasPrefix("[::1]") == true)
  }

  @Test("an address of the other family is not used")
  func wrongFamily() throws {
    let server = try ScriptedServer { connection, _ in _ = try connection.head() }
    try withSession { session in
      var request = UploadRequest(url: server.url)
      request.addressFamily = .ipv6
      let upload = try RunningUpload(session, request)
      let kind = try upload.failure().kind
      #expect([.unknownHost, .unreachable].contains(kind))
    }
  }

  @Test("a unix socket: the URL still has host and path")
  func unixSocket() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/socket"
    let head = try head(.unix(path)) { _ in
      var request = UploadRequest(url: "http://some.host/path")
      request.unixSocket = path
      return request
    }
    #expect(head.line == "POST /path HTTP/1.1" && head["Host"] == "some.host")
  }

  @Test("an HTTP proxy receives the whole URL")
  func proxy() throws {
    let head = try head {
      var request = UploadRequest(url: "http://origin.invalid/path")
      request.proxy = $0.url
      return request
    }
    #expect(head.line == "POST http://origin.invalid/path HTTP/1.1" && head["Host"] == "origin.invalid")
  }

  @Test("a bearer token")
  func bearer() throws {
    let head = try head {
      var request = UploadRequest(url: $0.url)
      request.bearerToken = "abc.def-123"
      return request
    }
    #expect(head["Authorization"] == "Bearer abc.def-123")
  }

  @Test("user and password from the URL, or from a netrc file for that host only")
  func basic() throws {
    // RFC 7617, section 2: its own example.
    let aladdin = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    let fromURL = try head { UploadRequest(url: "http://Aladdin:open%20sesame@127.0.0.1:\($0.port)/") }
    #expect(fromURL["Authorization"] == aladdin)

    let directory = try TemporaryDirectory()
    for (host, expected) in [("127.0.0.1", aladdin), ("elsewhere", nil)] {
      let file = try directory.write("netrc", "machine \(host) login Aladdin password \"open sesame\"\n")
      let fromFile = try head {
        var request = UploadRequest(url: $0.url)
        request.netrcFile = file
        return request
      }
      #expect(fromFile["Authorization"] == expected)
    }
  }
}
