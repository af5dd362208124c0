// One case: a real stream to a real socket, observed until its end.

import EventLoops
import LiveStreaming
import NetworkTesting
import StreamBuffers
import UploadClient

/// What the stream reported, in order.
struct CaseTrace: Sendable {
  var events: [LiveStreamEvent] = []
  var acknowledged: UInt64 = 0
  /// Whether an answer has acknowledged any bytes.
  var hasBeenAcknowledged = false
  var gaps: [Gap] = []
  /// How much was captured when each gap was reported.
  var capturedAtGap: [UInt64] = []
  var outageCount = 0
  var failures = 0
  var notSupported = false
  /// Stream offsets at which requests began.
  var starts: [UInt64] = []
  var summary: StreamSummary?
  /// Contradictions between events.
  var contradictions: [String] = []
  var captured: UInt64 = 0
  var capacity = 0
  var duration = Duration.zero
  /// The orders to the stream: to cancel, or to finish.
  var orders: [String] = []
  var isLate = false
  /// The stream offsets at which requests ended because the server was too late.
  var timedOut: Set<UInt64> {
    Set(
      events.compactMap { event in
        switch event {
        case .outage(let attempt), .attemptFailed(let attempt):
          if case .timedOut = attempt.cause { attempt.acknowledged } else { nil }
        default: nil
        }
      })
  }
}

/// Used on the session's thread from `start` on; unchecked for that reason.
final class CaseRun: @unchecked Sendable {
  /// Streams end long before this, even on a busy machine. A case that lasts longer hangs.
  private static let watchdog = Duration.seconds(420)
  /// How long a misled stream may search.
  private static let misledLimit = Duration.seconds(180)
  private static let tick = Duration.milliseconds(15)

  let plan: AnswerCase
  let server: CaseServer
  private let loop: EventLoop
  private let source: CaseSource?
  private var streamer: LiveStreamer?
  private var timer: EventLoop.Timer?
  private var trace = CaseTrace()
  private var pauses: PauseCheck
  /// How many requests had brought bytes at the last check.
  private var storedRequests = 0
  private var ticks = 0
  private var isReleased = false
  private var start = MonotonicInstant.now
  private let done: @Sendable (CaseRun, CaseTrace) -> Void

  init(
    _ plan: AnswerCase, _ session: UploadSession, _ identity: CaseIdentity, file: UploadFile?, lane: Int,
    done: @escaping @Sendable (CaseRun, CaseTrace) -> Void
  ) throws {
    self.plan = plan
    server = try CaseServer(plan, identity)
    loop = session.loop
    self.done = done
    let configuration = Self.configuration(plan, server, lane)
    pauses = PauseCheck(configuration.retry)
    if let file {
      source = nil
      streamer = LiveStreamer(file, configuration: configuration, session: session)
    } else {
      let source = CaseSource()
      self.source = source
      streamer = try LiveStreamer(source, configuration: configuration, session: session)
    }
  }

  private static func configuration(_ plan: AnswerCase, _ server: CaseServer, _ lane: Int) -> LiveStreamConfiguration {
    var request = UploadRequest(url: server.url + "/take")
    request.proxy = server.proxy
    if plan.cell.route.isSecure { request.certificateAuthorities = server.identity.authority }
    request.method = plan.method
    request.httpVersion = plan.usesHTTP2 ? .http2 : .http1
    request.limits.connect = .seconds(5)
    request.limits.response = plan.responseLimit
    request.limits.unacknowledged = .seconds(1)
    var configuration = LiveStreamConfiguration(request: request)
    configuration.lane = lane
    configuration.bearerToken = { server.token }
    configuration.buffer = .bytes(plan.bufferSize)
    configuration.memory = .kept
    configuration.overflow = plan.cell.source == .mic ? .dropOldest : .wait
    if plan.bufferSize < 65_536 { configuration.retention = 0 }
    configuration.retry.initialCeiling = .milliseconds(10)
    configuration.retry.maximumCeiling = .milliseconds(60)
    switch plan.mode {
    case .givesUp, .finished: configuration.retry.giveUpAfter = .milliseconds(300)
    case .repaired, .cancelled: break
    }
    configuration.retry.giveUpOnRefusalAfter = plan.refusalLimit
    configuration.rollOver.after = .milliseconds(40)
    configuration.rollOver.size = plan.size > 1 << 20 ? 2 << 20 : 4096
    configuration.resumable = plan.cell.wire == .plain && !plan.asks ? .never : .auto
    configuration.progressInterval = .milliseconds(25)
    return configuration
  }

  func begin() {
    loop.execute { [self] in
      start = .now
      // Retains itself until the end.
      streamer?.start { event in self.take(event) }
      beat()
    }
  }

  // MARK: The clock of the case

  private func beat() {
    guard trace.summary == nil else { return }
    ticks += 1
    feed()
    order()
    let elapsed = MonotonicInstant.now - start
    if !trace.isLate, elapsed > Self.misledLimit, isMisled {
      trace.isLate = true
      trace.orders.append("cancel")
      streamer?.cancel()
    } else if !trace.isLate, elapsed > Self.watchdog {
      trace.isLate = true
      trace.contradictions.append("the stream does not end")
      streamer?.cancel()
    } else if elapsed > Self.watchdog + .seconds(60) {
      trace.contradictions.append("a stream that was cancelled does not end")
      return finish()
    }
    timer = loop.schedule(after: Self.tick) { [unowned self] in beat() }
  }

