// Stretches that earlier processes have left in a spool, sent one after another to a real server.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpooledStreams
import Testing
import UploadClient
import UploadServer

@testable import LiveStreaming

@Suite("Backlogs in a spool", .serialized)
struct BacklogStreamerTests {
  private let pattern = OffsetPattern(seed: 9)
  private let directory: TemporaryDirectory
  private let server: StreamServer

  init() throws {
    directory = try TemporaryDirectory()
    server = try StreamServer()
  }

  /// Leaves a stretch like a killed process.
  ///
  /// - Parameter origin: the origin of its URL; nil for the server's.
  private func leave(_ number: Int, count: Int, for origin: String? = nil) throws {
    let folder = try SpoolFolder(directory: directory.path, stream: "cam")
    var description = StretchDescription(url: "\(origin ?? server.url)/x.bin", streamID: "s\(number)")
    description.contentType = "audio/x-test"
    let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
    let bytes = patternBytes(pattern, 1000 * number, count)
    try bytes.withUnsafeBytes { try file.append($0, at: 0, time: 1) }
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
  }

  private func spool() throws -> StreamSpool {
    let end = MonotonicInstant.now + .seconds(20)
    while true {
      do {
        return try StreamSpool(
          directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
      } catch {
        // The folder belongs to the previous spool until its thread has ended.
        guard case .inUse = error.cause, .now < end else { throw error }
        poll(nil, 0, 1)
      }
    }
  }

  /// Sends the remaining stretches, and returns the events.
  private func send(
    _ session: UploadSession, _ use: LiveStreamConfiguration.ResumableUse = .auto, rate: Int? = nil,
    isCancelled: Bool = false
  ) throws -> [BacklogStreamer.Event] {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(server.url)/other.bin"))
    configuration.resumable = use
    configuration.request.maximumSendRate = rate
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    // In one turn of the loop, so that no stretch is open at the time of the cancellation.
    session.loop.execute {
      streamer.start { events.append($0) }
      if isCancelled { streamer.cancel() }
    }
    try events.first("the end of the backlog") { if case .ended = $0 { true } else { false } }
    return events.all
  }

  private static func counts(_ events: [BacklogStreamer.Event]) -> (begun: Int, delivered: Int?, kept: Int?) {
    var counts: (begun: Int, delivered: Int?, kept: Int?) = (0, nil, nil)
    for event in events {
      switch event {
      case .begins: counts.begun += 1
      case .ended(let delivered, let kept): (counts.delivered, counts.kept) = (delivered, kept)
      case .stream, .unreadable: break
      }
    }
    return counts
  }

  @Test(
    "each stretch becomes a separate recording, and the spool is empty afterwards",
    arguments: [LiveStreamConfiguration.ResumableUse.auto, .never])
  func sent(_ use: LiveStreamConfiguration.ResumableUse) throws {
    for number in 0..<3 { try leave(number, count: 1000 * number + 1) }
    try withSession { session throws in
      let counts = Self.counts(try send(session, use))
      #expect(counts == (3, 3, 0))
      for number in 0..<3 {
        let stored = try server.directory.contents("x-s\(number).bin")
        #expect(stored == patternBytes(pattern, 1000 * number, 1000 * number + 1))
      }
      #expect(Self.counts(try send(session, use)) == (0, 0, 0))
    }
    #expect(try SpoolFolder.stretches(in: "\(directory.path)/cam") == [])
  }

  @Test("a cancellation while the disk opens a stretch ends the backlog once, and keeps everything for the next time")
  func cancelled() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    try withSession { session throws in
      #expect(Self.counts(try send(session, isCancelled: true)) == (0, 0, 2))
      #expect(Self.counts(try send(session)) == (2, 2, 0))
    }
  }

  @Test("a backlog is sent in large chunks, and at a limited rate in small ones", arguments: [nil, 64 << 20])
  func chunks(rate: Int?) throws {
    let found = try EventLog<(largest: Int, total: Int)>()
    let peer = try ScriptedServer { connection, _ in
      _ = try connection.head()
      var sizes: [Int] = []
      while let chunk = try connection.chunk(), !chunk.isEmpty { sizes.append(chunk.count) }
      found.append((sizes.max() ?? 0, sizes.reduce(0, +)))
      try connection.respond("200 OK")
    }
    let count = 900_000
    try leave(0, count: count, for: peer.url)
    try withSession { session throws in
      #expect(Self.counts(try send(session, .never, rate: rate)) == (1, 1, 0))
    }
    let chunks = try found.wait("the body") { $0.first }
    #expect(chunks.total == count)
    #expect(rate == nil ? chunks.largest > 128 << 10 : chunks.largest <= 16 << 10, "\(chunks)")
  }
}
