// One network loop of a load test, with its share of the streams and its own figures. Loops do not wait for each other.

internal import EventLoops
internal import Glibc
internal import LoadReports
internal import UploadClient

/// The events of one second of one loop.
struct LoopSecond: Sendable {
  /// Its number, from 1. The last one has the number of the second in progress.
  var number: Int64
  var interval: LoadInterval
  var totals: LoadTotals
}

/// The interface of a loop to each of its streams. All calls are made on the loop's thread.
protocol PacedStream: AnyObject {
  func begin()
  /// The run is over. Nothing more becomes due, but messages that are due should still be acknowledged.
  func quiet()
  /// Ends at once, whatever is under way.
  ///
  /// - Parameter isDue: whether the time for pending messages is over. A stream that has not acknowledged them by now
  ///   has failed, unless it is slow on purpose.
  func stop(isDue: Bool)
  /// Whether the server has acknowledged everything that it could.
  var isAcknowledged: Bool { get }
  func finish()
  /// Ends a stream whose last bytes are only acknowledged on request.
  func finishUnacknowledged()
}

/// Owned by its session's thread after `init`; unchecked for that reason.
final class LoadLoop: @unchecked Sendable {
  let plan: LoadRunPlan
  let session: UploadSession
  var eventLoop: EventLoop { session.loop }
  var figures = LoopFigures()

  private(set) var streams: [ObjectIdentifier: any PacedStream] = [:]
  /// Streams that need not wait for anything.
  private var finishing: [any PacedStream] = []
  private var finishTimer: EventLoop.Timer?
  /// Places whose stream has not begun yet.
  private var waiting: [Int: (timer: EventLoop.Timer, place: LoadPlace)] = [:]
  /// In an open model, the number of requests that have begun or are about to begin, over all streams.
  private var requestCount = 0
  private var isQuiet = false
  private var isEnding = false
  private var isCapped = false
  private var second: Int64 = 1
  private var processorTime: Int64 = 0
  private let report: @Sendable (LoopSecond) -> Void
  private let idle: @Sendable () -> Void

  /// - Parameters:
  ///   - report: called every second, on the loop's thread.
  ///   - idle: called once, when all streams are over after ``quiet()`` or ``stop()``.
  init(
    _ plan: LoadRunPlan, report: @escaping @Sendable (LoopSecond) -> Void, idle: @escaping @Sendable () -> Void
  ) throws(SystemError) {
    self.plan = plan
    self.report = report
    self.idle = idle
    session = try UploadSession(
      connections: plan.configuration.sharesConnections
        ? .shared(maximumUploads: plan.configuration.streamsPerConnection) : .onePerUpload, lanes: plan.laneCount)
  }

  // MARK: On the loop's thread

  func begin(_ indices: [Int]) {
    processorTime = Self.threadProcessorTime()
    for index in indices { begin(LoadPlace(index: index), from: 0) }
    tick()
  }

  /// Begins a stream in its place at this time, or when the plan has more live streams.
  private func begin(_ place: LoadPlace, from time: Int64) {
    // Skip a stream without enough time for a single message.
    guard !isQuiet, let life = plan.ramp.life(of: place.index, from: time), life.lowerBound < plan.duration else {
      return endOutage(place.outage)
    }
    let (start, end) = (life.lowerBound, min(life.upperBound, plan.duration))
    let timer = eventLoop.schedule(at: plan.clock.instant(start)) { [unowned self] in
      waiting[place.index] = nil
      let stream: any PacedStream =
        plan.configuration.sendsRequestPerMessage
        ? MessageStream(place, on: self, life: start..<end) : LoadStream(place, on: self, life: start..<end)
      streams[ObjectIdentifier(stream)] = stream
      stream.begin()
      if end < plan.duration { endLater(stream, at: end) }
    }
    waiting[place.index] = (timer, place)
  }

  /// No stream continues the outage.
  private func endOutage(_ outage: StreamOutage?) {
    if let outage { figures.ended(outage, now: plan.clock.now) }
  }

  /// The plan has fewer live streams from then on. Messages that are due are still acknowledged, within the time limit
  /// that also applies at the run's end.
  private func endLater(_ stream: any PacedStream, at end: Int64) {
    eventLoop.schedule(at: plan.clock.instant(end)) { [weak stream] in stream?.quiet() }
    let grace = plan.configuration.grace
    eventLoop.schedule(at: plan.clock.instant(end) + min(Self.patience, grace / 2)) { [weak stream] in
      stream?.finishUnacknowledged()
    }
    eventLoop.schedule(at: plan.clock.instant(end) + grace) { [weak stream] in stream?.stop(isDue: true) }
  }

