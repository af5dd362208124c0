import Digests
import EventLoops
import Glibc
import HTTPMessages
import NetworkTesting
import PropertyTesting
import ResumableUploads
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A file into a resumable upload", .serialized)
struct ResumableFileTests {
  private let pattern = OffsetPattern()

  private func file(_ directory: TemporaryDirectory, _ count: Int) throws -> UploadFile {
    try UploadFile(path: try directory.write("data", patternBytes(pattern, 0, count)))
  }

  @Test("a file goes with its creation, and is upgraded on the way (draft, section Upgrading To Resumable Uploads)")
  func upgraded() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { request, _ in request.method == "PUT" ? .cut(after: 60_000) : .proper }
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take")
      #expect(try stream.summary().error == nil)
    }
    #expect(server.methods == ["PUT", "HEAD", "PATCH"] && server.upload(0).matches(pattern, count: 200_000))
    #expect(
      server.nth("PUT", 0)?.head["Upload-Complete"] == "?1" && server.nth("PUT", 0)?.head["Upload-Length"] == "200000")
    #expect(server.nth("PATCH", 0)?.head["Upload-Length"] == nil)
  }

  @Test("a creation that carries more than the server accepts at once is ended, and continues in parts of that size")
  func partsOfSize() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer(.init(limits: "max-append-size=500000"), receiveBuffer: 16_384) { request, _ in
      request.method == "PUT" ? .silent : .proper
    }
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 4_000_000), session, server.url + "/take") {
        // With so little data in flight, there is time to receive the 104.
        $0.request.socket.sendBuffer = 16_384
      }
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.outageCount == 0, "\(summary.error?.description ?? "")")
    }
    #expect(server.of("PATCH").allSatisfy { $0.count <= 500_000 } && server.of("PATCH").count >= 4)
    #expect(server.upload(0).matches(pattern, count: 4_000_000))
  }

  @Test("after a 413 before a byte is read (nginx), the client sends smaller parts, and does not repeat the bytes")
  func tooLargeForFrontEnd() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { request, connection in
      guard let length = request.head["Content-Length"].flatMap({ Int($0) }), length > 60_000 else { return .proper }
      try connection.respond("413 Content Too Large", ["Connection: close"])
      _ = connection.waitForEnd()
      return .close
    }
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take") {
        $0.rollOver.size = .max
      }
      #expect(try stream.summary().error == nil)
    }
    #expect(server.upload(0).matches(pattern, count: 200_000) && server.of("PATCH").count < 12)
  }

  @Test("a file longer than max-size is cancelled, not truncated (draft, section Limits)")
  func tooLong() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer(.init(limits: "max-size=150000")) { request, _ in
      request.method == "PUT" ? .silent : .proper
    }
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take")
      let summary = try stream.summary()
      #expect(summary.error?.kind == .refused && summary.error?.description.contains("150000") == true)
      #expect(summary.resumeData == nil)
    }
    try server.wait(for: "DELETE")
    #expect(!server.upload(0).isComplete)
  }

  @Test("a plain server receives the whole file again after an outage, because it would treat the rest as the whole")
  func plainServer() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { request, _ in
      if request.method == "OPTIONS" { return .answer("405 Method Not Allowed", []) }
      return request.number < 2 ? .cut(after: 60_000) : .proper
    }
    for use in [LiveStreamConfiguration.ResumableUse.auto, .never] {
      try withSession { session throws in
        let stream = try RunningStream(try file(directory, 200_000), session, server.url + "/take") {
          $0.resumable = use
          $0.request.fields = ["X-Use": use.rawValue]
        }
        #expect(try stream.summary().error == nil)
      }
    }
    let whole = server.plain.filter { $0.bytes == patternBytes(pattern, 0, 200_000) }
    #expect(whole.count >= 1 && server.plain.allSatisfy { ($0.head["Stream-Offset"] ?? "0") == "0" })
  }

  @Test("the time limit for the response to a file may be the longest duration")
  func longestLimit() throws {
    let directory = try TemporaryDirectory()
    let server = try ScriptedServer { connection, _ in
      try connection.receiveContent(of: connection.head())
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let stream = try RunningStream(try file(directory, 1000), session, server.url + "/take") {
        $0.resumable = .never
        $0.request.limits.response = .seconds(Int64.max)
      }
      #expect(try stream.summary().error == nil)
    }
  }

  @Test("a file that has become shorter is an error, and is not retried forever")
  func shortened() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("data", patternBytes(pattern, 0, 100_000))
    let opened = try UploadFile(path: path)
    try directory.write("data", patternBytes(pattern, 0, 50_000))
    let server = try ResumableServer()
    try withSession { session throws in
      let stream = try RunningStream(opened, session, server.url + "/take")
      let error = try stream.summary().error
      #expect(error?.kind == .source && error?.description.contains("shortened") == true)
    }
  }

  @Test("a file that is removed during its upload is uploaded completely, over every interruption")
  func removed() throws {
    let directory = try TemporaryDirectory()
    let server = try ResumableServer { request, _ in request.method == "PUT" ? .cut(after: 60_000) : .proper }
    let file = try file(directory, 200_000)
    #expect(unlink(file.path) == 0)
    try withSession { session throws in
      #expect(try RunningStream(file, session, server.url + "/take").summary().error == nil)
    }
    #expect(server.upload(0).matches(pattern, count: 200_000) && server.upload(0).isComplete)
  }

  @Test(
    "a file that is replaced or moved is an error in the next request, and the server deletes the upload",
    arguments: [true, false])
  func displaced(isReplaced: Bool) throws {
    let directory = try TemporaryDirectory()
    let file = try file(directory, 200_000)
    let other = try directory.write("other", patternBytes(pattern, 1, 200_000))
    let server = try ResumableServer { request, _ in
      guard request.method == "HEAD" else { return request.method == "PUT" ? .cut(after: 60_000) : .proper }
      let isRenamed = isReplaced ? rename(other, file.path) : rename(file.path, other)
      return isRenamed == 0 ? .proper : .silent
    }
    try withSession { session throws in
      let error = try RunningStream(file, session, server.url + "/take").summary().error
      #expect(error?.kind == .source && error?.description.contains("changed while it was being sent") == true)
      if isReplaced { #expect(error?.description.contains("another file replaced it") == true) }
    }
    try server.wait(for: "DELETE")
    #expect(!server.upload(0).isComplete)
  }

  @Test(
    "a path that the system does not resolve for a moment is not a change of the file, even at the end of the upload",
    arguments: [true, false])
  func unresolved(isRestored: Bool) throws {
    let directory = try TemporaryDirectory()
    let folder = directory.path + "/folder"
    try #require(symlink(directory.path, folder) == 0)
    try directory.write("data", patternBytes(pattern, 0, 200_000))
    let file = try UploadFile(path: folder + "/data")
    let server = try ResumableServer { request, _ in
      switch request.method {
      case "PUT": return .cut(after: 60_000)
      // stat(2) then fails with ELOOP, for root as well.
      case "HEAD": return unlink(folder) == 0 && symlink(folder, folder) == 0 ? .proper : .silent
      // The client has examined the file before this request, and does so again after the response.
      case "PATCH" where isRestored:
        return unlink(folder) == 0 && symlink(directory.path, folder) == 0 ? .proper : .silent
      default: return .proper
      }
    }
    try withSession { session throws in
      let error = try RunningStream(file, session, server.url + "/take").summary().error
      #expect(error == nil, "\(error?.description ?? "")")
    }
    #expect(server.methods == ["PUT", "HEAD", "PATCH"])
    #expect(server.upload(0).matches(pattern, count: 200_000) && server.upload(0).isComplete)
  }

  // MARK: Digests

  private static func digest(_ bytes: [UInt8]) -> String {
    DigestField([("sha-256", Digest(.sha256, of: bytes.span.bytes).bytes)]).value
  }

  @Test("the server's digest is compared, over every interruption, and a match is reported as verified")
  func verified() throws {
    let server = try ResumableServer(.init(digest: { Self.digest($0) })) { request, _ in
      request.method == "PATCH" && request.number == 1 ? .cut(after: 5_000) : .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.digest = .sha256
        $0.rollOver.size = 20_000
      }
      try source.push(patternBytes(pattern, 0, 100_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.verified == 100_000 && summary.progress.outageCount == 1)
      #expect(summary.verifiedFrom == 0)
    }
    #expect(server.nth("POST", 0)?.head["Want-Repr-Digest"] == "sha-256=10")
  }

  @Test("if the stream continues in another upload, only the bytes of that upload are reported as verified")
  func verifiedPart() throws {
    let server = try ResumableServer(.init(progress: 1000, digest: { Self.digest($0) }))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.digest = .sha256
        $0.rollOver.size = 50_000
        $0.memory = .kept
      }
      try source.push(patternBytes(pattern, 0, 120_000))
      try stream.waitUntilAcknowledged(119_000)
      server.forget(0)
      try source.push(patternBytes(pattern, 120_000, 100_000))
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && stream.parts == ["gone"])
      #expect(summary.verified == 220_000 && summary.verifiedFrom >= 119_000)
      #expect(server.upload(1).head?["Stream-Offset"] == "\(summary.verifiedFrom)")
    }
  }

  @Test("a different digest is reported at once, and is an error at the end")
  func notVerified() throws {
    let server = try ResumableServer(.init(digest: { Self.digest($0 + ($0.count > 30_000 ? [0] : [])) }))
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) {
        $0.digest = .sha256
        $0.rollOver.size = 20_000
      }
      try source.push(patternBytes(pattern, 0, 100_000))
      try stream.events.first("the mismatch") { if case .upload(.digestMismatch) = $0 { true } else { false } }
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error?.kind == .protocolBroken && summary.error?.description.contains("sha-256") == true)
      #expect(summary.resumeData == nil)
    }
  }

  @Test("a known digest of a file is sent with the creation, and compared at the end")
  func fileDigest() throws {
    let directory = try TemporaryDirectory()
    let path = try directory.write("data", patternBytes(pattern, 0, 100_000))
    let server = try ResumableServer(.init(digest: { Self.digest($0) })) { request, _ in
      request.method == "PUT" ? .cut(after: 60_000) : .proper
    }
    try withSession { session throws in
      let stream = try RunningStream(try UploadFile(path: path, digest: .sha256), session, server.url + "/take") {
        $0.digest = .sha256
      }
      #expect(try stream.summary().verified == 100_000)
    }
    #expect(server.nth("PUT", 0)?.head["Repr-Digest"] == Self.digest(patternBytes(pattern, 0, 100_000)))
  }
}
