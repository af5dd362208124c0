// The source of a stream in a load test. Its bytes exist from their due time on, whether or not they are read.

internal import EventLoops
internal import LiveStreaming
internal import LoadReports

/// Receives a source's events. All calls are made on the loop's thread.
protocol PacedSourceObserver: AnyObject {
  /// A message has become due. The difference to `now` is the loop's delay.
  func became(due message: StreamSchedule.Message, at due: Int64, now: Int64)
  /// The engine has taken everything before this stream offset for the first time.
  func handedOver(before offset: UInt64, now: Int64)
  /// There was no space for due messages for this number of nanoseconds.
  func stalled(for time: Int64)
}

/// Owned by its loop's thread; unchecked for that reason.
final class PacedSource: RepeatableSource, @unchecked Sendable {
  private var timer: EventLoop.Timer?
  private var next: StreamSchedule.Message?
  private(set) var isFinished = false
  /// Whether no further message becomes due.
  private(set) var isQuiet = false
  private let isPaced: Bool
  /// Stream offset after the newest due byte.
  private var dueHead: UInt64 = 0
  /// The offset after the last byte that was ever read.
  private var readHead: UInt64 = 0
  private var stallBegan: Int64?
  /// Whether due bytes that are not read wait for the server. They do not while there is no connection, or while the
  /// generator itself does not send. Bytes of a slow stream wait for its own line.
  var waitsForServer = false {
    didSet { if !waitsForServer { endStall() } }
  }
  /// The rate of a slow stream's line, in bytes per second; nil for a stream that is not slow.
  private let slowRate: UInt64?
  private let clock: RunClock
  /// The start of the stream, on the run's clock.
  private let start: Int64
  /// The end of the run, on the same clock. Nothing becomes due after it.
  private let end: Int64
  /// The end of the stream's own length. Never reached for one that lasts as long as the run.
  private let ownEnd: Int64
  private var loop: EventLoop?
  private var arrived: () -> Void = {}
  /// The work of each timer, created once instead of for each message.
  private lazy var beatWork: () -> Void = { [unowned self] in beat() }
  /// Nil once the stream is over.
  var observer: (any PacedSourceObserver)?
  private let stream: Int
  private let bytes: BodyBytes
  // Last, because it is larger than the others, which each message needs and finds in adjacent memory.
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
    // The line takes as much as its rate has allowed since the stream's start. When the stream is to end, none of it is
    // left.
    let allowed = Double(clock.now - start) / 1e9 * Double(slowRate)
    return isFinished ? dueHead : max(readHead, min(dueHead, UInt64(max(0, allowed))))
  }

  func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> Int {
    let taken = bytes.read(stream: stream, at: offset, maximum: maximum, body)
    self.taken(before: offset + UInt64(taken))
    return taken
  }

  /// Everything due before this stream offset has found space.
  func taken(before end: UInt64) {
    guard end > readHead else { return }
    readHead = end
    let now = clock.now
    observer?.handedOver(before: end, now: now)
    if readHead == dueHead { endStall(now) }
    if !isPaced, readHead == dueHead { makeUnpaced() }
  }

  // MARK: Time

  /// No further messages become due. Messages that are due remain due, even if the loop reaches the run's end late.
  func quiet() {
    let isBehind = isPaced && !isQuiet && takeDue(at: clock.now)
    isQuiet = true
    next = nil
    // A slow line still has to take what is due.
    if slowRate == nil { endTimer() }
    if isBehind { tellArrived() }
  }

  private func endTimer() {
    if let timer { loop?.cancel(timer) }
    timer = nil
  }

  /// At maximum speed: the next message is due when the previous one was taken.
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

  /// Makes due all messages whose time has come. Returns whether there were any.
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
    if readHead < dueHead, stallBegan == nil, waitsForServer, slowRate == nil { stallBegan = clock.now }
  }

  private func schedule(after now: Int64) {
    // After its last message was due, a stream continues in silence.
    var time = next.map { start + $0.due } ?? ownEnd
    let isOver = next == nil && ownEnd <= now
    // After the run's end there is nothing to wait for here, because the owner waits for acknowledgements.
    if isOver || time >= end { time = .max }
    // A slow line will have taken more by then.
    if slowRate != nil, readHead < dueHead { time = min(time, now + Self.slowStep) }
    guard time < .max else {
      if isOver, !isQuiet { isFinished = true }
      return
    }
    timer = loop?.schedule(at: clock.instant(time), beatWork)
  }

  /// The interval at which a slow line takes bytes, in nanoseconds.
  private static let slowStep: Int64 = 100_000_000

  /// The pause between this stream's end and the next stream in its place.
  var thinkTime: Int64 { schedule.thinkTime }

  /// The bytes have found space, or wait for something else from now on.
  private func endStall(_ now: Int64? = nil) {
    guard let began = stallBegan else { return }
    stallBegan = nil
    observer?.stalled(for: (now ?? clock.now) - began)
  }
}

/// The run's clock: nanoseconds since its start.
struct RunClock: Sendable {
  let origin: MonotonicInstant
  var now: Int64 { MonotonicInstant.now.nanoseconds(since: origin) }
  func instant(_ time: Int64) -> MonotonicInstant { MonotonicInstant(nanoseconds: origin.nanoseconds + time) }
}
