// The shell of a live stream: timers, descriptors and requests; what to do is the state machine's to say.

internal import EventLoops
internal import StreamBuffers
internal import UploadClient

/// Owned by the session's thread after `init`; unchecked for that reason.
final class LiveStream: @unchecked Sendable {
  let loop: EventLoop

  /// How often a stream that is written to asks how far the peer has acknowledged, in nanoseconds.
  private static let acknowledgementInterval: Int64 = 1_000_000_000

  private let source: any StreamSource
  private let configuration: LiveStreamConfiguration
  private let session: UploadSession
  private let writer: StreamWriter
  /// Until the source has it.
  private var producer: CircularBuffer.Producer?
  private let dataDescriptor: Int32
  /// Whether the loop watches it.
  private var isRegistered = false

  private var machine: PlainStreamStateMachine
  private var handler: @Sendable (LiveStreamEvent) -> Void = { _ in }
  private var task: UploadTask?
  private var requestStart: UInt64 = 0
  /// Tells a request's events from those of one before it.
  private var requestNumber = 0
  private var startTime = MonotonicInstant(nanoseconds: 0)
  private var lastAcknowledgementCheck = MonotonicInstant(nanoseconds: 0)
  private var cursorAtLastCheck: UInt64 = 0
  private var pressureTimer: EventLoop.Timer?
  private var progressTimer: EventLoop.Timer?
  private var retryTimer: EventLoop.Timer?
  private var sourceError: LiveStreamError?
  private var sourceLost: UInt64 = 0
  private var response: HTTPResponse?
  /// Itself, from its start to its end: its owner may keep nothing but the events.
  private var keptAlive: LiveStream?
  private var generator = SystemRandomNumberGenerator()

  init(source: any StreamSource, configuration: LiveStreamConfiguration, session: UploadSession) throws(SystemError) {
    self.source = source
    self.configuration = configuration
    self.session = session
    loop = session.loop
    machine = PlainStreamStateMachine(policy: configuration.retry)
    let ends = try CircularBuffer.make(
      capacity: .bytes(configuration.buffer.byteCount + configuration.retention),
      overflow: configuration.overflow == .dropOldest ? .dropOldest : .refuse, memory: configuration.memory)
    dataDescriptor = ends.consumer.dataDescriptor
    writer = StreamWriter(consumer: ends.consumer)
    producer = consume ends.producer
  }

  // MARK: Start and end

  func start(_ handler: @escaping @Sendable (LiveStreamEvent) -> Void) {
    // Once: the producer is gone afterwards.
    guard let producer = producer.take() else { return }
    self.handler = handler
    startTime = .now
    guard machine.state != .ended else { return end(Self.cancelled) }
    keptAlive = self
    writer.didWrite = { [unowned self] in didWrite() }
    do {
      try loop.register(dataDescriptor, [.readable, .edgeTriggered]) { [unowned self] _ in writer.write() }
      isRegistered = true
      try source.start(into: producer, context: sourceContext())
    } catch let error as LiveStreamError {
      return perform(machine.stop(error))
    } catch {
      return perform(machine.stop(LiveStreamError(.source, "\(error)")))
    }
    tickProgress()
    perform(machine.start(now: startTime))
  }

  func finish() {
    guard machine.state != .ended else { return }
    source.stop()
  }

  func cancel() {
    let isStarted = machine.state != .idle
    let action = machine.stop(Self.cancelled)
    // One that was not started yet has nothing to end; `start` tells.
    if isStarted { perform(action) }
  }

  private static let cancelled = LiveStreamError(.cancelled, "stopped before everything was sent")

  private func sourceContext() -> SourceContext {
    SourceContext(
      loop: loop, overflow: configuration.overflow,
      report: { [weak self, loop] event in
        loop.execute { [weak self] in
          guard let self else { return }
          sourceLost += event.lost
          handler(.source(event))
        }
      },
      fail: { [weak self, loop] error in
        loop.execute { [weak self] in self?.sourceError = self?.sourceError ?? error }
      })
  }

  private func perform(_ action: PlainStreamStateMachine.Action) {
    switch action {
    case .none: break
    case .open(let offset, let attempt, let gap):
      if let gap { handler(.gap(gap)) }
      open(at: offset, attempt: attempt)
    case .wait(let dropout):
      handler(.dropout(dropout))
      retryTimer = loop.schedule(after: dropout.retryDelay) { [unowned self] in retry() }
    case .end(let error):
      end(error)
    }
  }

  private func retry() {
    retryTimer = nil
    let oldest = writer.consumer.released
    perform(
      machine.retryIsDue(oldest: oldest, head: writer.consumer.head, headroom: UInt64(writer.consumer.capacity / 8)))
  }

