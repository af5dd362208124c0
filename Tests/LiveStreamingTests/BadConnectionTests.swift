// A server of which one connection answers every request with an error and stays open, while every other connection
// works: a layer-4 balancer with a backend that is being drained, or a portal.

import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A connection on which every request fails is left after its first response", .serialized)
struct BadConnectionTests {
  private let pattern = OffsetPattern()

  /// With retries over the same connection, the stream fails after a few seconds instead of a minute.
  private func limit(_ configuration: inout LiveStreamConfiguration) { configuration.retry.giveUpAfter = .seconds(3) }

  private func expectWhole(_ summary: StreamSummary, _ server: ResumableServer, _ count: Int) {
    #expect(summary.error == nil && summary.gaps == 0, "\(summary.error?.description ?? "")")
    #expect(server.uploads.count == 1 && server.upload(0).isComplete)
    #expect(server.upload(0).matches(pattern, count: count))
  }

  /// Sends a stream, and returns the number of its failed attempts.
  private func failuresOfStream(to server: ResumableServer) throws -> Int {
    try withSession { session throws -> Int in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { limit(&$0) }
      try source.push(patternBytes(pattern, 0, 20_000))
      stream.streamer.finish()
      expectWhole(try stream.summary(), server, 20_000)
      return stream.failures().count
    }
  }

  /// The requests on one connection.
  private func requests(_ server: ResumableServer, on connection: Int) -> [String] {
    server.requests.all.filter { $0.connection == connection }.map(\.method)
  }

  @Test(
    "the first connection of a stream",
    arguments: [
      "408 Request Timeout", "425 Too Early", "429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway",
      "503 Service Unavailable", "504 Gateway Timeout", "511 Network Authentication Required",
    ])
  func streamAtFirst(_ status: String) throws {
    let server = try ResumableServer { request, _ in
      request.connection == 0 ? .odd(OddAnswer(status: status)) : .proper
    }
    #expect(try failuresOfStream(to: server) == 1)
    #expect(requests(server, on: 0) == ["OPTIONS"] && server.connections == 2)
    #expect(requests(server, on: 1).prefix(3) == ["OPTIONS", "POST", "PATCH"])
  }

  @Test("the connection of a stream's creation")
  func creation() throws {
    let server = try ResumableServer { request, _ in
      request.connection == 0 && request.method != "OPTIONS"
        ? .odd(OddAnswer(status: "503 Service Unavailable")) : .proper
    }
    _ = try failuresOfStream(to: server)
    #expect(requests(server, on: 0) == ["OPTIONS", "POST"] && server.connections == 2)
  }

  @Test("the first connection of a file, sent with its creation or after it", arguments: [1000, 5 << 20])
  func fileAtFirst(_ count: Int) throws {
    let directory = try TemporaryDirectory()
    let file = try UploadFile(path: try directory.write("data", patternBytes(pattern, 0, count)))
    let server = try ResumableServer { request, _ in
      request.connection == 0 ? .odd(OddAnswer(status: "503 Service Unavailable")) : .proper
    }
    try withSession { session throws in
      let stream = try RunningStream(file, session, server.url + "/take") { limit(&$0) }
      let summary = try stream.summary()
      #expect(summary.error == nil, "\(summary.error?.description ?? "")")
    }
    #expect(requests(server, on: 0).count == 1 && server.connections == 2)
    #expect(server.uploads.last?.matches(pattern, count: count) == true && server.uploads.last?.isComplete == true)
  }

  @Test(
    "the next connection after a lost one, in the middle of a stream",
    arguments: [
      OddAnswer(status: "503 Service Unavailable"), OddAnswer(status: "502 Bad Gateway"),
      OddAnswer(status: "500 Internal Server Error"), OddAnswer(status: "501 Not Implemented"),
      OddAnswer(status: "429 Too Many Requests"), OddAnswer(status: "404 Not Found"),
      OddAnswer(status: "400 Bad Request"), OddAnswer(status: "405 Method Not Allowed"),
      OddAnswer(status: "302 Found", ["Location: http://portal.example/login"]),
    ])
  func inTheMiddle(_ odd: OddAnswer) throws {
    let server = try ResumableServer { request, _ in
      switch request.connection {
      case 0: request.method == "PATCH" && request.number == 1 ? .cut(after: 5000) : .proper
      case 1: .odd(odd)
      default: .proper
      }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        limit(&$0)
        $0.rollOver.size = 50_000
      }
      try source.push(patternBytes(pattern, 0, 200_000))
      stream.streamer.finish()
      expectWhole(try stream.summary(), server, 200_000)
      // The cut and the odd answer.
      #expect(stream.failures().count == 2)
    }
    #expect(requests(server, on: 0) == ["OPTIONS", "POST", "PATCH", "PATCH"])
    #expect(requests(server, on: 1) == ["HEAD"])
    // The offset retrieval and all appends after it use one connection.
    #expect(requests(server, on: 2).prefix(2) == ["HEAD", "PATCH"] && server.connections == 3)
  }

  @Test("over HTTP/2")
  func overHTTP2() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let context = try TLSContext(certificate: "\(directory.path)/server.pem", key: "\(directory.path)/server.key")
    let requests = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      try connection.startTLS(context)
      let http2 = try HTTP2Connection(connection)
      while true {
        let request = try http2.nextRequest()
        requests.append(number)
        if request.hasContent { try http2.content(of: request.stream) }
        guard number > 0 else {
          try http2.respond(503, to: request.stream)
          continue
        }
        try http2.respond(
          request.head.line.hasPrefix("POST") ? 201 : 204,
          [
            ("location", "/uploads/0"), ("upload-draft-interop-version", "8"),
            ("upload-complete", request.head["Upload-Complete"] ?? "?0"),
          ], to: request.stream)
      }
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "https://localhost:\(server.port)/take") {
        limit(&$0)
        $0.request.addressFamily = .ipv4
        $0.request.certificateAuthorities = "\(directory.path)/ca.pem"
        $0.request.httpVersion = .http2
        $0.resumable = .always
      }
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.acknowledged == 3, "\(summary.error?.description ?? "")")
    }
    #expect(requests.all.count { $0 == 0 } == 1 && Set(requests.all) == [0, 1])
  }
}
