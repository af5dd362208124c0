// A live stream of the real client whose bytes follow from its number.

package import EventLoops
internal import Glibc
internal import LiveStreaming
internal import NetworkTesting
package import PropertyTesting
package import UploadClient

/// Bytes at a fixed pace, until it is stopped. On its stream's loop only, and unchecked for that reason.
private final class PacedBytes: RepeatableSource, @unchecked Sendable {
  private let bytes: OffsetPattern
  private let interval: Duration
  private let size: ClosedRange<Int>
  private var random: SplitMix64
  private var timer: EventLoop.Timer?
  private var loop: EventLoop?
  private var arrived: () -> Void = {}
  private(set) var head: UInt64 = 0
  private(set) var isFinished = false

  init(_ bytes: OffsetPattern, every interval: Duration, size: ClosedRange<Int>, seed: UInt64) {
    (self.bytes, self.interval, self.size) = (bytes, interval, size)
    random = SplitMix64(state: seed)
  }

  func start(on loop: EventLoop, arrived: @escaping () -> Void) {
    (self.loop, self.arrived) = (loop, arrived)
    // Staggered, so that the streams do not all send at the same time.
    let first = Duration.nanoseconds(Int64.random(in: 0...interval.nanoseconds, using: &random))
    timer = loop.schedule(after: first) { [unowned self] in beat() }
  }

  func stop() {
    if let timer { loop?.cancel(timer) }
    timer = nil
    guard !isFinished else { return }
    isFinished = true
    arrived()
  }

  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
    let count = min(maximum, Int(head - offset), 16 << 10)
    let piece = [UInt8](unsafeUninitializedCapacity: count) { buffer, filled in
      bytes.fill(UnsafeMutableRawBufferPointer(buffer), at: offset)
      filled = count
    }
    return body(piece.span.bytes)
  }

  private func beat() {
    head += UInt64(Int.random(in: size, using: &random))
    timer = loop?.schedule(after: interval) { [unowned self] in beat() }
    arrived()
  }
}

/// Wakes threads that wait for an event of any stream.
package final class StreamNews: Sendable {
  fileprivate let counter: EventCounter

  package init() throws(SystemError) { counter = try EventCounter() }

  /// Waits until `condition` holds. Returns false if that takes longer.
  func wait(within limit: Duration, _ condition: () -> Bool) -> Bool {
    let deadline = MonotonicInstant.now + limit
    while !condition() {
      let rest = deadline - .now
      guard rest.nanoseconds > 0, waitUntilReadable(counter.descriptor, limit: rest) else { return condition() }
      counter.drain()
    }
    return true
  }
}

/// One stream of a cluster run.
package final class ClusterStream: Sendable {
  /// The pace of a run's streams.
  package struct Pace: Sendable {
    package var interval = Duration.seconds(1)
    /// The number of bytes written at once.
    package var size = 200...1800
    /// When one append ends and the next begins.
    package var rollOver = Duration.seconds(5)
    package init() {}
  }

  fileprivate struct State {
    var acknowledged: UInt64 = 0
    var acknowledgedAt = MonotonicInstant.now
    var awaitedSince: MonotonicInstant?
    /// How long each awaited acknowledgement took.
    var delay: Duration?
    var outageCount = 0
    /// When it last lost its connection.
    var droppedAt: MonotonicInstant?
    var parts = 0
    var problems: [String] = []
    var summary: StreamSummary?
  }

  package let id: String
  package let pattern: OffsetPattern
  private let streamer: LiveStreamer
  private let state = Lock(State())
  private let changed: StreamNews

  /// Begins at once.
  ///
  /// - Parameter changed: signalled after each event that a thread may wait for.
  package init(
    _ number: Int, seed: UInt64, to address: String, _ pace: Pace, _ session: UploadSession, _ changed: StreamNews
  ) {
    id = "stream-\(number)"
    pattern = OffsetPattern(seed: seed &+ UInt64(number))
    self.changed = changed
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://\(address)/stream-\(number).bin"))
    configuration.streamID = id
    configuration.resumable = .always
    configuration.rollOver.after = pace.rollOver
    configuration.retry.maximumCeiling = .seconds(1)
    configuration.request.limits.response = .seconds(10)
    configuration.request.limits.unacknowledged = .seconds(10)
    configuration.request.limits.connect = .seconds(5)
    let source = PacedBytes(pattern, every: pace.interval, size: pace.size, seed: seed &+ UInt64(number))
    streamer = LiveStreamer(source, configuration: configuration, session: session)
    streamer.start { [weak self] event in self?.handle(event) }
  }

  private func handle(_ event: LiveStreamEvent) {
    let isNews = state.withLock { $0.handle(event) }
    if isNews { changed.counter.signal() }
  }

  /// Stops the source, sends the rest, and completes the upload.
  package func finish() { streamer.finish() }

  package var isEnded: Bool { state.withLock { $0.summary != nil } }
  package var outageCount: Int { state.withLock { $0.outageCount } }
  /// The number of uploads of the stream.
  package var parts: Int { state.withLock { $0.parts } }
  /// Events that a stream must never report: losses, and servers that went back.
  package var problems: [String] { state.withLock { $0.problems } }
  /// The length of the stream, after its end.
  package var length: UInt64 { state.withLock { $0.summary?.progress.captured ?? 0 } }

  /// From here on, measures the time until the next acknowledgement.
  package func awaitAcknowledgement(since start: MonotonicInstant) {
    state.withLock { state in
      (state.awaitedSince, state.delay) = (start, nil)
      if state.acknowledgedAt > start { state.delay = state.acknowledgedAt - start }
    }
  }

  /// How long the awaited acknowledgement took; nil if it has not arrived.
  package var delay: Duration? { state.withLock { $0.delay } }
  /// Whether it has lost its connection since that time.
  package func wasDropped(since start: MonotonicInstant) -> Bool {
    state.withLock { state in state.droppedAt.map { $0 > start } ?? false }
  }
}

extension ClusterStream.State {
  /// Returns whether a thread may wait for that.
  fileprivate mutating func handle(_ event: LiveStreamEvent) -> Bool {
    switch event {
    case .acknowledged(let offset):
      guard offset > acknowledged else { return false }
      (acknowledged, acknowledgedAt) = (offset, .now)
      guard let awaitedSince, delay == nil else { return false }
      delay = acknowledgedAt - awaitedSince
    case .outage:
      outageCount += 1
      droppedAt = .now
    case .gap, .missingAtServer, .upload(.serverWentBack), .upload(.impossibleOffset), .upload(.digestMismatch),
      .upload(.notSupported):
      problems.append("\(event)")
    case .upload(.created): parts += 1
    case .upload(.newPart(_, _, let reason)): problems.append("a new upload: \(reason)")
    case .ended(let summary):
      if let error = summary.error { problems.append("\(error)") }
      self.summary = summary
    default: return false
    }
    return true
  }
}
