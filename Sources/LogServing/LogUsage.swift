// The uploads of all servers, as far as one server knows them. Its loops share this account.

internal import EventLoops
internal import JetStream
internal import ResumableUploads
package import StreamServing

/// The unfinished uploads, and their limits. Any thread.
///
/// One loop reads the log (``LogWatch``), and all loops use the result.
package final class LogUsage: Sendable {
  private struct State {
    var uploads: OpenUploads
    var time = ServedTime()
    /// Whether all messages were read that the log had a moment ago.
    var isCurrent = false
    var waiters: [UInt64: @Sendable () -> Void] = [:]
    var lastWaiter: UInt64 = 0
    /// Called with each message that another request publishes: by the token of the upload, then by the publisher of
    /// the request that is informed.
    var followers: [String: [String: @Sendable (_ sequence: UInt64) -> Void]] = [:]
    /// Called with a discarded upload whose bytes a request could not remove, and the epoch in which it was found.
    var refusedRemoval: (@Sendable (_ token: String, _ epoch: UInt64) -> Void)?
  }

  /// How long a request waits until the uploads of other servers are known.
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

  /// The number of unfinished uploads.
  var count: Int { state.withLock { $0.uploads.count } }
  /// The number of their bytes.
  var bytes: UInt64 { state.withLock { $0.uploads.bytes } }

  // MARK: The log

  /// Called when the next message of the log was read, and it belongs to an upload.
  func read(_ entry: LogEntry, of token: String, at sequence: UInt64) {
    let now = now
    state.withLock { $0.uploads.read(entry, of: token, at: sequence, seen: $0.time.own(now)) }
  }

  /// Called when a message of an upload was read, after one of the above. Tells it to the upload's requests, except to
  /// the one that has published it.
  func notifyFollowers(of token: String, _ message: StoredMessage) {
    guard let followers = state.withLock({ $0.followers[token] }) else { return }
    let publisher = LogEntry.publisher(headersOf: message.content)
    for (own, changed) in followers where publisher?.elementsEqual(own) != true { changed(message.sequence) }
  }

  /// Sets what is called with the sequence of each message that others publish to an upload. It is called on the thread
  /// that reads the log, until ``unfollow(_:for:)``.
  ///
  /// - Returns: the sequence of the last message that was read before; 0 if there is none.
  func follow(
    _ token: String, for publisher: String, _ changed: @escaping @Sendable (_ sequence: UInt64) -> Void
  ) -> UInt64 {
    state.withLock { state in
      state.followers[token, default: [:]][publisher] = changed
      return state.uploads.lastSequence(of: token)
    }
  }

  func unfollow(_ token: String, for publisher: String) {
    state.withLock { state in
      state.followers[token]?[publisher] = nil
      if state.followers[token]?.isEmpty == true { state.followers[token] = nil }
    }
  }

  /// Called when the last message of an upload was read, while others before it may be unread.
  func learn(_ entry: LogEntry, of token: String, at sequence: UInt64) {
    let now = now
    state.withLock { $0.uploads.learn(entry, of: token, at: sequence, seen: $0.time.own(now)) }
  }

  /// The same, even if the last known message is a later one, which had that sequence before the brokers were asked.
  func correct(_ entry: LogEntry, of token: String, at sequence: UInt64, known: UInt64) {
    let now = now
    state.withLock { $0.uploads.correct(entry, of: token, at: sequence, known: known, seen: $0.time.own(now)) }
  }

  /// Called when a message was read that does not end its upload. Returns false if the upload is not known yet.
  func advance(_ token: String, to end: UInt64, isLive: Bool, at sequence: UInt64) -> Bool {
    let now = now
    return state.withLock { $0.uploads.advance(token, to: end, isLive: isLive, at: sequence, seen: $0.time.own(now)) }
  }

  /// Called when a message of the ticks' subject was read.
  func readTick(_ content: MessageContent, at sequence: UInt64) {
    let now = now
    state.withLock { $0.time.read(content, at: sequence, now) }
  }

  /// Whether all messages were read that the log had a moment ago.
  package var isCurrent: Bool { state.withLock { $0.isCurrent } }

  /// Called when all messages of the log were read. Returns false if this was so before.
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

  /// Sets whether requests can be served. Uploads age only during that time.
  func setServing(_ isServing: Bool) {
    let now = now
    state.withLock { state in
      if isServing && state.isCurrent { state.time.resume(now) } else { state.time.pause(now) }
    }
  }

  /// Called from time to time, much more often than every ``ServedTime/longestStep``.
  func advanceTime() {
    let now = now
    state.withLock { $0.time.advance(now) }
  }

  /// Called when new messages of the log cannot be read for now.
  func interrupted() {
    let now = now
    state.withLock { state in
      state.isCurrent = false
      state.time.pause(now)
    }
  }

  /// Called when the log may be another one, and is read from its beginning.
  func forget() {
    interrupted()
    state.withLock { state in
      state.uploads.forget()
      state.time.forgetTicks()
    }
  }

  /// The due tick with the sequence that it follows, if there are uploads that must age. Otherwise the time until the
  /// next question. Nil if there is no upload that must age.
  func tick(every interval: Duration) -> Tick? {
    let now = now
    return state.withLock { state in
      guard state.isCurrent, state.uploads.entryCount > 0 else { return nil }
      let left = interval.nanoseconds - state.time.sinceTick(now)
      if left > 0 { return .later(.nanoseconds(left)) }
      return .due(state.time.nextTick(now), after: state.time.lastSequence)
    }
  }

  /// Called with the last message of the ticks' subject after the broker has refused a tick. Nil if there is none.
  ///
  /// - Parameter refused: the sequence after which that tick was published. If a newer message was read since then, the
  ///   answer is outdated.
  func followTick(_ last: StoredMessage?, refused: UInt64) {
    let now = now
    state.withLock { state in
      guard state.time.lastSequence == refused else { return }
      guard let last else { return state.time.forgetTicks() }
      state.time.follow(last.content, at: last.sequence, now)
    }
  }

  enum Tick {
    case due(MessageContent, after: UInt64)
    case later(Duration)
  }

  /// The sequence of the tick before the last one. Messages after it are recent.
  var recentSequence: UInt64 { state.withLock { $0.time.ticks.dropLast().last?.sequence ?? 0 } }

  // MARK: Ages

  var tokens: [String] { state.withLock { $0.uploads.tokens } }

  /// The time until each upload is over, unless a message arrives. Without those that are over or have a request here.
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
    /// The sequence of the upload's last message.
    var sequence: UInt64
  }

  /// Records whether an upload is live, as its first message states. Returns whether its lifetime is over.
  func isDue(_ token: String, at sequence: UInt64, isLive: Bool) -> Bool {
    state.withLock { $0.uploads.setLive(isLive, token) }
    return remainders(of: [token]).contains { $0.left <= .zero && $0.sequence == sequence }
  }

  /// Called when the log has no message of an upload any more.
  func remove(_ token: String) { state.withLock { $0.uploads.remove(token) } }

  /// Called when this server has published the last message of an upload. It was published in that epoch.
  func end(_ token: String, at sequence: UInt64, epoch: UInt64) {
    state.withLock { $0.uploads.end(token, at: sequence, epoch: epoch) }
  }

  /// Sets what is called with each discarded upload whose bytes a request could not remove, on the thread of the
  /// request, and with the epoch in which the upload was found. Nil ends this.
  func onRefusedRemoval(_ action: (@Sendable (_ token: String, _ epoch: UInt64) -> Void)?) {
    state.withLock { $0.refusedRemoval = action }
  }

  /// Called when the brokers have not removed the bytes of a discarded upload, which was found in that epoch.
  func removalRefused(_ token: String, epoch: UInt64) {
    let action = state.withLock { $0.refusedRemoval }
    action?(token, epoch)
  }

  // MARK: Requests

  /// The number of times that the log may have become another one.
  var epoch: UInt64 { state.withLock { $0.uploads.epoch } }

  /// Calls `work` on the loop when all messages were read that the log had a moment ago, perhaps at once.
  ///
  /// - Parameter work: receives false if they were not read in time.
  func whenCurrent(on loop: EventLoop, _ work: @escaping (Bool) -> Void) {
    // Used only on the loop's thread.
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
  ) throws(UploadRefusal) -> UInt64 {
    let now = now
    return try state.withLock { state throws(UploadRefusal) in
      try state.uploads.admit(token, of: owner, claiming: claimed, isLive: isLive, seen: state.time.own(now))
    }
  }

  func enter(
    _ token: String, _ entry: LogEntry, at sequence: UInt64, bringing count: UInt64
  ) throws(UploadRefusal) -> UInt64 {
    let now = now
    return try state.withLock { state throws(UploadRefusal) in
      try state.uploads.enter(token, entry, at: sequence, bringing: count, seen: state.time.own(now))
    }
  }

  func claim(_ count: UInt64, for token: String) -> UInt64 {
    state.withLock { $0.uploads.claim(count, for: token) }
  }

  func leave(_ token: String, at sequence: UInt64, end: UInt64, isOver: Bool, epoch: UInt64) {
    let now = now
    state.withLock {
      $0.uploads.leave(token, at: sequence, end: end, isOver: isOver, seen: $0.time.own(now), epoch: epoch)
    }
  }
}
