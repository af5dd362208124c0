// A line with the time once per second: the smallest endless stream.

internal import EventLoops
internal import Glibc
public import StreamBuffers

/// Writes a line with a timestamp at a fixed interval, like Apple's article "Uploading streams of data".
///
/// The schedule is monotonic and does not drift: heartbeat *n* is due at start + *n* × interval. Heartbeats that could
/// not be made in time, because the process did not run or the machine slept, are omitted and reported. The source uses
/// the stream's loop, with one wake-up per heartbeat and no thread.
public final class HeartbeatSource: StreamSource, @unchecked Sendable {
  /// `*** 2026-11-20 17:22:19 +0000`, like the description of Foundation's `Date`.
  public static let defaultFormat = "*** %F %T %z"

  private let interval: Duration
  private let format: String
  private let clock: @Sendable () -> MonotonicInstant
  // Owned by the loop's thread, and unchecked for that reason.
  private var producer: CircularBuffer.Producer?
  private var context: SourceContext?
  private var timer: EventLoop.Timer?
  /// On ``clock``.
  private var nextBeat = MonotonicInstant(nanoseconds: 0)

  /// Creates a source that writes the time at intervals.
  ///
  /// - Parameters:
  ///   - interval: at least a millisecond.
  ///   - format: a format for strftime(3), in UTC. The line end `\r\n` is added. The stream ends with an error if
  ///     ``lineByteCount(format:)`` is nil for the format.
  public convenience init(interval: Duration = .seconds(1), format: String = defaultFormat) {
    // The loop's clock stops while the machine sleeps.
    self.init(interval: interval, format: format, clock: { .sinceBoot })
  }

  /// - Parameter clock: the time of the schedule.
  init(interval: Duration, format: String = defaultFormat, clock: @escaping @Sendable () -> MonotonicInstant) {
    self.interval = max(interval, .milliseconds(1))
    self.format = format
    self.clock = clock
  }

  /// Writes the first line, and schedules the next.
  public func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) {
    self.producer = consume producer
    self.context = context
    nextBeat = clock()
    beat()
  }

  /// Writes no more lines.
  public func stop() {
    if let timer { context?.loop.cancel(timer) }
    timer = nil
    producer?.finish()
    producer = nil
  }

  private func beat() {
    guard let context, producer != nil else { return }
    guard let line = Self.line(format: format, time: time(nil)) else {
      context.fail(LiveStreamError(.source, "the time format \(format.debugDescription) produces no line"))
      return stop()
    }
    let offset = producer?.head ?? 0
    if !write(line) {
      if context.overflow == .stop {
        context.fail(
          LiveStreamError(
            .overflow, "the buffer is full. Choose a larger buffer or another overflow policy", remedy: .largerBuffer))
        return stop()
      }
      context.report(
        SourceEvent(
          kind: "full", description: "the buffer is full: a heartbeat was omitted", offset: offset, lost: 1,
          unit: .beats))
    }
    scheduleNext(context, offset)
  }

  /// Writes a complete line or nothing. A partial line would run into the next one.
  private func write(_ line: String) -> Bool {
    let count = line.utf8.count
    let result = producer?.write(minimum: count, maximum: count) { free in
      let bytes = line.utf8.span.bytes
      return bytes.withUnsafeBytes { bytes in
        free.withUnsafeMutableBytes { $0.copyMemory(from: bytes) }
        return count
      }
    }
    return result == .written(count)
  }

  private func scheduleNext(_ context: SourceContext, _ offset: UInt64) {
    nextBeat = nextBeat + interval
    let now = clock()
    let late = now.nanoseconds(since: nextBeat)
    if late >= interval.nanoseconds {
      let missed = late / interval.nanoseconds
      nextBeat.nanoseconds += missed * interval.nanoseconds
      context.report(
        SourceEvent(
          kind: "late", description: "\(missed) heartbeats omitted: the process did not run, or the machine slept",
          offset: offset, skipped: UInt64(missed), unit: .beats))
    }
    timer = context.loop.schedule(after: nextBeat - now) { [unowned self] in beat() }
  }

  /// The maximum length of a line's text, in bytes.
  public static let lineLimit = 511

  /// The approximate length of one line in bytes, to turn a time into a buffer size. Nil for a format that produces no
  /// text, or more than ``lineLimit`` bytes.
  public static func lineByteCount(format: String) -> Int? {
    line(format: format, time: time(nil), limit: lineLimit)?.utf8.count
  }

  /// A line for a time in seconds since 1970. Nil if there is no text, or too much.
  ///
  /// - Parameter limit: the limit of the text. The default leaves room for names that are longer than at the time of
  ///   the check of the format.
  static func line(format: String, time: Int, limit: Int = 4 * lineLimit) -> String? {
    var seconds = time
    var parts = tm()
    gmtime_r(&seconds, &parts)
    let text = withUnsafeTemporaryAllocation(of: CChar.self, capacity: limit + 1) { bytes -> String? in
      // 0 if the text is empty or does not fit.
      let count = strftime(bytes.baseAddress, bytes.count, format, &parts)
      guard count > 0 else { return nil }
      return String(decoding: bytes.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
    return text.map { $0 + "\r\n" }
  }
}
