// The source of a stream in a load test. Its bytes exist from the moment at which they are due, regardless of readers.

internal import EventLoops
internal import LiveStreaming
internal import LoadReports

/// What a source tells its stream. All on the loop's thread.
protocol PacedSourceObserver: AnyObject {
  /// A message has become due; `now` tells how late the loop came to it.
  func became(due message: StreamSchedule.Message, at due: Int64, now: Int64)
  /// The engine has taken everything before this stream offset for the first time.
  func handedOver(before offset: UInt64, now: Int64)
  /// There was no space for what was due, for so many nanoseconds.
  func stalled(for time: Int64)
}

/// Owned by its loop's thread; unchecked for that reason.
final class PacedSource: RepeatableSource, @unchecked Sendable {
  private var timer: EventLoop.Timer?
  private var next: StreamSchedule.Message?
  private(set) var isFinished = false
  /// No message becomes due any more.
  private(set) var isQuiet = false
  private let isPaced: Bool
  /// Stream offset one past the newest byte that is due.
  private var dueHead: UInt64 = 0
  /// One past what was ever read.
  private var readHead: UInt64 = 0
  private var stallBegan: Int64?
  /// Bytes a second that a slow stream's line takes; nil for one that is not slow.
  private let slowRate: UInt64?
  private let clock: RunClock
  /// When the stream begins, on the run's clock.
  private let start: Int64
  /// When the run ends, on the same clock: nothing becomes due from there on.
  private let end: Int64
  /// When the stream's own length is over; never for one that lasts as long as the run.
  private let ownEnd: Int64
  private var loop: EventLoop?
  private var arrived: () -> Void = {}
  /// What each timer does: made once, and not for each message.
  private lazy var beatWork: () -> Void = { [unowned self] in beat() }
  /// Until the stream is over.
  var observer: (any PacedSourceObserver)?
  private let stream: Int
  private let bytes: BodyBytes
  // Last: it is larger than all the others, which each message needs and finds side by side.
  private var schedule: StreamSchedule

  init(
    _ profile: LoadProfile, _ schedule: StreamSchedule, bytes: BodyBytes, stream: Int, start: Int64,
    end: Int64, clock: RunClock
  ) {
    self.schedule = schedule
    self.bytes = bytes
    self.stream = stream
    self.start = start
    self.end = end
    ownEnd = schedule.length.map { start.addingSaturated($0) } ?? .max
    self.clock = clock
    isPaced = schedule.isPaced
    slowRate = schedule.isSlow ? profile.faults.slowRate : nil
  }

  // MARK: RepeatableSource

  func start(on loop: EventLoop, arrived: @escaping () -> Void) {
    self.loop = loop
    self.arrived = arrived
    next = schedule.next()
    if isPaced { return beat() }
    makeUnpaced()
    if ownEnd < end { timer = loop.schedule(at: clock.instant(ownEnd)) { [unowned self] in endUnpaced() } }
  }

  func stop() {
    quiet()
    endTimer()
    guard !isFinished else { return }
    isFinished = true
    arrived()
  }

  var head: UInt64 {
    guard let slowRate else { return dueHead }
    // The line takes as much as its rate has allowed since the stream's start; nothing is left of it when the stream is
    // to end.
    let allowed = Double(clock.now - start) / 1e9 * Double(slowRate)
    return isFinished ? dueHead : max(readHead, min(dueHead, UInt64(max(0, allowed))))
  }

  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
    let taken = bytes.read(stream: stream, at: offset, maximum: maximum, body)
    self.taken(before: offset + UInt64(taken))
    return taken
  }

  /// What is due before this stream offset has found its space.
  func taken(before end: UInt64) {
    guard end > readHead else { return }
    readHead = end
    let now = clock.now
    observer?.handedOver(before: end, now: now)
    if let began = stallBegan, readHead == dueHead {
      stallBegan = nil
      observer?.stalled(for: now - began)
    }
    if !isPaced, readHead == dueHead { makeUnpaced() }
  }

  // MARK: Time

  /// No more messages: what is due stays due. A loop that comes late to the run's end leaves none out.
  func quiet() {
    let isBehind = isPaced && !isQuiet && takeDue(at: clock.now)
    isQuiet = true
    next = nil
    // A slow line has still to take what is due.
    if slowRate == nil { endTimer() }
    if isBehind { tellArrived() }
  }

  private func endTimer() {
    if let timer { loop?.cancel(timer) }
    timer = nil
  }

  /// As fast as they are taken: the next message is due when the one before has been.
  private func makeUnpaced() {
    guard !isQuiet, let message = next else { return }
    next = schedule.next()
    let now = clock.now
    dueHead += UInt64(message.byteCount)
    observer?.became(due: message, at: now, now: now)
  }

  private func endUnpaced() {
    timer = nil
    next = nil
    isFinished = true
    arrived()
  }

  private func beat() {
    timer = nil
    let now = clock.now
    let hasMore = takeDue(at: now)
    schedule(after: now)
    if hasMore || isFinished || slowRate != nil { tellArrived() }
  }

  /// Makes due what is due by now, and tells whether that was anything.
  private func takeDue(at now: Int64) -> Bool {
    let before = dueHead
    while let message = next, start + message.due <= now, start + message.due < end {
      dueHead += UInt64(message.byteCount)
      observer?.became(due: message, at: start + message.due, now: now)
      next = schedule.next()
    }
    return dueHead > before
  }

  private func tellArrived() {
    arrived()
    // A stream that has no connection waits for that, not for space: its observer knows.
    if readHead < dueHead, stallBegan == nil { stallBegan = clock.now }
  }

  private func schedule(after now: Int64) {
    // A stream lasts on in silence when the last of its messages was due.
    var time = next.map { start + $0.due } ?? ownEnd
    let isOver = next == nil && ownEnd <= now
    // Past the run's end there is nothing to wait for: there its owner waits for acknowledgements.
    if isOver || time >= end { time = .max }
    // A slow line has taken something more by then.
    if slowRate != nil, readHead < dueHead { time = min(time, now + Self.slowStep) }
    guard time < .max else {
      if isOver, !isQuiet { isFinished = true }
      return
    }
    timer = loop?.schedule(at: clock.instant(time), beatWork)
  }

  /// How often a slow line takes something, in nanoseconds.
  private static let slowStep: Int64 = 100_000_000

  /// How long it takes from this stream's end until another one begins in its place.
  var thinkTime: Int64 { schedule.thinkTime }

  /// The stall under way is none: there is no connection.
  func forgetStall() { stallBegan = nil }
}

/// The run's clock: nanoseconds since its start.
struct RunClock: Sendable {
  let origin: MonotonicInstant
  var now: Int64 { MonotonicInstant.now.nanoseconds(since: origin) }
  func instant(_ time: Int64) -> MonotonicInstant { MonotonicInstant(nanoseconds: origin.nanoseconds + time) }
}
