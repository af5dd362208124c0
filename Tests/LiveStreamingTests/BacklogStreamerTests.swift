// Stretches that earlier processes have left in a spool, sent one after another to a real server.

import Digests
import NetworkTesting
import PropertyTesting
import Spool
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("Backlogs in a spool", .serialized)
struct BacklogStreamerTests: BacklogSuite {
  let pattern = OffsetPattern(seed: 9)
  let directory: TemporaryDirectory
  let server: StreamServer

  init() throws {
    directory = try TemporaryDirectory()
    server = try StreamServer()
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

  @Test("a stretch that cannot be sent is reported with its file and the reason, and the others are sent")
  func unreadable() throws {
    try leave(1, count: 100)
    do {
      let folder = try SpoolFolder(directory: directory.path, stream: "cam")
      let file = try SpoolFile.create(in: folder, description: "nothing", capacity: 1 << 20)
      try [UInt8](repeating: 1, count: 100).withUnsafeBytes { try file.append($0, at: 0, time: 1) }
      try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
    }
    let foreign = "1795403376004-57f93922e6ee4bd9.spool"
    try directory.write("cam/\(foreign)", [1, 2, 3])
    try withSession { session throws in
      let events = try send(session)
      #expect(Self.counts(events) == (1, 1, 2))
      var unsent: [String] = []
      for case .unreadable(let stretch, let obstacle) in events {
        unsent.append(stretch)
        switch obstacle {
        case .spool(let error): #expect(stretch == foreign && error.path.hasSuffix("/cam/\(foreign)"))
        case .noDestination(let path): #expect(stretch != foreign && path.hasSuffix("/cam/\(stretch)"))
        case .inUse: Issue.record("\(obstacle)")
        }
      }
      #expect(unsent.count == 2 && Set(unsent).count == 2)
    }
  }

  /// Missing bytes that begin and end inside a frame of most lengths.
  private static let hole = 5_003..<9_001
  private static let total = 20_000

  @Test(
    "a hole is one loss up to the next frame, wherever it begins, and the rest is delivered", arguments: [1, 4, 6],
    [0, 94])
  func hole(frame: Int, header: Int) throws {
    let hole = Self.hole
    try leave(0, [0..<hole.lowerBound, hole.upperBound..<Self.total], grid: (header, frame))
    let next = FrameGrid(headerLength: header, frameLength: frame).ceiling(UInt64(hole.upperBound))
    try withSession { session throws in
      let events = try send(session)
      #expect(Self.counts(events) == (1, 1, 0))
      #expect(Self.gaps(events) == [Gap(offset: 5_003, length: next - 5_003, cause: .bufferFull)])
    }
    let stored = try server.directory.contents("x-s0.bin")
    #expect(stored.count == Self.total)
    #expect(Array(stored.prefix(hole.lowerBound)) == patternBytes(pattern, 0, hole.lowerBound))
    #expect(Array(stored.dropFirst(Int(next))) == patternBytes(pattern, Int(next), Self.total - Int(next)))
  }

  @Test(
    "a plain stream whose next byte is missing continues after the hole", arguments: [1, 4, 6], [0, 94])
  func holeAtStart(frame: Int, header: Int) throws {
    let hole = Self.hole
    let stored = try EventLog<(start: UInt64, body: [UInt8])>()
    let peer = try plainServer(stored)
    try leave(
      0, [0..<hole.lowerBound, hole.upperBound..<Self.total], for: peer.url, grid: (header, frame),
      acknowledged: UInt64(hole.lowerBound))
    let next = FrameGrid(headerLength: header, frameLength: frame).ceiling(UInt64(hole.upperBound))
    try withSession { session throws in
      let events = try send(session, .never)
      #expect(Self.counts(events) == (1, 1, 0))
      #expect(Self.gaps(events) == [Gap(offset: 5_003, length: next - 5_003, cause: .bufferFull)])
    }
    let rest = try stored.wait("the rest") { $0.first }
    #expect(rest.start == next && rest.body == patternBytes(pattern, Int(next), Self.total - Int(next)))
  }

  @Test("a stretch has the fields of its own stream, and otherwise those of the configuration")
  func fields() throws {
    let names = ["Content-Type", "Stream-ID", "Stream-Offset", "Stream-Description", "Want-Repr-Digest", "X-Own"]
    let heads = try EventLog<[String?]>()
    let peer = try ScriptedServer { connection, _ in
      let head = try connection.head()
      heads.append([head.line] + names.map { head[$0] })
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    try leave(0, [0..<1000], for: peer.url, acknowledged: 0, sent: "device=\"mic\"")
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(peer.url)/other.bin"))
    configuration.resumable = .never
    configuration.streamID = "other"
    configuration.request.fields = ["Content-Type": "text/plain", "X-Own": "1"]
    configuration.description = SourceDescription(device: "another")
    configuration.digest = .sha256
    try withSession { session throws in
      let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
      let events = try EventLog<BacklogStreamer.Event>()
      streamer.start { events.append($0) }
      try events.first("the end of the backlog", where: Self.isEnd)
      #expect(Self.counts(events.all) == (1, 1, 0))
    }
    #expect(heads.all == [["POST /x.bin HTTP/1.1", "audio/x-test", "s0", "0", "device=\"mic\"", nil, "1"]])
  }

  @Test("a bearer token is sent only to the server that it was given for")
  func token() throws {
    let seen = try EventLog<(isOwn: Bool, field: String?)>()
    func peer(isOwn: Bool) throws -> ScriptedServer {
      try ScriptedServer { connection, _ in
        let head = try connection.head()
        seen.append((isOwn, head["Authorization"]))
        _ = try connection.body()
        try connection.respond("200 OK")
      }
    }
    let own = try peer(isOwn: true)
    let other = try peer(isOwn: false)
    try leave(0, [0..<1000], for: own.url)
    try leave(1, [0..<1000], for: other.url)
    try withSession { session throws in
      #expect(Self.counts(try send(session, .never, own.url, token: "secret")) == (2, 2, 0))
    }
    #expect(seen.all.count == 2)
    for (isOwn, field) in seen.all { #expect(field == (isOwn ? "Bearer secret" : nil)) }
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
