// Reads a stream from one message on, as an ordered consumer: the position is kept by the reader instead of the broker.

internal import EventLoops

/// Delivers the messages of a ``MessageStream`` in order, each once, whatever happens to connections and brokers. Only
/// on the thread of its client's loop.
///
/// It requests as many messages as ``want(_:)`` allows. If a message is missing, or no broker answers, it makes another
/// consumer that begins after the last message. While there is nothing to read, one request is pending at the broker.
///
/// In nats-server before 2.9.12, a purge of one subject moves the consumers of others forward, so they omit messages.
/// With such a broker, the reader asks the stream about each gap in the sequences. Purges alone leave gaps, too.
///
/// Brokers may return with an earlier copy of their store, and give the sequences of delivered messages to others. The
/// reader compares the message at its position with the delivered one. If that was removed, it compares storage times:
/// a message up to the position that was stored later than all delivered ones was not delivered. If the brokers' clock
/// was set back, and other messages seem older than the delivered ones, this loss is not detected. Removed messages
/// alone never count as a loss, whatever the clock did.
package final class MessageReader {
  /// An event of a reader.
  package enum Event {
    /// The next message, and how many more the stream had when it was delivered.
    case message(StoredMessage, pending: UInt64)
    /// The stream has no messages beyond the delivered ones.
    case caughtUp
    /// The brokers have lost delivered messages, and may have replaced them by others. The reader has ended.
    case rewound
    /// The stream was replaced by another one of the same name, created at that time. The reader has ended.
    case recreated(String)
    /// The brokers do not answer, or the process lacks memory or threads. The reader tries again.
    case interrupted(BrokerError)
    /// The brokers refuse permanently. The reader has ended.
    case failed(BrokerError)
  }

  /// What is read of the stream.
  package enum Selection: Equatable {
    case messages
    /// Headers alone, with the length of the payload in `Nats-Msg-Size`. First come those of the last message of each
    /// subject, and then those of each message that was stored since the reader began.
    /// The headers without a name in this list are omitted.
    case headersOfLast([String])

    var headersOnly: Bool { if case .headersOfLast = self { true } else { false } }
    /// A broker's status messages have the first two.
    fileprivate var headers: WantedHeaders {
      if case .headersOfLast(let names) = self { .named(["Status", "Nats-Msg-Size"] + names) } else { .all }
    }
  }

  /// How long the broker keeps a request for messages.
  private static let expiry = Duration.seconds(20)
  private static let patience = Duration.seconds(30)
  /// How long the broker keeps an unused consumer.
  private static let memory = Duration.seconds(60)
  /// How many messages are requested at once.
  private static let largestBatch = 200

  private let stream: MessageStream
  private let handle: (Event) -> Void
  /// The sequence of the next message.
  private var next: UInt64
  /// Distinguishes a message from all others that ever had its sequence.
  private let identify: (StoredMessage) -> String
  /// The identity of the message before ``next`` if that was not delivered here; nil if unknown.
  private var earlierIdentity: String?
  /// The last delivered message, which is the one before ``next``.
  private var last: StoredMessage?
  /// The latest storage time of the messages from ``covered`` on to the one before ``next``.
  private var latestTime: Int64
  private var covered: UInt64
  private let created: String?
  private let selection: Selection
  /// Whether each subject has had its last message up to ``boundary``.
  private var hasBegun: Bool
  /// The last sequence of the stream before the last message of each subject was requested. Afterwards, a consumer of
  /// all messages begins there.
  private var boundary: UInt64 = 0
  /// Of the present consumer; what belongs to an earlier one is ignored.
  private var generation: UInt64 = 0
  private var subscription: BrokerConnection.Subscription?
  private var consumer: String?
  /// How many messages the consumer has sent.
  private var delivered: UInt64 = 0
  /// Messages of the consumer that were not passed on yet, because the gap before the first of them is being examined.
  private var arrived: [(message: StoredMessage, pending: UInt64)] = []
  private var isExamining = false
  /// The sequence of the message before which the stream has no others that were not delivered.
  private var examined: UInt64 = 0
  private var wanted = 0
  /// How many messages of the present request are still to come.
  private var outstanding = 0
  private var timer: EventLoop.Timer?
  /// The pauses after failures. They grow until a message arrives.
  private var pauses = RetryPauses(.milliseconds(50)...(.seconds(2)))
  private var isInterrupted = false
  private var isOver = false
  private var observation: UInt64 = 0

  /// - Parameters:
  ///   - sequence: of the last message that needs no reading; 0 for none.
  ///   - identity: of that message, as `identify` returned it; nil if it is unknown.
  ///   - time: the latest storage time of all messages up to that one; 0 if it is unknown.
  ///   - created: when the stream was made, as ``MessageStreamState/created`` states; nil to omit the comparison.
  ///   - selection: what is read. With ``Selection/headersOfLast``, `sequence` is 0.
  ///   - identify: what identifies a message among all that ever had its sequence: brokers that lose messages give
  ///     their sequences to others.
  ///   - handle: called for each event, never from within a call.
  package init(
    _ stream: MessageStream, after sequence: UInt64, _ identity: String?, time: Int64 = 0, created: String? = nil,
    selection: Selection = .messages, identify: @escaping (StoredMessage) -> String, handle: @escaping (Event) -> Void
  ) {
    (self.stream, next, self.handle) = (stream, sequence + 1, handle)
    (earlierIdentity, self.created, self.identify) = (identity, created, identify)
    (self.selection, hasBegun) = (selection, !selection.headersOnly)
    (latestTime, covered) = (time, time > 0 ? 1 : sequence + 1)
    // Touched on the loop's thread only.
    nonisolated(unsafe) weak let reader = self
    let loop = stream.client.loop
    observation = stream.client.connection.observe { isConnected in
      loop.execute { reader?.connectionChanged(isConnected) }
    }
    restart(after: .zero)
  }

  deinit {
    stream.client.connection.forget(observation)
    if let subscription { stream.client.connection.unsubscribe(subscription) }
  }

  /// Allows this number of further messages.
  package func want(_ count: Int) {
    wanted += count
    pull()
  }

  /// Delivers nothing more.
  package func stop() {
    isOver = true
    leave()
  }

  private var loop: EventLoop { stream.client.loop }

  private func connectionChanged(_ isConnected: Bool) {
    guard !isOver else { return }
    if isConnected { restart(after: .zero) } else { interrupted(.disconnected) }
  }

  // MARK: The consumer

  private func leave() {
    generation += 1
    if let timer { loop.cancel(timer) }
    timer = nil
    if let subscription { stream.client.connection.unsubscribe(subscription) }
    (subscription, consumer, delivered, outstanding) = (nil, nil, 0, 0)
    (arrived, isExamining, examined) = ([], false, 0)
  }

  private func interrupted(_ error: BrokerError) {
    guard !isOver else { return }
    let error = stream.client.connection.refusal ?? error
    guard error.isTransient || error.isShortage else {
      stop()
      return handle(.failed(error))
    }
    if !isInterrupted {
      isInterrupted = true
      handle(.interrupted(error))
    }
    restart(after: pauses.next())
  }

  private func restart(after pause: Duration) {
    leave()
    timer = loop.schedule(after: pause) { [weak self] in self?.begin() }
  }

  private func begin() {
    timer = nil
    // The next connection restarts it.
    guard stream.client.connection.isConnected else { return }
    // Which messages are the last ones may have changed.
    if !hasBegun { (next, earlierIdentity, last) = (1, nil, nil) }
    let (client, generation) = (stream.client, generation)
    let subject = "\(client.inbox)-reader-\(generation)"
    // Used on the loop's thread only.
    nonisolated(unsafe) weak let reader = self
    let loop = loop
    subscription = client.connection.subscribe(
      subject, headers: selection.headers,
      failed: { error in loop.execute { reader?.failed(error, generation) } },
      { subject, reply in loop.execute { reader?.received(reply, subject, generation) } })
    check(generation) { [weak self] in self?.create(generation) }
  }

  private func failed(_ error: BrokerError, _ generation: UInt64) {
    if generation == self.generation { interrupted(error) }
  }

  /// Whether the stream is the same, and still has the delivered messages, judging by the last of them.
  private func check(_ generation: UInt64, _ proceed: @escaping () -> Void) {
    guard created != nil || !hasBegun else { return checkLast(generation, proceed) }
    stream.extent { [weak self] answer in
      guard let self, generation == self.generation, !isOver else { return }
      switch answer {
      case .failure(let error): interrupted(error)
      case .success(let extent) where extent.created != created ?? extent.created:
        stop()
        handle(.recreated(extent.created))
      case .success(let extent):
        if !hasBegun { boundary = extent.lastSequence }
        checkLast(generation, proceed)
      }
    }
  }

  private func checkLast(_ generation: UInt64, _ proceed: @escaping () -> Void) {
    guard next > 1 else { return proceed() }
    stream.message(at: next - 1) { [weak self] answer in
      guard let self, generation == self.generation, !isOver else { return }
      switch answer {
      case .failure(let error): interrupted(error)
      case .success(let message?):
        guard isKnown(message), message.sequence < covered || message.time <= latestTime else { return rewound() }
        if last == nil { earlierIdentity = identify(message) }
        proceed()
      case .success(nil):
        // Purged or lost.
        stream.extent { [weak self] answer in
          guard let self, generation == self.generation, !isOver else { return }
          switch answer {
          case .failure(let error): interrupted(error)
          case .success(let extent) where extent.lastSequence + 1 < next: rewound()
          case .success: checkTimes(covered, next - 1, generation, proceed)
          }
        }
      }
    }
  }

  /// Finds out whether the last message in this range was stored later than all delivered ones. Each question at least
  /// halves the range, which may have very many removed messages.
  private func checkTimes(
    _ first: UInt64, _ last: UInt64, _ generation: UInt64, _ proceed: @escaping () -> Void
  ) {
    guard first <= last else { return proceed() }
    let middle = first + (last - first) / 2
    stream.message(of: "*", from: middle) { [weak self] answer in
      guard let self, generation == self.generation, !isOver else { return }
      switch answer {
      case .failure(let error): interrupted(error)
      case .success(let message?) where (middle...last).contains(message.sequence):
        guard message.time <= latestTime else { return rewound() }
        checkTimes(message.sequence + 1, last, generation, proceed)
      // Sequences begin at 1, and so does the range.
      case .success: checkTimes(first, middle - 1, generation, proceed)
      }
    }
  }

  private func isKnown(_ message: StoredMessage) -> Bool {
    guard let identity = last.map(identify) ?? earlierIdentity else { return true }
    return identity == identify(message)
  }

  private func rewound() {
    stop()
    handle(.rewound)
  }

  private func create(_ generation: UInt64) {
    let start =
      hasBegun
      ? "\"deliver_policy\":\"by_start_sequence\",\"opt_start_seq\":\(next)"
      : "\"deliver_policy\":\"last_per_subject\""
    let question = """
      {"stream_name":"\(stream.name)","config":{\(start),"headers_only":\(selection.headersOnly),\
      "ack_policy":"none","filter_subject":"\(stream.name).*","replay_policy":"instant","mem_storage":true,\
      "num_replicas":1,"inactive_threshold":\(Self.memory.nanoseconds)}}
      """
    MessageStream.ask(stream.client, "CONSUMER.CREATE.\(stream.name)", question) { [weak self] answer in
      guard let self, generation == self.generation, !isOver else { return }
      switch answer {
      case .failure(let error): interrupted(error)
      case .success(let reply):
        guard let name = reply.text("name") else { return interrupted(.invalidReply("a consumer without a name")) }
        consumer = name
        if reply.integer("num_pending") == 0 { caughtUp() }
        guard generation == self.generation, !isOver else { return }
        pull()
      }
    }
  }

  private func caughtUp() {
    guard hasBegun else { return continueBehindBoundary() }
    isInterrupted = false
    pauses.reset()
    handle(.caughtUp)
  }

  private func continueBehindBoundary() {
    hasBegun = true
    // If the broker has counted fewer messages than there are, the others follow now.
    next = min(next, boundary + 1)
    // The message before that may have been replaced as its subject's last one, so it is not compared. Of the messages
    // before it, not all were delivered.
    (last, latestTime, covered) = (nil, 0, next)
    restart(after: .zero)
  }

  private func pull() {
    guard let consumer, outstanding == 0, wanted > arrived.count, !isOver else { return }
    outstanding = min(wanted - arrived.count, Self.largestBatch)
    let question = "{\"batch\":\(outstanding),\"expires\":\(Self.expiry.nanoseconds)}"
    // Used on the loop's thread only.
    nonisolated(unsafe) weak let reader = self
    let (loop, generation) = (loop, generation)
    stream.client.connection.send(
      MessageContent(payload: Array(question.utf8)),
      to: "$JS.API.CONSUMER.MSG.NEXT.\(stream.name).\(consumer)",
      reply: "\(stream.client.inbox)-reader-\(generation)"
    ) { error in
      loop.execute { reader?.sendFailed(error, generation) }
    }
    watch()
  }

  private func sendFailed(_ error: BrokerError, _ generation: UInt64) {
    if generation == self.generation { interrupted(error) }
  }

  /// A broker that is silent for longer than a request's lifetime has forgotten it.
  private func watch() {
    if let timer { loop.cancel(timer) }
    timer = loop.schedule(after: Self.patience) { [weak self] in
      self?.timer = nil
      self?.interrupted(.timedOut)
    }
  }

  // MARK: Deliveries

  private func received(_ reply: BrokerReply, _ subject: String, _ generation: UInt64) {
    guard generation == self.generation, !isOver else { return }
    if reply.isNoResponders { return interrupted(.noResponders) }
    guard let place = reply.replySubject.flatMap(MessagePlace.init) else { return status(of: reply) }
    // The consumer is another one, or a message was lost on the way.
    let latest = arrived.last.map { $0.message.sequence + 1 } ?? 0
    guard place.delivered == delivered + 1, place.sequence >= latest else { return interrupted(.timedOut) }
    delivered += 1
    outstanding -= 1
    // A replica that lags behind the others may begin too early.
    if place.sequence >= next {
      let content = MessageContent(headers: reply.headers, payload: reply.payload)
      let message = StoredMessage(subject: subject, sequence: place.sequence, time: place.time, content: content)
      arrived.append((message, place.pending))
      passOn()
      guard generation == self.generation, !isOver else { return }
    }
    if outstanding > 0 {
      watch()
    } else {
      if let timer { loop.cancel(timer) }
      timer = nil
      pull()
    }
  }

  private func passOn() {
    let generation = generation
    while !isExamining, let (message, pending) = arrived.first {
      // The last messages of subjects have gaps between them.
      guard message.sequence == next || message.sequence == examined || !hasBegun || !stream.omitsMessages else {
        return examine(upTo: message.sequence)
      }
      guard hasBegun || message.sequence <= boundary else { return continueBehindBoundary() }
      arrived.removeFirst()
      next = message.sequence + 1
      wanted -= 1
      isInterrupted = false
      pauses.reset()
      (last, latestTime) = (message, max(latestTime, message.time))
      handle(.message(message, pending: pending))
      guard generation == self.generation, !isOver else { return }
      if pending == 0 { caughtUp() }
      guard generation == self.generation, !isOver else { return }
    }
  }

  /// Asks the stream for the first message from ``next`` on. It has to be the one with this sequence. With the greatest
  /// sequence, there has to be none.
  private func examine(upTo sequence: UInt64) {
    isExamining = true
    stream.message(of: "*", from: next) { [weak self, generation] answer in
      guard let self, generation == self.generation, !isOver else { return }
      isExamining = false
      switch answer {
      case .failure(let error): interrupted(error)
      case .success(nil) where sequence == .max:
        pull()
        caughtUp()
      case .success(let found?) where found.sequence >= sequence:
        examined = sequence
        passOn()
        guard generation == self.generation, !isOver else { return }
        pull()
      // The next consumer begins with the omitted message. A broker that does not have the arrived one is behind.
      case .success:
        let isFirst = pauses.isFirst
        let pause = pauses.next()
        restart(after: isFirst ? .zero : pause)
      }
    }
  }

  /// A status message of the broker: the request has expired, or the consumer is gone.
  private func status(of reply: BrokerReply) {
    switch reply.headers.first(where: { $0.name == "Status" })?.value {
    case "100": watch()
    case "404", "408":
      outstanding = 0
      // Nothing came for a while, although there may be messages.
      if !hasBegun { continueBehindBoundary() } else if arrived.isEmpty { examine(upTo: .max) } else { pull() }
    default: interrupted(.timedOut)
    }
  }
}