  /// Whether a plain server has announced an upload and acknowledged bytes of it. A client without a time limit
  /// searches for that upload forever, because the server's later answers could come from a portal.
  private var isMisled: Bool {
    guard plan.cell.wire == .plain else { return false }
    return server.state.withLock { state in
      state.given.contains { given in
        guard case .interims(let heads) = given.odd.change else { return false }
        let names = heads.flatMap { $0.fields.map { $0.name.lowercased() } }
        return names.contains("location") && names.contains("upload-offset")
      }
    }
  }

  /// The last bytes are produced when the odd answers are over.
  private func feed() {
    guard let source, source.isOpen else { return }
    let isSpent = plan.cell.phase == .final || server.isSpent || ticks > 300
    if !isReleased, source.produced >= UInt64(plan.size), isSpent,
      !plan.isLong || MonotonicInstant.now - start > .seconds(7)
    {
      isReleased = true
      source.produce(500)
    } else if isReleased {
      if source.isIdle { streamer?.finish() } else { source.produce(0) }
    } else {
      source.produce(source.produced < UInt64(plan.size) ? 4000 : plan.cell.source == .mic || plan.isLong ? 200 : 100)
    }
  }

  private func order() {
    guard trace.orders.isEmpty else { return }
    switch plan.mode {
    case .cancelled(let count) where server.oddCount >= count || ticks > 200:
      trace.orders.append("cancel")
      streamer?.cancel()
    case .finished(let count) where server.oddCount >= count || ticks > 200:
      trace.orders.append("finish")
      streamer?.finish()
    default: break
    }
  }

  // MARK: Events

  private func take(_ event: LiveStreamEvent) {
    if trace.summary != nil { trace.contradictions.append("an event after the last one: \(event)") }
    let stored = server.state.withLock { $0.progress }
    if stored != storedRequests { pauses.noteStored() }
    storedRequests = stored
    if let words = pauses.take(event) { trace.contradictions.append(words) }
    switch event {
    case .progress(let progress): return check(progress)
    case .connected: return
    case .interimResponse: break
    case .acknowledged(let offset):
      if offset <= trace.acknowledged, !trace.contradictions.contains("acknowledged twice") {
        trace.contradictions.append("acknowledged \(offset) after \(trace.acknowledged)")
      }
      check(acknowledged: offset)
      trace.acknowledged = max(trace.acknowledged, offset)
    case .gap(let gap):
      trace.gaps.append(gap)
      trace.capturedAtGap.append(source?.produced ?? 0)
    case .outage(let attempt):
      trace.outageCount += 1
      trace.failures += 1
      check(attempt)
    case .attemptFailed(let attempt):
      trace.failures += 1
      check(attempt)
    case .upload(.notSupported): trace.notSupported = true
    case .connecting(let offset, _): trace.starts.append(offset)
    case .ended(let summary):
      trace.summary = summary
      trace.events.append(event)
      check(summary.progress)
      // The last answer's acknowledgement has no event of its own.
      if !trace.hasBeenAcknowledged {
        let captured = source?.produced ?? UInt64(plan.size)
        server.state.withLock {
          _ = $0.claims.allow(summary.progress.acknowledged, captured: captured, isFirst: true)
        }
      }
      return finish()
    default: break
    }
    if trace.events.count < 500 { trace.events.append(event) }
  }

  private func check(_ progress: StreamProgress) {
    if progress.settled > progress.captured || progress.settled + progress.unsent != progress.captured
      || progress.sent > progress.captured
    {
      trace.contradictions.append("figures that do not add up: \(progress)")
    }
    if progress.buffered > progress.capacity, source != nil {
      trace.contradictions.append("more in the buffer than it holds: \(progress)")
    }
    if let source, progress.captured != source.produced {
      trace.contradictions.append("\(source.produced) bytes were produced: \(progress)")
    }
  }

  /// Only answers acknowledge bytes. Lost bytes before them are skipped.
  private func check(acknowledged offset: UInt64) {
    let passed = trace.gaps.map { $0.offset + $0.length }.max() ?? 0
    guard offset > passed else { return }
    let captured = source?.produced ?? UInt64(plan.size)
    let isAllowed = server.state.withLock {
      $0.claims.allow(offset, captured: captured, isFirst: !trace.hasBeenAcknowledged)
    }
    if !isAllowed { trace.contradictions.append("acknowledged what no answer has acknowledged: \(offset)") }
    trace.hasBeenAcknowledged = true
    pauses.noteProgress(to: offset)
  }

  private func check(_ attempt: FailedAttempt) {
    let words = "\(attempt.cause)"
    if words.isEmpty || words.unicodeScalars.contains(where: { $0.value < 0x20 || $0.value == 0x7F }) {
      trace.contradictions.append("a cause that cannot be printed: \(words.debugDescription)")
    }
    if CaseServer.secrets.contains(where: words.contains) {
      trace.contradictions.append("a secret in a report: \(words)")
    }
    if attempt.retryDelay > .milliseconds(80) {
      trace.contradictions.append("a pause above its ceiling: \(attempt.retryDelay)")
    }
  }

  private func finish() {
    if let timer { loop.cancel(timer) }
    trace.duration = .now - start
    trace.captured = source?.produced ?? UInt64(trace.summary?.progress.captured ?? 0)
    trace.capacity = source?.capacity ?? 0
    server.close()
    source?.stop()
    streamer = nil
    done(self, trace)
  }
}
