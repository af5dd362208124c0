// Stretches of which a server has stored some bytes already: each continues where its server's bytes end.

import EventLoops
import NetworkTesting
import PropertyTesting
import ResumableUploads
import Spool
import SpoolTesting
import SpooledStreams
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The resumption of stretches in a spool", .serialized)
struct BacklogResumptionTests: BacklogSuite {
  let pattern = OffsetPattern(seed: 9)
  let directory: TemporaryDirectory
  let server: StreamServer

  init() throws {
    directory = try TemporaryDirectory()
    server = try StreamServer()
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

  // MARK: Bytes that a plain server lacks

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

  private func checkAll(_ stored: EventLog<(start: UInt64, body: [UInt8])>, count: Int) throws {
    let all = try stored.wait("the whole stretch") { $0.first }
    #expect(all.start == 0 && all.body == patternBytes(pattern, 0, count))
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
    try checkAll(stored, count: Self.unread)
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
    try checkAll(stored, count: Self.unread)
  }

  @Test("bytes that a plain server lacks stay, however many bytes its last request has delivered after them")
  func missingBeforeMany() throws {
    let (starts, stored) = (try EventLog<UInt64>(), try EventLog<(start: UInt64, body: [UInt8])>())
    let peer = try forgetfulServer(starts, stored) { connection, start in
      _ = try connection.body()
      try connection.respond("200 OK", ["Stream-Missing: \(start)"])
    }
    try withSession { session throws in
      let summary = try captureMore(session, peer.url)
      let missing = try starts.wait("the second request") { $0.count == 2 ? $0[1] : nil }
      #expect(missing > 0 && summary.error?.kind == .unfinished && summary.missingAtServer == missing)
      #expect(summary.progress.unsent == missing && summary.progress.lost == 0)
      #expect(Self.counts(try send(session, .never)) == (1, 1, 0))
    }
    try checkAll(stored, count: Self.unread + Self.more)
  }

  /// More bytes than stay in the buffer after TCP has acknowledged them.
  private static let more = 300_000

  /// Captures more bytes with a spool after the server has lost the first ones. Returns the summary.
  private func captureMore(_ session: UploadSession, _ url: String) throws -> StreamSummary {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(url)/x.bin"))
    configuration.resumable = .never
    // The second request begins on demand. All of its bytes fit in its pair, so TCP is not asked about them before the
    // server confirms the stream.
    (configuration.retry.initialCeiling, configuration.retry.maximumCeiling) = (.seconds(3600), .seconds(3600))
    configuration.pairSize = 1 << 20
    let (source, events) = (try PushedSource(), try EventLog<LiveStreamEvent>())
    let streamer = try LiveStreamer(source, configuration: configuration, session: session, spool: try spool())
    streamer.start { events.append($0) }
    try source.push(patternBytes(pattern, 0, Self.unread))
    try events.first("the outage") { if case .outage = $0 { true } else { false } }
    try source.push(patternBytes(pattern, Self.unread, Self.more))
    streamer.finish()
    streamer.retryNow()
    return try events.wait("the end of the stream") { events in
      if case .ended(let summary)? = events.last { summary } else { nil }
    }
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

  // MARK: A source that has failed

  /// Captures 1000 bytes from a source that fails, and stops when the server is away.
  ///
  /// - Parameter endsAtOnce: whether the stream ends before it hears of the failure.
  private func captureFailure(_ session: UploadSession, _ peer: ResumableServer, endsAtOnce: Bool) throws {
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(peer.url)/x.bin"))
    let (source, events) = (try PushedSource(), try EventLog<LiveStreamEvent>())
    let streamer = try LiveStreamer(source, configuration: configuration, session: session, spool: try spool())
    streamer.start { events.append($0) }
    try source.push(patternBytes(pattern, 0, 1000))
    let failure = LiveStreamError(.source, "reset")
    if !endsAtOnce {
      try source.fail(failure)
      source.stop()
    }
    try events.first("the outage") { if case .outage = $0 { true } else { false } }
    session.loop.execute {
      if endsAtOnce { try? source.fail(failure) }
      streamer.cancelNow()
    }
    try events.first("the end of the stream") { if case .ended = $0 { true } else { false } }
  }

  @Test(
    "a stretch whose source failed stays unfinished at the server, although another run sends it",
    arguments: [false, true])
  func cutOff(endsAtOnce: Bool) throws {
    let isAway = Lock(true)
    let peer = try ResumableServer { _, _ in isAway.withLock { $0 } ? .close : .proper }
    try withSession { session throws in
      try captureFailure(session, peer, endsAtOnce: endsAtOnce)
      isAway.withLock { $0 = false }
      let sent = try send(session)
      #expect(Self.counts(sent) == (1, 1, 0))
      let recordings = sent.compactMap { event -> RecordingState? in
        if case .stream(_, .ended(let summary)) = event { summary.recording } else { nil }
      }
      #expect(recordings == [.unfinished])
    }
    #expect(!peer.upload(0).isComplete && peer.upload(0).bytes == patternBytes(pattern, 0, 1000))
  }

  // MARK: Upload resources and pauses

  /// Captures these bytes of the stretch into a new upload resource, and stops when its server has them.
  private func interruptedUpload(_ peer: ResumableServer, _ range: Range<Int>) throws -> ResumeData {
    try withSession { session throws -> ResumeData in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, peer) { $0.streamID = "s0" }
      try source.push(patternBytes(pattern, range.lowerBound, range.count))
      try stream.waitUntilAcknowledged(UInt64(range.count))
      stream.streamer.cancel()
      return try #require(try stream.summary().resumeData)
    }
  }

  @Test("a stretch whose process has created an upload resource continues there, at the server's offset")
  func resumed() throws {
    let peer = try ResumableServer(.init(progress: 1))
    let upload = try interruptedUpload(peer, 0..<600)
    try leave(0, [0..<1000], for: peer.url, upload: upload)
    try withSession { session throws in #expect(Self.counts(try send(session)) == (1, 1, 0)) }
    #expect(peer.uploads.count == 1 && peer.upload(0).isComplete && peer.upload(0).matches(pattern, count: 1000))
    #expect(peer.of("HEAD").map(\.target) == ["/uploads/0"] && peer.of("PATCH").contains { $0.offset == 600 })
  }

  /// Sends the stretch, and stops at the first outage.
  private func sendUntilOutage(_ session: UploadSession, _ peer: ResumableServer) throws -> [BacklogStreamer.Event] {
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(peer.url)/x.bin"))
    let events = try EventLog<BacklogStreamer.Event>()
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    streamer.start { events.append($0) }
    try events.first("the outage") { if case .stream(_, .outage) = $0 { true } else { false } }
    streamer.cancel()
    try events.first("the end of the backlog") { if case .ended = $0 { true } else { false } }
    return events.all
  }

  @Test(
    "bytes that the spool has discarded have the same cause in each run that reports them", arguments: [false, true])
  func discardedInEachRun(joinsParts: Bool) throws {
    let isAway = Lock(false)
    let fields = joinsParts ? ["Stream-ID: s0"] : []
    let peer = try ResumableServer(.init(progress: 1, creationFields: fields)) { request, _ in
      request.method == "POST" && isAway.withLock { $0 } ? .close : .proper
    }
    let upload = try interruptedUpload(peer, 0..<600)
    try leave(0, [0..<1000], for: peer.url, upload: upload, released: 600, evicted: 900)
    let gap = Gap(offset: 600, length: 300, cause: .bufferFull)
    try withSession { session throws in
      isAway.withLock { $0 = true }
      for _ in 0..<2 { #expect(Self.gaps(try sendUntilOutage(session, peer)) == [gap]) }
      isAway.withLock { $0 = false }
      let events = try send(session)
      #expect(Self.counts(events) == (1, 1, 0) && Self.gaps(events) == [gap])
      let wentBack = events.contains { if case .stream(_, .upload(.serverWentBack)) = $0 { true } else { false } }
      #expect(!wentBack, "the server still has everything that it has acknowledged")
    }
    let last = try #require(peer.uploads.last)
    #expect(last.isComplete && last.bytes == patternBytes(pattern, 900, 100))
    #expect(last.head?["Stream-Offset"] == "900")
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

  @Test("a process that is killed leaves its upload resource to the next one")
  func killed() throws {
    let peer = try ResumableServer(.init(progress: 1))
    let machine = try SpoolMachine(Seed(1).generator, folder: directory.path)
    func open() throws -> StreamSpool {
      try StreamSpool(
        directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 20), disk: machine.start()
      ) { _ in }
    }
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(peer.url)/x.bin"))
    configuration.buffer = .bytes(64 << 10)
    // What is left of the process must not begin another request, and then another upload, however long this takes.
    configuration.rollOver.after = .seconds(3600)
    try withSession { session throws in
      let (source, events) = (try PushedSource(), try EventLog<LiveStreamEvent>())
      let streamer = try LiveStreamer(source, configuration: configuration, session: session, spool: try open())
      streamer.start { events.append($0) }
      try source.push(patternBytes(pattern, 0, 600))
      try events.first("the acknowledgement") { if case .acknowledged(600) = $0 { true } else { false } }
      // What is left of the process runs without a disk.
      machine.kill()
      let backlog = BacklogStreamer(try open(), configuration: configuration, session: session)
      let sent = try EventLog<BacklogStreamer.Event>()
      backlog.start { sent.append($0) }
      try sent.first("the end of the backlog", where: Self.isEnd)
      #expect(Self.counts(sent.all) == (1, 1, 0))
      withExtendedLifetime(streamer) {}
    }
    // What is left of the process may also ask when its upload is completed over another connection.
    let heads = peer.of("HEAD").map(\.target)
    #expect(!heads.isEmpty && heads.allSatisfy { $0 == "/uploads/0" }, "\(heads)")
    #expect(peer.uploads.count == 1 && peer.upload(0).isComplete && peer.upload(0).matches(pattern, count: 600))
  }

  /// Leaves a stretch of 1,000 bytes that omits 5,000 bytes of its stream at position 600.
  private func leavePaused(for origin: String, _ change: (inout StretchResumption) -> Void) throws {
    let folder = try SpoolFolder(directory: directory.path, stream: "cam")
    let description = StretchDescription(url: "\(origin)/x.bin", streamID: "s0")
    var resumption = StretchResumption()
    change(&resumption)
    let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
    try patternBytes(pattern, 0, 1000).withUnsafeBytes { try file.append($0, at: 0, time: 1) }
    try file.commit(
      state: resumption.text, pausedByteCount: 0, pauses: [SpoolPause(position: 600, length: 5_000)],
      isFinished: false, sync: true)
  }

  @Test("a stretch that a plain server has stored beyond a pause continues there")
  func beyondPause() throws {
    let stored = try EventLog<(start: UInt64, body: [UInt8])>()
    let peer = try plainServer(stored)
    try leavePaused(for: peer.url) { $0.acknowledged = 5_800 }
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
    var upload = try interruptedUpload(peer, 600..<800)
    // Its first byte is position 600 in the stretch, after 5,000 omitted bytes.
    upload.base = 5_600
    try leavePaused(for: peer.url) { $0.upload = upload }
    try withSession { session throws in
      let events = try send(session)
      #expect(Self.counts(events) == (1, 1, 0) && Self.gaps(events).isEmpty)
    }
    #expect(peer.uploads.count == 1 && peer.upload(0).isComplete && peer.upload(0).matches(pattern, from: 600))
    #expect(peer.upload(0).bytes.count == 400)
  }
}
