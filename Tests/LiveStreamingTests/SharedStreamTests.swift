// The client and the server together, after another client has continued the stream while this one was away.

import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient
import UploadServer

@testable import LiveStreaming

@Suite("A stream that another client has continued", .serialized)
struct SharedStreamTests {
  /// The start of the other client's part, relative to the offset that the first server had acknowledged.
  enum Place: CaseIterable { case inside, atEnd, behind }

  /// The other client's action that leaves no valid offset for this one.
  enum Contradiction: CaseIterable { case endsBefore, endsBehind, otherBytes }

  @Test(
    "it continues at the server's offset, and reports the bytes that no longer fit",
    arguments: Place.allCases, Seed.several(2))
  func continued(_ place: Place, _ seed: Seed) throws {
    var random = seed.generator
    let rig = try SharedStream()
    let cut = Int.random(in: 1000...30_000, using: &random)
    let other =
      switch place {
      case .inside: Int.random(in: 1..<cut, using: &random)
      case .atEnd: cut
      case .behind: Int.random(in: cut + 1..<45_000, using: &random)
      }
    let (running, summary) = try rig.run(cut: cut, other: other, Array(rig.stream[other..<other + 100]))
    #expect(summary.error == nil, "\(place): \(running.events.all.suffix(12))")
    // The other client's bytes are stored. Bytes that this one no longer kept, or that nobody can store, are reported.
    let stored = max(cut, other + 100)
    let lost = place == .behind ? cut..<stored : min(other + 100, cut)..<cut
    let gaps = running.gaps().map { Int($0.offset)..<Int($0.offset + $0.length) }
    #expect(gaps.allSatisfy { lost.lowerBound <= $0.lowerBound && $0.upperBound <= lost.upperBound }, "\(gaps)")
    #expect(place != .behind || gaps == [lost], "\(gaps)")
    #expect(summary.unconfirmed == 0)
    let second = try fileContents(rig.recordings + "/kitchen-a~2.bin")
    let expected = rig.stream.indices.map { $0 >= other + 100 && $0 < cut ? 0 : rig.stream[$0] }[other...]
    let hasAll = second == Array(expected)
    #expect(hasAll, "\(place): \(second.count) bytes from \(other) on")
  }

  @Test(
    "it ends with an error if the stream contains other bytes, or accepts no more", arguments: Contradiction.allCases,
    Seed.several(2))
  func contradicted(_ contradiction: Contradiction, _ seed: Seed) throws {
    var random = seed.generator
    let rig = try SharedStream()
    let cut = Int.random(in: 1000...30_000, using: &random)
    let other: Int
    var bytes: [UInt8]
    switch contradiction {
    case .endsBefore:
      other = Int.random(in: 1...cut - 200, using: &random)
      bytes = Array(rig.stream[other..<other + 100])
    case .endsBehind:
      // More than this client ever has.
      other = 61_000
      bytes = Array(repeating: 1, count: 100)
    case .otherBytes:
      other = cut
      bytes = rig.stream[other..<other + 100].map { ~$0 }
    }
    let (running, summary) = try rig.run(cut: cut, other: other, bytes, completes: contradiction != .otherBytes)
    #expect(summary.error?.kind == .refused, "\(contradiction): \(running.events.all.suffix(12))")
    let refusals = running.events.all.count { if case .response(status: 409, _) = $0 { true } else { false } }
    #expect((1...2).contains(refusals), "\(contradiction): \(refusals)")
    // No byte of either is overwritten.
    let second = try fileContents(rig.recordings + "/kitchen-a~2." + (contradiction == .otherBytes ? "part" : "bin"))
    #expect(second == bytes)
  }
}

/// A live stream of one client, a server that closes its recording, and the continuation by another client.
private final class SharedStream {
  let stream = (0..<60_000).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 13) }
  let directory: TemporaryDirectory
  let events: EventLog<ServerEvent>
  private var socket: String { directory.path + "/socket" }
  var recordings: String { directory.path + "/recordings" }

  init() throws {
    directory = try TemporaryDirectory()
    events = try EventLog<ServerEvent>()
  }

  private func server(_ path: String, finishAfter: Duration = .seconds(60)) throws -> UploadServer {
    unlink(path)
    var configuration = UploadServer.Configuration(
      listen: [try ListenAddress("unix:\(path)")], directory: recordings
    ) { [events] in events.append($0) }
    configuration.finishAfter = finishAfter
    let server = try UploadServer(configuration: configuration)
    try server.start()
    return server
  }

  private func stop(_ server: UploadServer) {
    server.shutdown(grace: .zero)
    server.waitUntilEnded()
  }

  /// - Parameters:
  ///   - cut: how much the server acknowledges before it ends.
  ///   - other: the offset at which the other client begins.
  ///   - bytes: the other client's bytes.
  ///   - completes: whether it ends the stream.
  /// - Returns: the stream of the first client, which has ended.
  func run(cut: Int, other: Int, _ bytes: [UInt8], completes: Bool = false) throws -> (RunningStream, StreamSummary) {
    let first = try server(socket)
    return try withSession { session throws in
      let source = try PushedSource()
      let running = try RunningStream(source, session, "http://h/kitchen.bin") {
        $0.request.unixSocket = socket
        $0.streamID = "a"
        $0.resumable = .always
        // The request is still active when the server ends.
        $0.rollOver.after = .seconds(60)
      }
      try source.push(Array(stream[..<cut]))
      try running.waitUntilAcknowledged(UInt64(cut))
      unlink(socket)
      stop(first)
      try running.waitForFailure()
      // A server that the client cannot reach closes the recording, and another client continues the stream.
      let closing = try server(socket + "2", finishAfter: .milliseconds(100))
      try events.wait("the recording is closed") { $0.contains { $0.kind == .closed } ? true : nil }
      stop(closing)
      let joined = try server(socket + "3")
      let client = try RawClient(joined.localAddresses[0])
      try client.request(
        "POST", "/kitchen.bin",
        [
          "Upload-Complete: ?\(completes ? 1 : 0)", "Stream-ID: a", "Stream-Offset: \(other)",
          "Content-Length: \(bytes.count)",
        ])
      try client.send(bytes)
      #expect(try client.final().answer.status == 201)
      client.disconnect()
      stop(joined)
      try source.push(Array(stream[cut..<50_000]))
      let last = try server(socket)
      defer { stop(last) }
      try source.push(Array(stream[50_000...]))
      running.streamer.finish()
      return (running, try running.summary())
    }
  }
}
