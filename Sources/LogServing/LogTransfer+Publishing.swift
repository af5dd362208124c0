// Publishes the bytes of a request, one message after another, and handles the answers of the brokers.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import JetStream
internal import Metrics
internal import ResumableUploads
internal import StreamServing

extension LogTransfer {
  /// Performs the next steps, until one has to wait for the log.
  func proceed() {
    // A request that repeats a complete stream has nothing to publish.
    guard !isOver, plain == nil || state != nil else { return }
    if case .complete = ending, verification != .done, append.isAtLastMessage(limit: log.batchLimit) { return verify() }
    perform(append.next(limit: log.batchLimit))
    if append.isDrained, let ending { finish(ending) }
  }

  /// Called before the last message. It completes the upload if the log still has all messages before it, and if the
  /// digest of the whole is the announced one.
  func verify() {
    guard verification == .due else { return }
    let unread = digests.toBeRead
    verification = unread == nil ? .counting : .reading
    let reader = LogVerification(log, token, upTo: link, at: append.sequence) { [self] verdict in
      let waiting = append.waiting
      unread?.update(waiting.span)
      let whole = unread ?? digests.ofRequest
      computed = whole?.field
      verified(verdict, isRight: whole?.isRight ?? true)
    }
    if let unread { reader.read { unread.update($0) } } else { reader.count() }
  }

  func verified(_ verdict: LogVerification.Verdict, isRight: Bool) {
    // A message published during the check may have ended the request.
    guard !isOver else { return }
    verification = .done
    switch verdict {
    case .intact where !isRight:
      append.discard(.refuted)
      ending = .refuse(.representationDigest)
    case .intact: append.complete()
    case .lost(let reason):
      loss = reason
      append.deactivate(.stateLost)
      ending = .refuse(.deactivated(.stateLost))
    case .unavailable(let error): return failed(error)
    }
    proceed()
  }

  func perform(_ action: LogAppend.Action) {
    switch action {
    case .nothing: break
    case .publish(let batch, let sequence): publish(batch, after: sequence)
    case .readLast: readLast()
    case .wait(let time):
      log.loop.schedule(at: MonotonicInstant(nanoseconds: time)) { [self] in perform(append.retry()) }
    case .advanced: advanced()
    case .takenOver: takenOver()
    case .failed(let error): failed(error)
    }
  }

  func publish(_ batch: LogAppend.Batch, after sequence: UInt64) {
    var entry = LogEntry(
      offset: batch.offset, count: UInt64(batch.bytes.count), streamID: streamID, streamStart: streamStart,
      owner: owner, mark: .init(publisher: publisher, number: batch.number))
    entry.length = batch.completes ? batch.end : state?.length
    entry.isComplete = batch.completes
    entry.deactivation = batch.deactivation
    (entry.digest, entry.wanted) = (digests.representation, digests.wanted)
    // Later questions about it need not read the messages again.
    if batch.completes { entry.digest = WholeDigest.joined(entry.digest, computed) }
    let message = entry.message(batch.bytes, behind: link, more: batch.number == 1 ? description : [])
    nextLink = entry.link
    log.publish(message, to: token, after: sequence) { [self] result in
      switch result {
      case .success(let sequence): perform(append.published(sequence: sequence))
      case .failure(let error): perform(append.failed(error, now: now))
      }
    }
  }

  /// The headers that describe the stream in the first message of a request.
  private var description: [MessageContent.Header] {
    // For a plain stream, the claiming message has them.
    guard plain == nil else { return [] }
    return (isCreation ? LogHeaders.origin(head) : []) + LogHeaders.description(head)
  }

  func readLast() {
    log.stream.lastMessage(of: token) { [self] answer in
      switch answer {
      case .failure(let error): perform(append.failed(error, now: now))
      case .success(let message):
        let mark = message.flatMap { LogEntry($0.content)?.mark }
        perform(
          append.found(
            sequence: message?.sequence ?? 0, isOwn: mark?.publisher == publisher && mark?.number == append.lastNumber,
            now: now))
      }
    }
  }

  func advanced() {
    let before = state?.durable ?? 0
    allowance.published()
    link = nextLink
    state?.synced(to: append.durable)
    log.context.figures.values.storedBytes += append.durable - min(before, append.durable)
    if !hasPublished {
      hasPublished = true
      if isCreation { created() }
    }
    if append.durable > before { tell(schedule.kept(append.durable - before, now: now)) }
    resumeIfDrained()
    proceed()
  }
}
