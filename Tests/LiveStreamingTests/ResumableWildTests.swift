import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A resumable upload to third-party servers", .serialized)
struct ResumableWildTests {
  private let pattern = OffsetPattern()

  /// Like SwiftNIO's resumable upload handler: versions 3, 5 and 6, a 400 that names 6, an absolute `Location`, no
  /// progress, and the wrong completeness field in answers of the wrapped handler.
  private static let swiftNIO = ResumableServer.Habits(
    versions: [3, 5, 6], strange: ("400 Bad Request", ["Upload-Draft-Interop-Version: 6"]), tellsOffset: true,
    swapsCompleteness: true)

  /// Like tusd: unknown versions count as tus 1.0, and only answers to HEAD report completeness.
  private static let tusd = ResumableServer.Habits(
    versions: [3, 4, 5, 6],
    strange: ("200 OK", ["Tus-Resumable: 1.0.0", "Tus-Version: 1.0.0", "Tus-Extension: creation,termination"]),
    limits: "min-size=0,max-size=1000000", tellsCompleteness: false, tellsOffset: true)

  private func stream(
    _ server: ResumableServer, _ count: Int = 200_000, _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws -> (StreamSummary, RunningStream) {
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server, change)
      try source.push(patternBytes(pattern, 0, count))
      stream.streamer.finish()
      return (try stream.summary(), stream)
    }
  }

  // MARK: Versions

  @Test("SwiftNIO: its 400 contains version 6, and the client then uses it")
  func nio() throws {
    let server = try ResumableServer(Self.swiftNIO) { request, _ in
      request.method == "PATCH" && request.number < 2 ? .cut(after: 30_000) : .proper
    }
    let (summary, stream) = try stream(server)
    #expect(summary.error == nil && summary.progress.outageCount == 2)
    #expect(server.requests.all.first?.version == 8)
    #expect(Set(server.requests.all.dropFirst().map(\.version)) == [6])
    #expect(stream.notices.contains(.steppedDown(version: 6)))
    #expect(server.upload(0).matches(pattern, count: 200_000) && server.upload(0).isComplete)
  }

  @Test("SwiftNIO: an upload whose handler failed has failed, although the field has the form of another version")
  func nioFailure() throws {
    let server = try ResumableServer(Self.swiftNIO) { request, _ in
      request.method == "PATCH" && request.completes
        ? .answer("500 Internal Server Error", ["Upload-Incomplete: ?0", "Upload-Draft-Interop-Version: 6"]) : .proper
    }
    let (summary, _) = try stream(server, 100)
    #expect(summary.error?.kind == .refused && summary.error?.description.contains("could not process") == true)
    #expect(summary.resumeData == nil)
  }

  @Test("tusd: the client steps down to version 6, is interrupted, and completes without a report")
  func tus() throws {
    let server = try ResumableServer(Self.tusd) { request, _ in
      request.method == "PATCH" && request.number == 1 ? .cut(after: 30_000) : .proper
    }
    let (summary, stream) = try stream(server) { $0.rollOver.size = 50_000 }
    #expect(summary.error == nil && server.upload(0).matches(pattern, count: 200_000))
    let versions = stream.notices.compactMap { if case .steppedDown(let version) = $0 { version } else { nil } }
    #expect(versions == [7, 6] && server.of("PATCH").allSatisfy { $0.version == 6 })
    #expect(server.of("PATCH").last?.head["Upload-Complete"] == "?1")
  }

  @Test("each version with its own fields", arguments: [3, 4, 5, 6, 7, 8])
  func version(_ number: Int) throws {
    let server = try ResumableServer(
      .init(versions: [number], strange: ("400 Bad Request", ["Upload-Draft-Interop-Version: \(number)"]))
    ) { request, _ in request.method == "PATCH" && request.number == 0 ? .cut(after: 30_000) : .proper }
    let (summary, _) = try stream(server)
    #expect(summary.error == nil && server.upload(0).matches(pattern, count: 200_000) && server.upload(0).isComplete)
    let patch = try #require(server.of("PATCH").first)
    #expect((patch.head["Content-Type"] == "application/partial-upload") == (number >= 6))
    #expect((patch.head["Upload-Incomplete"] != nil) == (number == 3))
  }

  // MARK: Plain servers

  @Test("a server without support receives one plain request, and a line reports it")
  func fallsBack() throws {
    for status in ["404 Not Found", "405 Method Not Allowed", "200 OK", "501 Not Implemented", "403 Forbidden"] {
      let server = try ResumableServer { request, _ in
        request.method == "OPTIONS" ? .answer(status, ["Allow: POST"]) : .proper
      }
      let (summary, stream) = try stream(server)
      #expect(summary.error == nil && !summary.isResumable && server.methods == ["OPTIONS", "POST"])
      #expect(server.plain.first?.bytes == patternBytes(pattern, 0, 200_000))
      #expect(server.plain.first?.head["Upload-Complete"] == nil && server.plain.first?.head["Stream-ID"] != nil)
      #expect(stream.notices.contains { if case .notSupported = $0 { true } else { false } })
    }
  }

  @Test("--resumable always against a plain server is an error that states this")
  func always() throws {
    for conduct in [
      ResumableServer.Conduct.answer("200 OK", []), .answer("404 Not Found", []),
      .answer("412 Precondition Failed", ["Tus-Resumable: 1.0.0"]),
    ] {
      let server = try ResumableServer(.init(announces: false)) { _, _ in conduct }
      let (summary, _) = try stream(server, 10) { $0.resumable = .always }
      #expect([.refused, .protocolBroken].contains(summary.error?.kind), "\(summary.error?.description ?? "")")
      #expect(server.plain.isEmpty && !server.methods.contains("OPTIONS"))
    }
  }

  @Test("--resumable never sends no discovery and no fields of the protocol")
  func never() throws {
    let server = try ResumableServer()
    let (summary, stream) = try stream(server) { $0.resumable = .never }
    #expect(summary.error == nil && server.methods == ["POST"] && server.uploads.isEmpty && stream.notices.isEmpty)
    #expect(server.requests.all[0].version == nil)
  }

  // MARK: Location

  @Test(
    "a Location with another host is followed, or only its path is used, as the user chooses", arguments: [true, false])
  func otherHost(_ keeps: Bool) throws {
    // Nothing listens there, so a request to it would never return.
    let elsewhere = try freePort()
    let server = try ResumableServer(.init(location: { "http://127.0.0.1:\(elsewhere)\($0)" }))
    let (summary, stream) = try stream(server, 1000) {
      $0.keepsOrigin = keeps
      $0.retry.giveUpAfter = .milliseconds(300)
    }
    #expect((summary.error == nil) == keeps)
    if keeps { return }
    #expect(summary.error?.kind == .unreachable)
    // Each failure states where it happened.
    let origins = stream.events.all.compactMap { event in
      switch event {
      case .outage(let attempt), .attemptFailed(let attempt): Optional(attempt.locationOrigin)
      default: nil
      }
    }
    #expect(origins.last == "http://127.0.0.1:\(elsewhere)", "\(origins)")
  }

  @Test("a failure at the user's own server does not name the host of an earlier Location")
  func ownHostAfterOther() throws {
    // It loses the connection of each append, and has no upload.
    let other = try ResumableServer { request, _ in request.method == "PATCH" ? .close : .proper }
    let server = try ResumableServer(.init(location: { $0 == "/uploads/0" ? other.url + $0 : $0 })) { request, _ in
      // Twice, because libcurl itself repeats a request on a connection that it has used before.
      request.method == "POST" && (1...2).contains(request.number) ? .close : .proper
    }
    let (summary, stream) = try stream(server, 1000)
    #expect(summary.error == nil && server.upload(1).matches(pattern, count: 1000))
    let lost = stream.failures().filter { if case .connectionLost = $0.cause { true } else { false } }
    #expect(lost.count >= 2 && lost.first?.locationOrigin == other.url, "\(lost)")
    #expect(lost.last?.locationOrigin == nil, "\(lost)")
  }

  @Test("no token and no field of the user is sent to another origin")
  func secrets() throws {
    let other = try ResumableServer()
    let server = try ResumableServer(.init(announces: false)) { _, connection in
      try connection.send(
        "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\nLocation: \(other.url)/uploads/0\r\n\r\n"
      )
      return .silent
    }
    try withSession { session throws in
      let stream = try RunningStream(PushedSource(), session, server) {
        $0.resumable = .always
        $0.request.bearerToken = "secret-token"
        $0.request.fields = ["X-Api-Key": "secret-key"]
        $0.request.limits.response = .milliseconds(100)
      }
      let head = try other.wait(for: "HEAD").head
      #expect(!"\(head)".contains("secret"))
      stream.streamer.cancel()
      _ = try stream.summary()
    }
    #expect("\(try server.wait(for: "POST").head)".contains("secret-token"))
  }

  @Test("two different Locations for one upload: the request is aborted, and the upload cancelled")
  func twoLocations() throws {
    let server = try ResumableServer { request, connection in
      if request.method == "POST" {
        try connection.send(
          "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\nLocation: /uploads/7\r\n\r\n")
      }
      return .proper
    }
    let (summary, _) = try stream(server, 10)
    #expect(summary.error?.kind == .protocolBroken && summary.resumeData == nil)
    let deletion = try server.wait(for: "DELETE")
    #expect(deletion.target == "/uploads/7" || deletion.target == "/uploads/0")
  }

  @Test("307 and 308 redirect an upload", arguments: ["307 Temporary Redirect", "308 Permanent Redirect"])
  func redirect(_ status: String) throws {
    let server = try ResumableServer { request, _ in
      request.method == "PATCH" && request.number == 0 ? .destroy(status, ["Location: /elsewhere/0"]) : .proper
    }
    // A moved upload is found at its new URL.
    let (summary, stream) = try stream(server, 1000)
    #expect(summary.error == nil && server.of("HEAD").first?.target == "/elsewhere/0")
    #expect(stream.parts == ["gone"], "nothing is there any more: but it was asked")
  }

  // MARK: Tokens

  @Test("the next request uses a renewed token, whether a 401 requested it or not")
  func renewed() throws {
    let token = Lock("one")
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.bearerToken = { token.withLock { $0 } }
        $0.rollOver.after = .milliseconds(20)
      }
      try source.push([1])
      try stream.waitUntilAcknowledged(1)
      token.withLock { $0 = "two" }
      try source.push([2])
      try stream.waitUntilAcknowledged(2)
      stream.streamer.finish()
      #expect(try stream.summary().error == nil)
    }
    #expect(server.of("PATCH").map { $0.head["Authorization"] } == ["Bearer one", "Bearer two", "Bearer two"])
  }

  @Test("after a 401, it continues with the renewed token; without one it ends, and can be resumed")
  func unauthorized() throws {
    for renews in [true, false] {
      let token = Lock("one")
      let server = try ResumableServer { request, _ in
        guard request.method == "PATCH", request.head["Authorization"] == "Bearer one" else { return .proper }
        if renews { token.withLock { $0 = "two" } }
        return .answer("401 Unauthorized", [])
      }
      let (summary, _) = try stream(server, 1000) { $0.bearerToken = { token.withLock { $0 } } }
      #expect((summary.error == nil) == renews)
      if !renews { #expect(summary.error?.kind == .notPermitted && summary.resumeData != nil) }
    }
  }
}