  private func end(_ error: LiveStreamError?) {
    for timer in [pressureTimer, progressTimer, retryTimer] {
      if let timer { loop.cancel(timer) }
    }
    requestNumber += 1
    task?.cancel()
    task = nil
    writer.detach()
    source.stop()
    if isRegistered { loop.deregister(dataDescriptor) }
    isRegistered = false
    let summary = StreamSummary(
      progress: progress(), gaps: machine.gaps, resent: machine.resent, sourceLost: sourceLost, response: response,
      missingAtServer: response?["Stream-Missing"].flatMap { UInt64($0) }, error: error ?? sourceError)
    handler(.ended(summary))
    handler = { _ in }
    // Not at once: it is still on the stack.
    loop.atEndOfTurn { [self] in keptAlive = nil }
  }

  // MARK: One request after another

  private func open(at offset: UInt64, attempt: Int) {
    handler(.connecting(offset: offset, attempt: attempt))
    var request = configuration.request
    request.fields += [
      .init(name: "Stream-ID", value: configuration.streamID), .init(name: "Stream-Offset", value: String(offset)),
    ]
    let pair = BoundPair.make(bufferSize: configuration.pairSize)
    requestNumber += 1
    requestStart = offset
    cursorAtLastCheck = offset
    let number = requestNumber
    do {
      task = try session.upload(request, body: .stream(pair.input)) { [weak self] event in
        guard let self, number == requestNumber else { return }
        handle(event)
      }
    } catch {
      return perform(machine.stop(LiveStreamError(.invalidRequest, error.description)))
    }
    writer.attach(pair.output, at: offset)
  }

  private func handle(_ event: UploadTask.Event) {
    switch event {
    case .connected:
      machine.connected()
      handler(.streaming(offset: requestStart))
    case .interimResponse(let response):
      handler(.interimResponse(response))
    case .finished(let result):
      takeCounts()
      task = nil
      writer.detach()
      if case .success(let outcome) = result { response = outcome.response }
      let verdict = Verdict(result)
      if case .complete = verdict { writer.release(upTo: writer.cursor) }
      // Nothing is released before the verdict: what a refused request has carried may be needed once more.
      let action = machine.requestEnded(verdict, oldest: writer.consumer.released, now: .now, using: &generator)
      release()
      perform(action)
    }
  }

  // MARK: Acknowledgements

  /// Bytes went into the pair: look from time to time how far the peer's TCP has acknowledged, and give those bytes up.
  private func didWrite() {
    let now = MonotonicInstant.now
    // A source that waits for room is let go on as soon as there is some; otherwise there is time.
    let byteStep = UInt64(writer.consumer.capacity / (isUnderPressure ? 64 : 8))
    if now.nanoseconds(since: lastAcknowledgementCheck) >= Self.acknowledgementInterval
      || writer.cursor - cursorAtLastCheck >= byteStep
    {
      checkAcknowledged(now)
    }
    if pressureTimer == nil { schedulePressureCheck() }
  }

  private func checkAcknowledged(_ now: MonotonicInstant) {
    lastAcknowledgementCheck = now
    cursorAtLastCheck = writer.cursor
    task?.updateAcknowledged()
    noteAcknowledged()
  }

  private func noteAcknowledged() {
    takeCounts()
    release()
  }

  private func takeCounts() {
    guard let task else { return }
    machine.wrote(upTo: requestStart + task.sentByteCount)
    machine.acknowledged(bodyCount: task.acknowledgedByteCount, now: .now)
  }

  private func release() {
    let retention = UInt64(min(configuration.retention, writer.consumer.capacity / 2))
    if machine.acknowledged > retention { writer.release(upTo: machine.acknowledged - retention) }
  }

  /// A source that waits for room would wait for ever if the last bytes were acknowledged with nobody looking: so while
  /// the buffer is more than half full and something is under way, look again after a millisecond, and less and less often
  /// while nothing is acknowledged.
  private func schedulePressureCheck(after delay: Duration = .milliseconds(1)) {
    guard isUnderPressure else { return }
    pressureTimer = loop.schedule(after: delay) { [unowned self] in
      pressureTimer = nil
      let before = machine.acknowledged
      checkAcknowledged(.now)
      guard task != nil else { return }
      schedulePressureCheck(after: machine.acknowledged > before ? .milliseconds(1) : min(delay * 2, .milliseconds(64)))
    }
  }

  private var isUnderPressure: Bool {
    // What is acknowledged and still kept can fill half of a small buffer: there is nothing to wait for then.
    writer.cursor > machine.acknowledged
      && Int(writer.consumer.head - writer.consumer.released) > writer.consumer.capacity / 2
  }

  // MARK: Progress

  private func tickProgress() {
    guard let interval = configuration.progressInterval else { return }
    progressTimer = loop.schedule(after: interval) { [unowned self] in
      task?.updateAcknowledged()
      noteAcknowledged()
      handler(.progress(progress()))
      tickProgress()
    }
  }

  private func progress() -> StreamProgress {
    let head = writer.consumer.head
    return StreamProgress(
      elapsed: .now - startTime, captured: head, sent: machine.sent, acknowledged: machine.acknowledged,
      buffered: Int(head - min(head, max(machine.acknowledged, writer.consumer.released))),
      capacity: configuration.buffer.byteCount,
      dropouts: machine.dropouts, lost: machine.lost, isConnected: task != nil)
  }
}
