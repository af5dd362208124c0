// Follows the log of all servers to find the unfinished uploads, and those whose lifetime is over.

internal import EventLoops
internal import JetStream
internal import ResumableUploads
internal import StreamServing

/// Reads the headers of the log for a ``LogUsage``, and ends the uploads whose lifetime is over. Each server has one.
/// Only on the loop's thread.
package final class LogWatch {
  /// The maximum number of requested messages in flight.
  private static let window = 1000
  /// The number of uploads that one slice examines.
  private static let slice = 2000
  /// The maximum number of uploads that are ended at the same time.
  private static let endingCount = 16
  /// The divisors of a lifetime that give the time between two ticks and between two examinations of the uploads.
  private static let (tickPart, scanPart) = (16, 64)
  private static let (shortestPause, longestTick) = (Duration.milliseconds(50), Duration.seconds(900))
  private static let retryPause = Duration.seconds(5)
  private static let beatInterval = Duration.seconds(15)
  /// How long the log must be unreadable before this is reported.
  private static let complaintPause = Duration.seconds(10)
  /// The number of uploads ended before the start of this server whose bytes it checks for removal.
  private static let endedCount = 1000

  private let log: UploadLog
  private let tickInterval: Duration
  private let scanInterval: Duration
  private var reader: MessageReader?
  /// Whether the log was read from its beginning to its end.
  private var hasLoaded = false
  private var isStopped = false
  /// The last report of an unreadable log.
  private var complaint: String?
  private var complaintTimer: EventLoop.Timer?
  private var tickTimer: EventLoop.Timer?
  private var scanTimer: EventLoop.Timer?
  private var beatTimer: EventLoop.Timer?
  /// The last uploads that ended before the start of this server.
  private var ended: [(token: String, sequence: UInt64)] = []
  private let discarded: DiscardedUploads
  /// Uploads that are being ended.
  private var ending: Set<String> = []
  private var due: [LogUsage.Remainder] = []

  package init(_ log: UploadLog) {
    self.log = log
    discarded = DiscardedUploads(log)
    let lifetime = log.usage.lifetimes.shortest
    tickInterval = min(max(lifetime / Self.tickPart, Self.shortestPause), Self.longestTick)
    scanInterval = max(lifetime / Self.scanPart, Self.shortestPause)
  }

  /// Starts to read. Call it before the loop runs, or on its thread.
  package func start() {
    let reader = MessageReader(
      log.stream, after: 0, nil, selection: .headersOfLast(LogEntry.headerNames + ServedTime.headerNames),
      identify: { "\($0.content["Sluice-Publisher"] ?? "") \($0.content["Sluice-Served"] ?? "")" },
      handle: { [unowned self] in happened($0) })
    self.reader = reader
    reader.want(Self.window)
    let removals = LoopOwned(discarded, on: log.loop)
    log.usage.onRefusedRemoval { token, epoch in removals.execute { $0.removeLater(token, epoch: epoch) } }
    if beatTimer == nil { beat() }
  }

  private func beat() {
    log.usage.advanceTime()
    beatTimer = log.loop.schedule(after: Self.beatInterval) { [unowned self] in beat() }
  }

  package func stop() {
    isStopped = true
    reader?.stop()
    disarm()
    log.usage.onRefusedRemoval(nil)
    discarded.forget()
    for timer in [complaintTimer, beatTimer].compactMap(\.self) { log.loop.cancel(timer) }
  }

  private func happened(_ event: MessageReader.Event) {
    guard !isStopped else { return }
    switch event {
    case .message(let message, _):
      read(message)
      reader?.want(1)
    case .caughtUp:
      guard log.usage.caughtUp() else { break }
      endComplaint()
      log.usage.setServing(log.isReady)
      if !hasLoaded { loaded() }
      arm()
      scan()
    case .interrupted(let error):
      log.usage.interrupted()
      disarm()
      guard complaintTimer == nil else { break }
      complaintTimer = log.loop.schedule(after: Self.complaintPause) { [unowned self] in complain(error) }
    case .rewound, .recreated: startAgain(after: .zero)
    case .failed(let error):
      complain(error)
      startAgain(after: Self.retryPause)
    }
    log.context.figures.values.openUploads = log.usage.count
  }

  private func complain(_ error: BrokerError) {
    guard complaint != "\(error)" else { return }
    complaint = "\(error)"
    warn("cannot read the log: \(error). The server retries. Until then, it accepts no new uploads.")
  }

  private func endComplaint() {
    if let complaintTimer { log.loop.cancel(complaintTimer) }
    complaintTimer = nil
    guard complaint != nil else { return }
    complaint = nil
    warn("the log can be read again")
  }

  private func warn(_ reason: String) { log.context.emit(ServerEvent(.warning, reason: reason)) }

  private func startAgain(after pause: Duration) {
    log.usage.forget()
    disarm()
    (hasLoaded, ended, due) = (false, [], [])
    discarded.forget()
    log.loop.schedule(after: pause) { [weak self] in
      guard let self, !isStopped else { return }
      start()
    }
  }

  // MARK: Messages

  private func read(_ message: StoredMessage) {
    let token = String(message.subject.dropFirst(log.stream.name.utf8.count + 1))
    if token == ServedTime.token {
      log.usage.readTick(message.content, at: message.sequence)
    } else if let (end, isLive) = LogEntry.progress(headersOf: message.content),
      log.usage.advance(token, to: end, isLive: isLive, at: message.sequence)
    {
      // A request of a known upload has stored bytes.
    } else if UploadToken.isValid(token), let entry = LogEntry(headersOf: message.content) {
      log.usage.read(entry, of: token, at: message.sequence)
      if entry.deactivation != nil { over(entry, token, message.sequence) }
    }
    log.usage.notifyFollowers(of: token, message)
    if hasLoaded { arm() }
  }

  private func over(_ entry: LogEntry, _ token: String, _ sequence: UInt64) {
    guard let cause = entry.deactivation else { return }
    // The bytes of a complete upload stay, even if it is cancelled.
    let isDiscarded = !entry.isComplete && [.cancelled, .expired, .refuted].contains(cause)
    guard hasLoaded else {
      if isDiscarded { ended.append((token, sequence)) }
      if ended.count > 2 * Self.endedCount { ended.removeFirst(Self.endedCount) }
      return
    }
    let isOwn = log.isOwn(entry.mark, .expiry)
    if isOwn {
      var event = ServerEvent(cause == .expired ? .expired : .closed, reason: cause.description)
      event.stream = entry.streamID
      event.offset = entry.streamStart + entry.end
      log.context.emit(event)
    }
    guard isDiscarded else { return }
    // The server that has ended it removes them, unless it was killed since then, or the brokers refused.
    if isOwn { discarded.remove(token) } else { discarded.removeLater(token) }
  }

  /// Removes the bytes of uploads that an earlier server discarded. It may have been killed before the removal.
  private func loaded() {
    hasLoaded = true
    let recent = log.usage.recentSequence
    for upload in ended where upload.sequence > recent { discarded.remove(upload.token) }
    ended = []
  }

  // MARK: Timers

  private func arm() {
    if tickTimer == nil { tick() }
    if scanTimer == nil, log.usage.count > 0 { armScan(after: log.usage.lifetimes.shortest) }
  }

  private func disarm() {
    for timer in [tickTimer, scanTimer].compactMap(\.self) { log.loop.cancel(timer) }
    (tickTimer, scanTimer) = (nil, nil)
  }

  private func tick() {
    tickTimer = nil
    // Without the proof that the brokers keep acknowledged messages, no client can continue an upload.
    log.usage.setServing(log.isReady)
    switch log.usage.tick(every: tickInterval) {
    case nil: break
    case .later(let pause): armTick(after: pause)
    case .due(let content, let sequence):
      armTick(after: tickInterval)
      guard log.isReady else { return }
      log.stream.publish(content, to: ServedTime.token, after: sequence) { [log] result in
        switch result {
        case .success: log.stream.purge(ServedTime.token) { _ in }
        // Another server has published a tick, another program has published a message, or an operator has removed one.
        case .failure(let error) where error.isWrongLastSequence:
          log.stream.lastMessage(of: ServedTime.token) { answer in
            if case .success(let last) = answer { log.usage.followTick(last, refused: sequence) }
          }
        case .failure: break
        }
      }
    }
  }

  private func armTick(after pause: Duration) {
    tickTimer = log.loop.schedule(after: pause) { [unowned self] in tick() }
  }

  private func armScan(after pause: Duration) {
    if let scanTimer { log.loop.cancel(scanTimer) }
    scanTimer = log.loop.schedule(after: max(pause, scanInterval)) { [unowned self] in scan() }
  }

  // MARK: Ages

  /// Finds the uploads whose lifetime is over. Works in slices, so that requests are served in between.
  private func scan() {
    if let scanTimer { log.loop.cancel(scanTimer) }
    scanTimer = nil
    scan(log.usage.tokens[...], soonest: log.usage.lifetimes.shortest)
  }

  private func scan(_ tokens: ArraySlice<String>, soonest: Duration) {
    var soonest = soonest
    for upload in log.usage.remainders(of: tokens.prefix(Self.slice)) {
      // An upload that cannot be ended now is examined again soon.
      soonest = min(soonest, max(upload.left, scanInterval))
      if upload.left <= .zero { end(upload) }
    }
    let rest = tokens.dropFirst(Self.slice)
    guard rest.isEmpty else {
      // This is a timer, so that it ends with the others.
      let next = soonest
      scanTimer = log.loop.schedule(after: .zero) { [unowned self] in scan(rest, soonest: next) }
      return
    }
    if log.usage.count > 0 { armScan(after: soonest) } else { scanTimer = nil }
  }

  private func end(_ upload: LogUsage.Remainder) {
    guard !ending.contains(upload.token), log.isReady else { return }
    guard ending.count < Self.endingCount else {
      // The next examination finds the others.
      if due.count < Self.slice { due.append(upload) }
      return
    }
    ending.insert(upload.token)
    LogExpiry(log, upload.token, at: upload.sequence) { [weak self] in
      guard let self else { return }
      // After a failure, the next examination finds it again.
      ending.remove(upload.token)
      guard !isStopped else { return }
      if let next = due.popLast() { end(next) }
    }.start()
  }
}