  /// - Parameter outage: the outage in which the stream failed. The next stream in its place continues it.
  func ended(
    _ stream: any PacedStream, _ place: LoadPlace, thinkTime: Int64, _ outcome: StreamOutcome, _ outage: StreamOutage?
  ) {
    // Not at once, because the stream is on the stack.
    eventLoop.atEndOfTurn { [self] in
      streams[ObjectIdentifier(stream)] = nil
      // The place of a failed stream is filled again, but not repeatedly without a pause.
      let pause = max(thinkTime, outcome == .failed ? Self.pauseAfterFailure : 0)
      let time = plan.clock.now.addingSaturated(pause)
      // If the plan requires a time without a stream, the outage ends before that time. One that began on purpose ends
      // with its stream, because the next failure is not on purpose.
      let continues =
        !isQuiet && outage?.cause != nil && thinkTime <= Self.pauseAfterFailure
        && plan.ramp.hasLife(of: place.index, at: time)
      if !continues { endOutage(outage) }
      if !isQuiet {
        let next = LoadPlace(
          index: place.index, generation: place.generation + 1, outage: continues ? outage : nil)
        begin(next, from: time)
      }
      tellIfIdle()
    }
  }

  /// In an open model: whether another request may begin. It then counts until ``requestEnded()``.
  func mayBeginRequest() -> Bool {
    guard requestCount < plan.underWayPerLoop else { return false }
    requestCount += 1
    return true
  }

  func requestEnded() { requestCount -= 1 }

  /// How long after the run's end a server may take to acknowledge what it has, without being asked.
  private static let patience = Duration.seconds(1)
  private static let pauseAfterFailure: Int64 = 1_000_000_000

  /// Ends a stream without pending acknowledgements soon. Ten thousand ends at once would delay the acknowledgements of
  /// streams that still wait.
  func finish(_ stream: any PacedStream) {
    finishing.append(stream)
    if finishTimer == nil { finishSome() }
  }

  private func finishSome() {
    let some = finishing.prefix(max(Self.finishesAtOnce, finishing.count / 200))
    guard !some.isEmpty else { return }
    finishing.removeFirst(some.count)
    // Even if none is left, because later ones must come after the pause.
    finishTimer = eventLoop.schedule(after: Self.finishPause) { [unowned self] in
      finishTimer = nil
      finishSome()
    }
    for stream in some { stream.finish() }
  }

  /// 2,500 per second. More if a loop has more than 5,000 streams, because their ends would exceed the time limit.
  private static let finishesAtOnce = 25
  private static let finishPause = Duration.milliseconds(10)

  /// The run's time is over. Messages that are due are still sent and acknowledged, and then the streams end.
  ///
  /// At the end of the turn: a loop that is late must first serve the timers of streams that should have begun before.
  func quiet() {
    eventLoop.atEndOfTurn { [self] in
      beQuiet()
      for stream in streams.values { stream.quiet() }
      tellIfIdle()
    }
    eventLoop.schedule(after: min(Self.patience, plan.configuration.grace / 2)) { [self] in
      for stream in streams.values { stream.finishUnacknowledged() }
    }
  }

  /// The time for acknowledgements is over. Streams that wait for one fail.
  func giveUpUnacknowledged() { for stream in streams.values where !stream.isAcknowledged { stream.stop(isDue: true) } }

  /// All streams end at once.
  ///
  /// - Parameter isDue: whether the time is over, as opposed to a request to stop.
  func stop(isDue: Bool) {
    beQuiet()
    for stream in streams.values { stream.stop(isDue: isDue) }
    tellIfIdle()
  }

  /// A cap takes effect for this loop at once. Until the coordinator has notified all loops, a fast server would accept
  /// further megabytes.
  func capReached() {
    guard !isCapped else { return }
    isCapped = true
    // Not at once, because a stream is on the stack.
    eventLoop.atEndOfTurn { [self] in stop(isDue: false) }
  }

  /// The server of a request does not support HTTP/2. This ends the run, unless HTTP/2 has worked for others.
  func http2NotSupported(_ reason: String) {
    if figures.totals.bytes.acknowledged == 0 { plan.end(.failed(reason)) }
  }

  private func beQuiet() {
    if !isQuiet { figures.runEnded() }
    isQuiet = true
    for (timer, place) in waiting.values {
      eventLoop.cancel(timer)
      endOutage(place.outage)
    }
    waiting = [:]
  }

  private func tellIfIdle() {
    guard isQuiet, streams.isEmpty, !isEnding else { return }
    finishing = []
    if let finishTimer { eventLoop.cancel(finishTimer) }
    finishTimer = nil
    isEnding = true
    figures.ended(now: plan.clock.now)
    reportSecond()
    idle()
  }

  // MARK: Seconds

  private func tick() {
    guard !isEnding else { return }
    // By the schedule: a process that was stopped reports each second that it has missed.
    while second * 1_000_000_000 <= plan.clock.now {
      reportSecond()
      second += 1
    }
    eventLoop.schedule(at: plan.clock.instant(second * 1_000_000_000)) { [unowned self] in tick() }
  }

  private func reportSecond() {
    var interval = figures.takeInterval()
    let now = Self.threadProcessorTime()
    interval.processorTime = now - processorTime
    processorTime = now
    report(LoopSecond(number: second, interval: interval, totals: figures.totals))
  }

  private static func threadProcessorTime() -> Int64 {
    var time = timespec()
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
    return Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec)
  }
}