/// The place of a delivered message in its stream, taken from its reply subject:
/// `$JS.ACK.<stream>.<consumer>.<attempt>.<sequence>.<delivered>.<time>.<pending>`. Brokers may insert two more tokens
/// after `ACK`, and append others.
struct MessagePlace: Equatable {
  var sequence: UInt64
  /// How many messages the consumer has delivered, including this one.
  var delivered: UInt64
  /// When the message was stored, in nanoseconds since 1970.
  var time: Int64
  /// How many it still has.
  var pending: UInt64

  // Called for each message, so it makes no array of tokens.
  init?(_ replySubject: String) {
    let dot = UInt8(ascii: ".")
    let count = replySubject.utf8.reduce(1) { $0 + ($1 == dot ? 1 : 0) }
    guard count >= 9, replySubject.hasPrefix("$JS.ACK.") else { return nil }
    let first = count == 9 ? 5 : 7
    guard count >= first + 4 else { return nil }
    var rest = Substring(replySubject)
    func next() -> Substring {
      let end = rest.utf8.firstIndex(of: dot) ?? rest.endIndex
      defer { rest = Substring(rest.utf8[end...].dropFirst()) }
      return rest[..<end]
    }
    for _ in 0..<first { _ = next() }
    guard let sequence = UInt64(next()), let delivered = UInt64(next()), let time = Int64(next()),
      let pending = UInt64(next())
    else { return nil }
    (self.sequence, self.delivered, self.time, self.pending) = (sequence, delivered, time, pending)
  }
}
