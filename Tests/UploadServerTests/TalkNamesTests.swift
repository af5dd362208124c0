// Tests the names of Apple's talk, which wraps a server's handlers in an `HTTPResumableUploadHandler`, over real
// connections.

import HTTPMessages
import NetworkTesting
import Synchronization
import Testing
import UploadClient

@testable import UploadServer

@Suite("HTTPResumableUploadHandler")
struct TalkNamesTests {
  /// Sends an informational response immediately, and answers with the number of received bytes.
  private final class ExampleHandler: RequestHandler {
    private var count = 0
    private var exchange: (any Exchange)?
    func begin(_ exchange: any Exchange) {
      self.exchange = exchange
      exchange.sendInterim(103, ["link": "</style.css>; rel=preload"])
      exchange.acceptBody()
    }
    func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) { count += pieces.reduce(0) { $0 + $1.count } }
    func end() { exchange?.respond(.ok("\(count) bytes")) }
    func aborted(_ reason: AbortReason) {}
    func serverStops() {}
  }

  @Test("its handlers receive one request, uploads have its origin, and a request without a handler is not stored")
  func talk() throws {
    let directory = TemporaryDirectory()
    let context = HTTPResumableUploadContext(origin: "https://example.com/", directory: directory.path)
    let uploads = HTTPResumableUploadHandler(
      context: context,
      handlers: [{ $0.target.path == "/nothing" ? nil : nil }, { $0.target.path == "/take" ? ExampleHandler() : nil }])
    let server = try UploadServer(listen: "127.0.0.1:0", uploads)
    try server.start()
    defer {
      server.drain(within: .zero)
      server.waitUntilEnded()
    }
    let client = try RawClient(server.localAddresses[0])
    let version = "Upload-Draft-Interop-Version: 8\r\n"
    try client.send("POST /take HTTP/1.1\r\nHost: h\r\n\(version)Upload-Complete: ?0\r\nContent-Length: 5\r\n\r\nhello")
    var answers = [try client.answer()]
    while answers.last.map({ $0.status < 200 }) == true { answers.append(try client.answer()) }
    let location = try #require(answers.first { $0.status == 104 }?["location"])
    #expect(location.hasPrefix("https://example.com/.uploads/"))
    #expect(answers.contains { $0.status == 103 && $0["link"] == "</style.css>; rel=preload" })
    #expect(answers.last?.status == 201)
    let path = location.dropFirst("https://example.com".count)
    try client.send(
      "PATCH \(path) HTTP/1.1\r\nHost: h\r\n\(version)Upload-Complete: ?1\r\nUpload-Offset: 5\r\n"
        + "Content-Type: application/partial-upload\r\nContent-Length: 6\r\n\r\n world")
    answers = [try client.answer()]
    while answers.last.map({ $0.status < 200 }) == true { answers.append(try client.answer()) }
    #expect(answers.last?.status == 200 && answers.last?.body == "11 bytes")
    for line in ["PUT /other", "GET /take.bin", "POST /nothing"] {
      try client.send("\(line) HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
      #expect(try client.answer().status == 404)
    }
    #expect(directory.names.allSatisfy { $0.hasPrefix(".") }, "\(directory.names)")
  }

  @Test("a client receives the fields of an informational response as the server has set them")
  func fields() throws {
    let directory = TemporaryDirectory()
    let context = HTTPResumableUploadContext(origin: "http://localhost", directory: directory.path)
    let server = try UploadServer(
      listen: "127.0.0.1:0", HTTPResumableUploadHandler(context: context, handlers: [{ _ in ExampleHandler() }]))
    try server.start()
    defer {
      server.drain(within: .zero)
      server.waitUntilEnded()
    }
    let interims = try EventLog<HTTPResponse>()
    let done = try EventLog<Bool>()
    let session = try UploadSession()
    let task = try session.upload(
      UploadRequest(url: "http://\(server.localAddresses[0])/x"), body: .bytes([1, 2, 3])
    ) { event in
      if case .interimResponse(let response) = event { interims.append(response) }
      if case .finished = event { done.append(true) }
    }
    _ = try done.first("the end") { $0 }
    let expected: HeaderFields = ["link": "</style.css>; rel=preload"]
    #expect(interims.all.first { $0.status == 103 }?.fields == expected)
    withExtendedLifetime(task) {}
  }
}
