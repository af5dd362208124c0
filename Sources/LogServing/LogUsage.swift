// What a server knows of the uploads of all servers: one account for all of its loops.

internal import EventLoops
internal import JetStream
internal import ResumableUploads
package import StreamServing

/// The uploads that are not over, and the limits that hold for them. Any thread.
///
/// One loop reads the log (``LogWatch``), and all loops ask.
package final class LogUsage: Sendable {
  private struct State {
    var uploads: OpenUploads
    var time = ServedTime()
    /// Whether everything is known that the log had a moment ago.
    var isCurrent = false
    var waiters: [UInt64: @Sendable () -> Void] = [:]
    var lastWaiter: UInt64 = 0
  }

  /// For how long a request waits until it is known what other servers have.
  private static let patience = Duration.seconds(3)

  private let state: Lock<State>
  package let lifetimes: UploadLifetimes
  /// Whether bytes are counted.
  let limitsBytes: Bool

  package init(_ limits: UploadLimitsConfiguration, finishAfter: Duration) {
    lifetimes = UploadLifetimes(sized: limits.maximumAge, live: finishAfter)
    limitsBytes = limits.quota != nil || limits.quotaPerClient != nil
    state = Lock(State(uploads: OpenUploads(limits, lifetimes)))
  }

  private var now: Int64 { MonotonicInstant.now.nanoseconds }

  /// How many uploads are not over.
  var count: Int { state.withLock { $0.uploads.count } }
  /// How many bytes they have.
  var bytes: UInt64 { state.withLock { $0.uploads.bytes } }

  // MARK: The log

  /// A message of an upload was read.
  func read(_ entry: LogEntry, of token: String, at sequence: UInt64) {
    let now = now
    state.withLock { $0.uploads.read(entry, of: token, at: sequence, seen: $0.time.own(now)) }
  }

  /// A tick was read.
  func readTick(_ content: MessageContent, at sequence: UInt64) {
    let now = now
    state.withLock { $0.time.read(content, at: sequence, now) }
  }

  /// Whether everything is known that the log had a moment ago.
  package var isCurrent: Bool { state.withLock { $0.isCurrent } }

  /// Everything that the log has was read. Whether it had not been, before.
  func caughtUp() -> Bool {
    let waiters: [@Sendable () -> Void]? = state.withLock { state in
      if state.isCurrent { return nil }
      state.isCurrent = true
      defer { state.waiters = [:] }
      return Array(state.waiters.values)
    }
    for waiter in waiters ?? [] { waiter() }
    return waiters != nil
  }

  /// Uploads age while requests can be served.
  func setServing(_ isServing: Bool) {
    let now = now
    state.withLock { state in
      if isServing && state.isCurrent { state.time.resume(now) } else { state.time.pause(now) }
    }
  }

  /// Nobody knows what comes into the log now.
  func interrupted() {
    let now = now
    state.withLock { state in
      state.isCurrent = false
      state.time.pause(now)
    }
  }

  /// The log may be another one: it is read from its beginning.
  func forget() {
    interrupted()
    state.withLock { state in
      state.uploads.forget()
      state.time.forgetTicks()
    }
  }

  /// The tick that is due, if there are uploads that must age: what to publish, and behind which message. Otherwise
  /// after what time to ask again; nil if there is nothing to be aged.
  func tick(every interval: Duration) -> Tick? {
    let now = now
    return state.withLock { state in
      guard state.isCurrent, state.uploads.entryCount > 0 else { return nil }
      let left = interval.nanoseconds - state.time.sinceTick(now)
      if left > 0 { return .later(.nanoseconds(left)) }
      return .due(state.time.nextTick(now), after: state.time.lastSequence)
    }
  }

  /// The log has no tick any more.
  func forgetTicks() { state.withLock { $0.time.forgetTicks() } }

  enum Tick {
    case due(MessageContent, after: UInt64)
    case later(Duration)
  }

  /// The sequence of the tick before the last one: what is behind it is recent.
  var recentSequence: UInt64 { state.withLock { $0.time.ticks.dropLast().last?.sequence ?? 0 } }

  // MARK: Ages

  var tokens: [String] { state.withLock { $0.uploads.tokens } }

  /// After what time each upload is over unless something comes, of those that are not over and not at work here.
  func remainders(of tokens: ArraySlice<String>) -> [Remainder] {
    let now = now
    return state.withLock { state in
      tokens.compactMap { token in
        state.uploads.remainder(of: token, state.time, now).map {
          Remainder(token: token, left: .nanoseconds($0.left), sequence: $0.sequence)
        }
      }
    }
  }

  struct Remainder {
    var token: String
    var left: Duration
    /// Of the upload's last message.
    var sequence: UInt64
  }

  /// What the first message of an upload says. Returns whether the upload's time is over, and nothing came.
  func isDue(_ token: String, at sequence: UInt64, isLive: Bool) -> Bool {
    state.withLock { $0.uploads.setLive(isLive, token) }
    return remainders(of: [token]).contains { $0.left <= .zero && $0.sequence == sequence }
  }

  /// The log has nothing of an upload any more.
  func remove(_ token: String) { state.withLock { $0.uploads.remove(token) } }

  /// This server has published the last message of an upload.
  func end(_ token: String, at sequence: UInt64) { state.withLock { $0.uploads.end(token, at: sequence) } }

  // MARK: Requests

  /// Does `work` on the loop when everything is known that the log had a moment ago: at once, if it is.
  ///
  /// - Parameter work: whether it is known.
  func whenCurrent(on loop: EventLoop, _ work: @escaping (Bool) -> Void) {
    // Touched on the loop's thread only.
    nonisolated(unsafe) var pending: ((Bool) -> Void)? = work
    nonisolated(unsafe) var timer: EventLoop.Timer?
    let number: UInt64? = state.withLock { state in
      if state.isCurrent { return nil }
      state.lastWaiter += 1
      state.waiters[state.lastWaiter] = {
        loop.execute {
          if let timer { loop.cancel(timer) }
          pending?(true)
          pending = nil
        }
      }
      return state.lastWaiter
    }
    guard let number else { return work(true) }
    timer = loop.schedule(after: Self.patience) { [self] in
      state.withLock { $0.waiters[number] = nil }
      pending?(false)
      pending = nil
    }
  }

  func admit(
    _ token: String, of owner: [UInt8]?, claiming claimed: UInt64, isLive: Bool
  ) throws(UploadRefusal) {
    let now = now
    try state.withLock { state throws(UploadRefusal) in
      try state.uploads.admit(token, of: owner, claiming: claimed, isLive: isLive, seen: state.time.own(now))
    }
  }

  func enter(
    _ token: String, _ entry: LogEntry, at sequence: UInt64, bringing count: UInt64
  ) throws(UploadRefusal) {
    let now = now
    try state.withLock { state throws(UploadRefusal) in
      try state.uploads.enter(token, entry, at: sequence, bringing: count, seen: state.time.own(now))
    }
  }

  func claim(_ count: UInt64, for token: String) -> UInt64 {
    state.withLock { $0.uploads.claim(count, for: token) }
  }

  func leave(_ token: String, at sequence: UInt64, end: UInt64, isOver: Bool) {
    let now = now
    state.withLock {
      $0.uploads.leave(token, at: sequence, end: end, isOver: isOver, seen: $0.time.own(now))
    }
  }
}
