import NetworkTesting
import Testing

@testable import UploadClient

@Suite("Responses that are delivered as they arrive")
struct ToldResponseTests {
  @Test("head and body of a response are delivered, and all of the body, for any length")
  func told() throws {
    let body = String(repeating: "0123456789", count: 10_000)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 103 Early Hints\r\n\r\n")
      try connection.respond("200 OK", ["X-A: b"], body: body)
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    (request.method, request.tellsResponse) = ("GET", true)
    let running = try RunningRequest(session, request)
    let outcome = try running.result().get()
    #expect(outcome.response.body.isEmpty && outcome.bodyFailure == nil)
    var (heads, received): ([Int], [UInt8]) = ([], [])
    for event in running.events.all {
      if case .response(let head) = event {
        #expect(received.isEmpty)
        heads.append(head.status)
      }
      if case .responseBody(let bytes) = event { received += bytes }
    }
    #expect(heads == [200])
    #expect(received == Array(body.utf8))
  }

  @Test("a body that ends before its time is a response with a failure")
  func truncated() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    (request.method, request.tellsResponse) = ("GET", true)
    let outcome = try RunningRequest(session, request).result().get()
    #expect(outcome.response.status == 200)
    #expect(outcome.bodyFailure?.kind == .connectionLost)
  }

  @Test("the requested length of a body is kept")
  func kept() throws {
    let body = String(repeating: "x", count: HTTPResponse.bodyLimit + 1)
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", body: body)
    }
    let session = try UploadSession()
    defer { session.close() }
    var request = UploadRequest(url: server.url)
    (request.method, request.responseBodyLimit) = ("GET", .max)
    #expect(try RunningRequest(session, request).response().body == Array(body.utf8))
  }
}
