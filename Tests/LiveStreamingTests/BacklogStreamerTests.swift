// Stretches that earlier processes have left in a spool, sent one after another to a real server.

import Digests
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import ResumableUploads
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
    try leave(number, [0..<count], for: origin)
  }

  /// - Parameters:
  ///   - parts: the bytes that are in the spool.
  ///   - grid: the lengths of the header and of a frame.
  ///   - acknowledged: what a plain server has acknowledged.
  ///   - upload: the upload resource that the process has created.
  ///   - sent: the last description that was sent.
  ///   - released: the position before which the server has acknowledged everything.
  private func leave(
    _ number: Int, _ parts: [Range<Int>], for origin: String? = nil, grid: (header: Int, frame: Int) = (0, 1),
    acknowledged: UInt64? = nil, upload: ResumeData? = nil, sent: String? = nil, released: UInt64 = 0
  ) throws {
    let folder = try SpoolFolder(directory: directory.path, stream: "cam")
    var description = StretchDescription(url: "\(origin ?? server.url)/x.bin", streamID: "s\(number)")
    description.contentType = "audio/x-test"
    description.header = [UInt8](repeating: 0, count: grid.header)
    description.frameLength = grid.frame
    var resumption = StretchResumption()
    (resumption.acknowledged, resumption.upload, resumption.description) = (acknowledged, upload, sent)
    let isBegun = acknowledged != nil || upload != nil
    let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
    for part in parts {
      let bytes = patternBytes(pattern, 1000 * number + part.lowerBound, part.count)
      try bytes.withUnsafeBytes { try file.append($0, at: UInt64(part.lowerBound), time: 1) }
    }
    file.release(upTo: released)
    try file.commit(
      state: isBegun ? resumption.text : "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
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
  ///
  /// - Parameters:
  ///   - origin: the origin of the configured URL; nil for the server's.
  ///   - token: a bearer token for that origin.
  private func send(
    _ session: UploadSession, _ use: LiveStreamConfiguration.ResumableUse = .auto, _ origin: String? = nil,
    token: String? = nil, rate: Int? = nil, isCancelled: Bool = false
  ) throws -> [BacklogStreamer.Event] {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(origin ?? server.url)/other.bin"))
    configuration.resumable = use
    if let token { configuration.bearerToken = { token } }
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

  private static func gaps(_ events: [BacklogStreamer.Event]) -> [Gap] {
    events.compactMap { if case .stream(_, .gap(let gap)) = $0 { gap } else { nil } }
  }

  /// A plain server: it knows no resumable uploads, and stores one body after another.
  private func plainServer(_ stored: EventLog<(start: UInt64, body: [UInt8])>) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      let head = try connection.head()
      guard head.line.hasPrefix("POST"), head["Upload-Complete"] == nil else {
        return try connection.respond("404 Not Found")
      }
      let body = try connection.body()
      stored.append((head.offset, body))
      try connection.respond("200 OK")
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

  @Test(
    "a stretch that a plain server has stored in part continues there, even after a run that requires resumable uploads",
    arguments: [false, true])
  func partlyPlain(_ isRefusedFirst: Bool) throws {
    let stored = try EventLog<(start: UInt64, body: [UInt8])>()
    let peer = try plainServer(stored)
    try leave(0, [0..<1000], for: peer.url, acknowledged: 600)
    try withSession { session throws in
      if isRefusedFirst { #expect(Self.counts(try send(session, .always)) == (1, 0, 1)) }
      #expect(Self.counts(try send(session)) == (1, 1, 0))
    }
    let rest = try stored.wait("the rest") { $0.first }
    #expect(rest.start == 600 && rest.body == patternBytes(pattern, 600, 400))
    #expect(stored.all.count == 1)
  }

  @Test("a stretch of which a plain server has one byte continues behind it", arguments: [false, true])
  func firstByte(isReleased: Bool) throws {
    let stored = try EventLog<(start: UInt64, body: [UInt8])>()
    let peer = try plainServer(stored)
    // Known from the text for resumption, or from the spool.
    try leave(
      0, [0..<1000], for: peer.url, acknowledged: isReleased ? 0 : 1, released: isReleased ? 1 : 0)
    try withSession { session throws in
      let events = try send(session, isReleased ? .never : .auto)
      #expect(Self.counts(events) == (1, 1, 0))
      for case .begins(_, let byteCount, _) in events { #expect(byteCount == (isReleased ? 999 : 1000)) }
    }
    let rest = try stored.wait("the rest") { $0.first }
    #expect(rest.start == 1 && rest.body == patternBytes(pattern, 1, 999) && stored.all.count == 1)
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

  @Test("a cancelled backlog ends after the stretch that is being sent, and keeps everything")
  func cancelledWhileSending() throws {
    let requests = try EventLog<Int>()
    let peer = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    for number in 0..<2 { try leave(number, count: 1000, for: peer.url) }
    try withSession { session throws in
      let configuration = LiveStreamConfiguration(request: UploadRequest(url: peer.url))
      let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
      let events = try EventLog<BacklogStreamer.Event>()
      streamer.start { events.append($0) }
      try requests.wait("a request") { $0.first }
      streamer.cancel()
      try events.first("the end of the backlog", where: Self.isEnd)
      #expect(Self.counts(events.all) == (1, 0, 2))
      guard case .stream(_, .ended(let summary))? = events.all.dropLast().last else {
        Issue.record("\(events.all)")
        return
      }
      #expect(summary.error?.kind == .cancelled)
    }
  }

  /// A plain server that reads the first request and loses all of it. It serves the second one with `second`, and
  /// stores the others.
  private func forgetfulServer(
    _ starts: EventLog<UInt64>, _ stored: EventLog<(start: UInt64, body: [UInt8])>,
    second: @escaping @Sendable (ServerConnection, UInt64) throws -> Void
  ) throws -> ScriptedServer {
    try ScriptedServer { connection, number in
      let start = try connection.head().offset
      starts.append(start)
      switch number {
      case 0:
        var count = 0
        while count < Self.unread, let chunk = try connection.chunk() { count += chunk.count }
        connection.reset()
      case 1: try second(connection, start)
      default:
        stored.append((start, try connection.body()))
        try connection.respond("200 OK")
      }
    }
  }

  /// Fewer bytes than are kept although TCP has acknowledged them.
  private static let unread = 120_000

  /// Captures bytes with a spool, and calls `end` when the server has the second request. Returns the summary.
  private func capture(
    _ session: UploadSession, _ url: String, _ starts: EventLog<UInt64>, end: (LiveStreamer) -> Void
  ) throws -> StreamSummary {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(url)/x.bin"))
    configuration.resumable = .never
    configuration.retry.initialCeiling = .milliseconds(20)
    let source = try PushedSource()
    let events = try EventLog<LiveStreamEvent>()
    let streamer = try LiveStreamer(source, configuration: configuration, session: session, spool: try spool())
    streamer.start { events.append($0) }
    try source.push(patternBytes(pattern, 0, Self.unread))
    try starts.wait("the second request") { $0.count == 2 ? true : nil }
    #expect(starts.all[1] > 0, "TCP has acknowledged bytes that the server lacks")
    end(streamer)
    return try events.wait("the end of the stream", within: .seconds(30)) { events in
      if case .ended(let summary)? = events.last { summary } else { nil }
    }
  }

  private func checkAll(_ stored: EventLog<(start: UInt64, body: [UInt8])>) throws {
    let all = try stored.wait("the whole stretch") { $0.first }
    #expect(all.start == 0 && all.body == patternBytes(pattern, 0, Self.unread))
  }

  @Test("bytes that only TCP has acknowledged are sent again by the next process, even after a second request")
  func acknowledgedOnlyByTCP() throws {
    let (starts, stored) = (try EventLog<UInt64>(), try EventLog<(start: UInt64, body: [UInt8])>())
    let peer = try forgetfulServer(starts, stored) { connection, _ in _ = connection.waitForEnd() }
    try withSession { session throws in
      let summary = try capture(session, peer.url, starts) { $0.cancel() }
      #expect(summary.error?.kind == .cancelled)
      #expect(Self.counts(try send(session, .never)) == (1, 1, 0))
    }
    try checkAll(stored)
  }

  @Test("a stretch of which a plain server lacks bytes stays while the spool has them, and the next run sends them")
  func missingAtServer() throws {
    let (starts, stored) = (try EventLog<UInt64>(), try EventLog<(start: UInt64, body: [UInt8])>())
    let peer = try forgetfulServer(starts, stored) { connection, start in
      _ = try connection.body()
      try connection.respond("200 OK", ["Stream-Missing: \(start)"])
    }
    try withSession { session throws in
      let summary = try capture(session, peer.url, starts) { $0.finish() }
      let missing = starts.all[1]
      #expect(summary.error?.kind == .unfinished && summary.missingAtServer == missing)
      #expect(summary.progress.unsent == missing && summary.progress.lost == 0)
      #expect(Self.counts(try send(session, .never)) == (1, 1, 0))
    }
    try checkAll(stored)
  }

  @Test("a stretch that was sent from its oldest byte does not stay, although its server lacks bytes")
  func missingForGood() throws {
    let peer = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      try connection.respond("200 OK", ["Stream-Missing: 100"])
    }
    try leave(0, [0..<1000], for: peer.url)
    try withSession { session throws in
      let events = try send(session, .never)
      #expect(Self.counts(events) == (1, 1, 0))
      #expect(events.contains { if case .stream(_, .missingAtServer(100)) = $0 { true } else { false } })
    }
  }

  @Test("a stretch whose process has created an upload resource continues there, at the server's offset")
  func resumed() throws {
    let peer = try ResumableServer(.init(progress: 1))
    let upload = try withSession { session throws -> ResumeData in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, peer) { $0.streamID = "s0" }
      try source.push(patternBytes(pattern, 0, 600))
      try stream.waitUntilAcknowledged(600)
      stream.streamer.cancel()
      return try #require(try stream.summary().resumeData)
    }
    try leave(0, [0..<1000], for: peer.url, upload: upload)
    try withSession { session throws in #expect(Self.counts(try send(session)) == (1, 1, 0)) }
    #expect(peer.uploads.count == 1 && peer.upload(0).isComplete && peer.upload(0).matches(pattern, count: 1000))
    #expect(peer.of("HEAD").map(\.target) == ["/uploads/0"] && peer.of("PATCH").contains { $0.offset == 600 })
  }

  /// Captures 600 bytes for a server that stores 300 of them, and stops when it is away.
  private func captureHalf(_ session: UploadSession, _ peer: ResumableServer) throws {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(peer.url)/x.bin"))
    configuration.description = SourceDescription(device: "hw:7")
    let (source, events) = (try PushedSource(), try EventLog<LiveStreamEvent>())
    let streamer = try LiveStreamer(source, configuration: configuration, session: session, spool: try spool())
    streamer.start { events.append($0) }
    try source.push(patternBytes(pattern, 0, 600))
    try events.first("the outage") { if case .outage = $0 { true } else { false } }
    streamer.cancel()
    try events.first("the end") { if case .ended = $0 { true } else { false } }
  }

  @Test("a process that stops leaves its upload resource and its description to the next one")
  func leftUpload() throws {
    let isAway = Lock(false)
    let peer = try ResumableServer(.init(progress: 1)) { request, _ in
      if request.method == "PATCH", request.number == 0 {
        isAway.withLock { $0 = true }
        return .cut(after: 300)
      }
      return isAway.withLock { $0 } ? .close : .proper
    }
    try withSession { session throws in
      try captureHalf(session, peer)
      isAway.withLock { $0 = false }
      let before = peer.requests.all.count
      #expect(Self.counts(try send(session)) == (1, 1, 0))
      let requests = peer.requests.all.dropFirst(before)
      #expect(requests.map(\.method).first == "HEAD" && requests.allSatisfy { $0.target == "/uploads/0" })
      let appends = requests.filter { $0.method == "PATCH" }
      #expect(appends.first?.offset == 300)
      #expect(appends.allSatisfy { $0.head["Stream-Description"]?.contains("hw:7") == true })
    }
    #expect(peer.uploads.count == 1 && peer.upload(0).isComplete && peer.upload(0).matches(pattern, count: 600))
  }

  @Test("a stretch that a plain server has stored beyond a pause continues there")
  func beyondPause() throws {
    let stored = try EventLog<(start: UInt64, body: [UInt8])>()
    let peer = try plainServer(stored)
    do {
      let folder = try SpoolFolder(directory: directory.path, stream: "cam")
      let description = StretchDescription(url: "\(peer.url)/x.bin", streamID: "s0")
      var resumption = StretchResumption()
      resumption.acknowledged = 5_800
      let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
      try patternBytes(pattern, 0, 1000).withUnsafeBytes { try file.append($0, at: 0, time: 1) }
      try file.commit(
        state: resumption.text, pausedByteCount: 0, pauses: [SpoolPause(position: 600, length: 5_000)],
        isFinished: false, sync: true)
    }
    try withSession { session throws in
      let events = try send(session, .never)
      #expect(Self.counts(events) == (1, 1, 0) && Self.gaps(events).isEmpty)
    }
    // Stream offset 5,800 is position 800 in the stretch.
    let rest = try stored.wait("the rest") { $0.first }
    #expect(rest.start == 5_800 && rest.body == patternBytes(pattern, 800, 200) && stored.all.count == 1)
  }

  @Test("a stretch whose upload resource begins after a pause continues at the server's offset")
  func uploadBeyondPause() throws {
    let peer = try ResumableServer(.init(progress: 1))
    var upload = try withSession { session throws -> ResumeData in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, peer) { $0.streamID = "s0" }
      try source.push(patternBytes(pattern, 600, 200))
      try stream.waitUntilAcknowledged(200)
      stream.streamer.cancel()
      return try #require(try stream.summary().resumeData)
    }
    // Its first byte is position 600 in the stretch, after 5,000 omitted bytes.
    upload.base = 5_600
    do {
      let folder = try SpoolFolder(directory: directory.path, stream: "cam")
      let description = StretchDescription(url: "\(peer.url)/x.bin", streamID: "s0")
      var resumption = StretchResumption()
      resumption.upload = upload
      let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
      try patternBytes(pattern, 0, 1000).withUnsafeBytes { try file.append($0, at: 0, time: 1) }
      try file.commit(
        state: resumption.text, pausedByteCount: 0, pauses: [SpoolPause(position: 600, length: 5_000)],
        isFinished: false, sync: true)
    }
    try withSession { session throws in
      let events = try send(session)
      #expect(Self.counts(events) == (1, 1, 0) && Self.gaps(events).isEmpty)
    }
    #expect(peer.uploads.count == 1 && peer.upload(0).isComplete && peer.upload(0).matches(pattern, from: 600))
    #expect(peer.upload(0).bytes.count == 400)
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

  @Test("a cancellation while the disk opens a stretch ends the backlog once, and keeps everything for the next time")
  func cancelled() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    try withSession { session throws in
      #expect(Self.counts(try send(session, isCancelled: true)) == (0, 0, 2))
      #expect(Self.counts(try send(session)) == (2, 2, 0))
    }
  }

  private static func isEnd(_ event: BacklogStreamer.Event) -> Bool { if case .ended = event { true } else { false } }

  @Test("a backlog ends when its session closes while a stretch is being sent, and keeps everything")
  func closedWhileSending() throws {
    let requests = try EventLog<Int>()
    let peer = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    for number in 0..<2 { try leave(number, count: 1000, for: peer.url) }
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: peer.url))
    let session = try UploadSession()
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    streamer.start { events.append($0) }
    try requests.wait("a request") { $0.first }
    session.close()
    try events.first("the end of the backlog", where: Self.isEnd)
    #expect(Self.counts(events.all) == (1, 0, 2))
  }

  @Test("a backlog ends when its session closes while the disk opens a stretch, and keeps everything")
  func closedWhileOpening() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    let events = try EventLog<BacklogStreamer.Event>()
    let begun = try EventLog<Bool>()
    let isOver = try EventCounter()
    do {
      let spool = try self.spool()
      let descriptor = isOver.descriptor
      // The spool's thread opens no stretch until the backlog has ended.
      spool.open("none") { _ in _ = waitUntilReadable(descriptor) }
      let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
      let session = try UploadSession()
      let streamer = BacklogStreamer(spool, configuration: configuration, session: session)
      streamer.start { events.append($0) }
      session.loop.execute { begun.append(true) }
      try begun.wait("the beginning") { $0.first }
      session.close()
    }
    try events.first("the end of the backlog", where: Self.isEnd)
    isOver.signal()
    #expect(Self.counts(events.all) == (0, 0, 2))
    try withSession { session throws in #expect(Self.counts(try send(session)) == (2, 2, 0)) }
  }

  @Test("a backlog that starts while its session closes ends without the disk, and keeps everything")
  func closing() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    let events = try EventLog<BacklogStreamer.Event>()
    let isOver = try EventCounter()
    let spool = try self.spool()
    let descriptor = isOver.descriptor
    spool.open("none") { _ in _ = waitUntilReadable(descriptor) }
    let session = try UploadSession()
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
    let streamer = BacklogStreamer(spool, configuration: configuration, session: session)
    // On the session's thread, so that the backlog starts after the session was closed.
    session.loop.execute {
      streamer.start { events.append($0) }
      session.close()
    }
    try events.first("the end of the backlog", where: Self.isEnd)
    isOver.signal()
    #expect(events.all.count == 1 && Self.counts(events.all) == (0, 0, 2))
  }

  @Test("a backlog in a closed session ends at once, and keeps everything")
  func closedSession() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    let session = try UploadSession()
    session.close()
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    streamer.start { events.append($0) }
    #expect(events.all.count == 1 && Self.counts(events.all) == (0, 0, 2))
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
