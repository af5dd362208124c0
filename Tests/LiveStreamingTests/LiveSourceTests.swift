// The source of a stream: its buffer, its start and its end.

import EventLoops
import NetworkTesting
import ResumableUploads
import Spool
import SpooledStreams
import StreamBuffers
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The source of a stream")
struct LiveSourceTests {
  /// A source that only counts its calls. Used on one thread; unchecked for that reason.
  private class IdleSource: StreamSource, @unchecked Sendable {
    let header: [UInt8] = [1, 2, 3]
    let frameLength = 4
    let bytesPerSecond: Int? = 88
    private(set) var starts = 0
    private(set) var stops = 0
    private var producer: CircularBuffer.Producer?

    func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) {
      starts += 1
      self.producer = consume producer
    }

    /// It does not end at once.
    func stop() { stops += 1 }

    func write(_ count: Int) {
      let bytes = [UInt8](repeating: 1, count: count)
      let result = producer?.write(copying: bytes.span.bytes)
      #expect(result == .written(count))
    }
  }

  /// One that the stream's loop may read.
  private final class DemandedSource: IdleSource, OnDemandSource, @unchecked Sendable {
    var arrived: (() -> Void)?
    let isReadOnDemand = true
    func fetch() -> Bool { false }
  }

  private final class Repeated: RepeatableSource, @unchecked Sendable {
    private(set) var calls: [String] = []
    let head: UInt64 = 50
    let isFinished = false
    func start(on loop: EventLoop, arrived: @escaping () -> Void) { calls.append("start") }
    func stop() { calls.append("stop") }
    func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int { 0 }
  }

  private static func configuration(_ url: String = "http://host/x") -> LiveStreamConfiguration {
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: url))
    (configuration.buffer, configuration.retention, configuration.memory) = (.bytes(102_400), 40_960, .kept)
    configuration.resumable = .never
    return configuration
  }

  private static func context(_ loop: EventLoop) -> SourceContext {
    SourceContext(loop: loop, overflow: .wait, report: { _ in }, fail: { _ in })
  }

  // MARK: The buffer

  @Test("the buffer also has room for what a plain server may request again, and for what libcurl may retain")
  func capacity() throws {
    for use in LiveStreamConfiguration.ResumableUse.allCases {
      for url in ["http://host/x", "https://host/x"] {
        var configuration = Self.configuration(url)
        configuration.resumable = use
        let held = url.hasPrefix("https") ? configuration.request.mostHeldByteCount : 0
        let wanted = use == .always ? 102_400 : 102_400 + 40_960 + held
        // In whole pages.
        let live = try LiveSource(IdleSource(), configuration)
        #expect(live.writer.capacity == (wanted + 4095) / 4096 * 4096, "\(use) \(url)")
      }
    }
  }

  @Test("after a loss, there is room for two seconds of the source, or for 1 MiB if its rate is unknown")
  func headroom() throws {
    for (buffer, expected) in [
      (.bytes(9 << 20), 1 << 20), (.time(.seconds(100), bytesPerSecond: 1000), 2000),
    ] as [(CircularBuffer.Capacity, UInt64)] {
      var configuration = Self.configuration()
      (configuration.buffer, configuration.retention) = (buffer, 0)
      let (loop, source) = (try EventLoop(), try PushedSource())
      let live = try LiveSource(source, configuration)
      try live.start(on: loop, context: Self.context(loop), dataArrived: {})
      let count = try source.push([UInt8](repeating: 1, count: live.writer.capacity))
      #expect(count == live.writer.capacity && live.writer.supply.restart == expected)
      live.stop(on: loop)
    }
  }

  @Test("a stream of plain requests computes no digest, because no server sends one to compare it with")
  func digest() throws {
    for use in LiveStreamConfiguration.ResumableUse.allCases {
      var configuration = Self.configuration()
      (configuration.resumable, configuration.digest) = (use, .sha256)
      let live = try LiveSource(IdleSource(), configuration)
      let hasDigest = live.writer.digest(since: 0) != nil
      #expect(hasDigest == (use != .never), "\(use)")
    }
  }

  // MARK: Start and end

  @Test(
    "the arrival of bytes is reported from the start to the end, and the source starts once", arguments: [true, false])
  func watch(_ isStopped: Bool) throws {
    let loop = try EventLoop()
    let source = IdleSource()
    let live = try LiveSource(source, Self.configuration())
    #expect(!live.isSpooled && live.spool == nil)
    #expect(live.header == [1, 2, 3] && live.bytesPerSecond == 88)
    var arrivals = 0
    for _ in 0..<2 {
      try live.start(on: loop, context: Self.context(loop), dataArrived: { arrivals += 1 })
      #expect(source.starts == 1 && source.stops == 0)
    }
    let waits = live.writer.requestWakeUp(at: 1)
    #expect(waits)
    if isStopped {
      live.stop(on: loop)
      #expect(source.stops == 1)
    }
    source.write(1)
    // One turn, with all that is ready.
    loop.stop()
    loop.run()
    #expect(arrivals == (isStopped ? 0 : 1))
    live.finish()
    #expect(source.stops == (isStopped ? 2 : 1))
  }

  @Test("the loop reads a source on demand from the start to the end, unless a spool stores its bytes")
  func onDemand() throws {
    let loop = try EventLoop()
    let source = DemandedSource()
    let live = try LiveSource(source, Self.configuration())
    var arrivals = 0
    try live.start(on: loop, context: Self.context(loop), dataArrived: { arrivals += 1 })
    source.arrived?()
    #expect(arrivals == 1)
    live.stop(on: loop)
    #expect(source.arrived == nil)

    let directory = try TemporaryDirectory()
    let spool = try StreamSpool(
      directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
    let stored = DemandedSource()
    let other = try LiveSource(stored, Self.configuration(), spool)
    try other.start(on: loop, context: Self.context(loop), dataArrived: {})
    #expect(stored.starts == 1 && stored.arrived == nil)
    #expect(!other.isSpooled && other.spool != nil && other.header == [1, 2, 3])
    other.stop(on: loop)
    try end(other)
    #expect(try SpoolFolder.stretches(in: "\(directory.path)/cam") == [])
  }

  @Test("a source that can repeat its bytes is started and stopped, and has no header")
  func repeatable() throws {
    let loop = try EventLoop()
    let source = Repeated()
    let live = LiveSource(source, Self.configuration())
    #expect(!live.isSpooled && live.header == [] && live.bytesPerSecond == nil)
    #expect(live.writer.capacity == 102_400 && live.writer.head == 50)
    try live.start(on: loop, context: Self.context(loop), dataArrived: {})
    live.finish()
    live.stop(on: loop)
    #expect(source.calls == ["start", "stop", "stop"])
  }

  @Test("the bytes of an earlier process belong to one stream, and are watched from its start to its end")
  func spooled() throws {
    let directory = try TemporaryDirectory()
    var description = StretchDescription(url: "http://host/x", streamID: "s")
    (description.header, description.frameLength, description.bytesPerSecond) = ([5, 6], 2, 1000)
    do {
      let folder = try SpoolFolder(directory: directory.path, stream: "cam")
      let file = try SpoolFile.create(in: folder, description: try #require(description.text), capacity: 1 << 20)
      try [UInt8](repeating: 1, count: 100).withUnsafeBytes { try file.append($0, at: 0, time: 1) }
      try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
    }
    let spool = try StreamSpool(
      directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
    let opened = try EventLog<SpooledBacklog>()
    spool.open(try #require(spool.backlog.first)) { if case .backlog(let backlog) = $0 { opened.append(backlog) } }
    let backlog = try opened.wait("the stretch") { $0.first }
    let live = try #require(LiveSource(backlog, Self.configuration(), spool))
    #expect(LiveSource(backlog, Self.configuration(), spool) == nil)
    #expect(live.isSpooled && live.spool != nil && live.header == [5, 6] && live.bytesPerSecond == nil)
    #expect(live.writer.head == 100 && live.writer.isFinished)
    let loop = try EventLoop()
    // Watching it twice at the same time would be an error.
    for _ in 0..<2 {
      try live.start(on: loop, context: Self.context(loop), dataArrived: {})
      live.finish()
      live.stop(on: loop)
    }
    try end(live)
    #expect(try SpoolFolder.stretches(in: "\(directory.path)/cam") == [])
  }

  /// Removes the stretch from the spool, and waits for that.
  private func end(_ live: LiveSource) throws {
    let ended = try EventLog<UInt64>()
    try #require(live.spool).end(isDelivered: true) { ended.append($0) }
    #expect(try ended.wait("the end of the stretch") { $0.first } == 0)
  }
}
