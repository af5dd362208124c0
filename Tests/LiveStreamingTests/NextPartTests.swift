// The client and the server together, after the server has closed a recording while the client could not reach it.

import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient
import UploadServer

@testable import LiveStreaming

@Suite("A stream that the server has closed", .serialized)
struct NextPartTests {
  /// Like the one that `sluice mic` writes: two channels of 16 bits.
  private static let header: [UInt8] =
    Array("RIFF".utf8) + [255, 255, 255, 255] + Array("WAVEfmt ".utf8) + [16, 0, 0, 0, 1, 0, 2, 0]
    + [0x80, 0xBB, 0, 0, 0, 0xEE, 2, 0, 4, 0, 16, 0] + Array("data".utf8) + [255, 255, 255, 255]

  @Test(
    "it continues in a next part with its own header, and no sample is missing", arguments: [true, false],
    Seed.several(2))
  func continued(_ isResumable: Bool, _ seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    let socket = directory.path + "/socket"
    let recordings = directory.path + "/recordings"
    func server(_ path: String, finishAfter: Duration, _ events: EventLog<ServerEvent>) throws -> UploadServer {
      unlink(path)
      var configuration = UploadServer.Configuration(
        listen: [try ListenAddress("unix:\(path)")], directory: recordings
      ) { events.append($0) }
      configuration.finishAfter = finishAfter
      let server = try UploadServer(configuration: configuration)
      try server.start()
      return server
    }
    func stop(_ server: UploadServer) {
      server.shutdown(grace: .zero)
      server.waitUntilEnded()
    }
    let samples = (0..<60_000).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 13) }
    // Usually in the middle of a frame.
    let cut = Int.random(in: 1000...30_000, using: &random)
    let stream = Self.header + samples
    let events = try EventLog<ServerEvent>()
    let isToldOf = random.chance(70)
    // The offset that the client knows the first server has.
    var told = 0
    let first = try server(socket, finishAfter: .seconds(60), events)
    try withSession { session throws in
      let source = try PushedSource()
      let running = try RunningStream(source, session, "http://h/kitchen.wav") {
        $0.request.unixSocket = socket
        $0.request.fields.append("Content-Type", "audio/wav")
        $0.streamID = "a"
        $0.resumable = isResumable ? .always : .never
        // The request is still active when the server ends.
        $0.rollOver.after = .seconds(60)
      }
      try source.push(Array(stream[..<cut]))
      let file = recordings + "/kitchen-a.part"
      while ((try? fileContents(file))?.count ?? 0) < cut { poll(nil, 0, 1) }
      // A client that does not know what the server has stored sends everything again.
      if isResumable && isToldOf {
        try running.events.wait("the acknowledgement") { _ in
          running.events.all.contains { if case .acknowledged(UInt64(cut)) = $0 { true } else { false } } ? true : nil
        }
      }
      unlink(socket)
      stop(first)
      try running.waitForFailure()
      for case .acknowledged(let offset) in running.events.all { told = max(told, Int(offset)) }
      // A server that the client cannot reach closes the recording.
      let closing = try server(socket + "2", finishAfter: .milliseconds(100), events)
      try events.wait("the recording is closed") { $0.contains { $0.kind == .closed } ? true : nil }
      stop(closing)
      try source.push(Array(stream[cut...]))
      let last = try server(socket, finishAfter: .seconds(60), events)
      defer { stop(last) }
      running.streamer.finish()
      let summary = try running.summary()
      #expect(summary.error == nil && summary.gaps == 0)
    }
    let parts = try ["kitchen-a.wav", "kitchen-a~2.wav"].map { try fileContents(recordings + "/" + $0) }
    // The server has written the true sizes. The rest of the header is a copy.
    #expect(Array(parts[0].dropFirst(44)) == Array(stream[44..<parts[0].count]))
    for part in parts { #expect(part[8..<40] == Self.header[8..<40]) }
    let text = String(decoding: try fileContents(recordings + "/kitchen-a~2.gaps"), as: UTF8.self)
    let start = try #require(text.split(separator: ":").dropFirst().first.flatMap { Int($0.prefix { $0.isNumber }) })
    if start == 0 { return #expect(Array(parts[1].dropFirst(44)) == Array(stream.dropFirst(44))) }
    #expect(start <= parts[0].count && (start - 44) % 4 == 0 && (parts[1].count - 44) % 4 == 0)
    #expect(Array(parts[1].dropFirst(44)) == Array(stream[start...]))
    #expect(start + 3 >= told || !isResumable)
    #expect(told == cut || !isResumable || !isToldOf)
  }
}
