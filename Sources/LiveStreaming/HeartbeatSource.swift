// A line with the time, once a second: the smallest stream that never ends.

internal import EventLoops
internal import Glibc
public import StreamBuffers

/// Writes a timestamp line at a fixed interval, as the article "Uploading streams of data" does.
///
/// The schedule is monotonic and does not drift: beat *n* is due at start + *n* × interval. Beats that could not be
/// made in time (the process was stopped) are left out and told. Lives on the stream's loop: one wake-up a beat, no
/// thread.
public final class HeartbeatSource: StreamSource, @unchecked Sendable {
  /// `*** 2026-11-20 17:22:19 +0000`, as `Date`'s description has it.
  public static let defaultFormat = "*** %F %T %z"

  private let interval: Duration
  private let format: String
  // Owned by the loop's thread: unchecked for that reason.
  private var producer: CircularBuffer.Producer?
  private var context: SourceContext?
  private var timer: EventLoop.Timer?
  private var nextBeat = MonotonicInstant(nanoseconds: 0)

  /// - Parameters:
  ///   - interval: at least a millisecond.
  ///   - format: as strftime(3) takes it, in UTC; the line end `\r\n` is added. One for which
  ///     ``lineByteCount(format:)`` is nil ends the stream.
  public init(interval: Duration = .seconds(1), format: String = defaultFormat) {
    self.interval = max(interval, .milliseconds(1))
    self.format = format
  }

  /// Writes the first line, and schedules the next.
  public func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) {
    self.producer = consume producer
    self.context = context
    nextBeat = .now
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
      context.fail(LiveStreamError(.source, "the time format \(format.debugDescription) gives no line"))
      return stop()
    }
    let offset = producer?.head ?? 0
    if !write(line) {
      if context.overflow == .stop {
        context.fail(
          LiveStreamError(
            .overflow, "the buffer is full: make it larger, or choose another overflow policy", remedy: .largerBuffer))
        return stop()
      }
      context.report(
        SourceEvent(
          kind: "full", description: "the buffer is full: a beat was left out", offset: offset, lost: 1,
          unit: .beats))
    }
    scheduleNext(context, offset)
  }

  /// Writes a line, all of it or nothing: part of one would run into the next.
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
    let late = (MonotonicInstant.now - nextBeat).nanoseconds
    if late >= interval.nanoseconds {
      let missed = late / interval.nanoseconds
      nextBeat.nanoseconds += missed * interval.nanoseconds
      context.report(
        SourceEvent(
          kind: "late", description: "\(missed) beats left out: the process did not run", offset: offset,
          skipped: UInt64(missed), unit: .beats))
    }
    timer = context.loop.schedule(at: nextBeat) { [unowned self] in beat() }
  }

  /// The longest text of a line, in bytes.
  public static let lineLimit = 511

  /// How many bytes one line takes, about: to turn a time into a buffer size. nil for a format that gives no text, or
  /// more than ``lineLimit`` bytes of it.
  public static func lineByteCount(format: String) -> Int? {
    line(format: format, time: time(nil), limit: lineLimit)?.utf8.count
  }

  /// One line for a point in time, in seconds since 1970; nil where there is no text, or too much.
  ///
  /// - Parameter limit: of the text. By default it has room for names that are longer than those of the time at which
  ///   the format was checked.
  static func line(format: String, time: Int, limit: Int = 4 * lineLimit) -> String? {
    var seconds = time
    var parts = tm()
    gmtime_r(&seconds, &parts)
    let text = withUnsafeTemporaryAllocation(of: CChar.self, capacity: limit + 1) { bytes -> String? in
      // 0 if the text is empty, and if it does not fit.
      let count = strftime(bytes.baseAddress, bytes.count, format, &parts)
      guard count > 0 else { return nil }
      return String(decoding: bytes.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
    return text.map { $0 + "\r\n" }
  }
}
