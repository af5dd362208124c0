// Runs client and server against each other in memory, one event after another. Each event is drawn at random from
// those that may come next.

import HTTPMessages
import PropertyTesting

@testable import ResumableUploads

struct ModelWorld {
  /// The log of events in words. It is a class because it is written while the world is read.
  final class Trace { var lines: [String] = [] }

  let conditions: ModelConditions
  private let pattern: OffsetPattern
  private(set) var machine: UploadClientStateMachine
  private(set) var server: ModelServer
  var exchanges: [ModelExchange] = []
  private var exchangeCount = 0
  private var random: SplitMix64

  // MARK: The client's shell

  private(set) var head: UInt64 = 0
  private(set) var isFinished = false
  /// The oldest byte that the client still keeps.
  private(set) var released: UInt64 = 0
  /// The exchange under way. Messages on any other exchange are ignored.
  private(set) var current: Int?
  private var content: (position: UInt64, end: UInt64?, hasEnded: Bool) = (0, 0, true)
  private var waits = false
  private var awaited: UInt64?
  /// The upload resources that the client knows, with the base offset that it assumes for each.
  private(set) var parts: [(url: String, base: UInt64)] = []
  private(set) var gaps: [ClientNote] = []
  private(set) var breaks: [ClientNote] = []
  private(set) var outcome: UploadClientStateMachine.Action?

  var violation: String?
  let trace: Trace?

  init(seed: UInt64, traces: Bool, sabotage: Sabotage?) {
    random = SplitMix64(state: seed)
    conditions = ModelConditions(&random)
    pattern = OffsetPattern(seed: seed)
    machine = UploadClientStateMachine(conditions.configuration)
    server = ModelServer(
      limits: conditions.limits, awaitsDisk: conditions.awaitsDisk, joinsParts: conditions.joinsParts,
      pattern: pattern, sabotage: sabotage)
    trace = traces ? Trace() : nil
    let supply = supply
    perform(machine.start(supply))
  }

  func log(_ text: @autoclosure () -> String) { trace?.lines.append(text()) }

  private var supply: Supply { Supply(oldest: oldest, head: head, isFinished: isFinished) }

  /// A file can be read again, but bytes of a stream are lost once they are released.
  private var oldest: UInt64 { conditions.configuration.length == nil ? released : 0 }

  private mutating func perform(_ action: UploadClientStateMachine.Action) {
    for note in machine.takeNotes() {
      log("  client notes \(note)")
      switch note {
      case .created(let url, let base): parts.append((url, base))
      case .gap, .serverWentBack: gaps.append(note)
      case .newPart: breaks.append(note)
      default: break
      }
    }
    if machine.acknowledged > released {
      log("  client discards \(released)..<\(machine.acknowledged)")
      released = machine.acknowledged
    }
    (waits, awaited) = (false, nil)
    switch action {
    case .none: break
    case .send(let request): send(request)
    case .awaitBytes(let offset): awaited = offset
    case .wait: waits = true
    case .completed, .leftIncomplete, .fail, .unsupported:
      log("client is at its end: \(action)")
      outcome = action
    }
  }

  private mutating func send(_ request: ClientRequest) {
    if current != nil { violation = "the client has two requests under way (Concurrency)" }
    var summary = RequestSummary.Content.absent
    switch request.content {
    case .absent: content = (0, 0, true)
    case .empty:
      summary = .sized(0)
      var start = machine.base
      if case .appending(let append) = machine.state { start = append.start }
      content = (start, start, false)
    case .bytes(let start, let maximum):
      if start < oldest {
        violation = "the client wants to send from \(start), which it discarded: it has \(oldest) and newer"
      }
      content = (start, maximum.map { start + $0 }, false)
      summary = .unsized
      // When the stream has ended, the size of the content is known.
      if isFinished, conditions.sizesContent {
        content.end = min(content.end ?? head, head)
        summary = .sized((content.end ?? head) - start)
      }
    }
    let sent = ModelRequest(
      method: request.method ?? "POST", url: request.url, fields: request.fields, content: summary)
    exchangeCount += 1
    current = exchangeCount
    let messages: [Upstream] = content.hasEnded ? [.head(sent), .end] : [.head(sent)]
    exchanges.append(ModelExchange(number: exchangeCount, request: sent, up: messages, sent: messages))
    log("client sends #\(exchangeCount) \(sent.method) \(sent.url ?? "/") \(Self.text(sent.fields)) \(summary)")
  }

  static func text(_ fields: HeaderFields) -> String {
    fields.without([InteropVersion.fieldName]).all.filter { $0.name.hasPrefix("upload-") }
      .map { "\($0.name.dropFirst(7)): \($0.value)" }.joined(separator: ", ")
  }

  func place(_ number: Int) -> Int? { exchanges.firstIndex { $0.number == number } }

  private mutating func push(_ message: Upstream) {
    guard let current, let place = place(current) else { return }
    exchanges[place].sent.append(message)
    if exchanges[place].isServerThere { exchanges[place].up.append(message) }
  }

  /// The client abandons the current exchange. Messages under way on it may still arrive.
  mutating func leaveCurrent(closes: Bool) {
    guard let number = current, let place = place(number) else { return }
    exchanges[place].isClientThere = false
    exchanges[place].down = []
    if closes { exchanges[place].up.append(.closed) }
    current = nil
  }

  mutating func interrupt(closes: Bool) {
    guard current != nil else { return }
    leaveCurrent(closes: closes)
    log("client gives up its request, having sent up to \(content.position)")
    perform(machine.interrupted(sentUpTo: content.position))
  }

  // MARK: Events

  enum Event: Equatable {
    case grow, hand, endContent, goOn, bytesAreReady, giveUp
    case up(Int)
    case down(Int)
    case startSync(Int)
    case endSync(Int)
    case progress(Int)
    case respond(Int)
  }

  private var events: [Event] {
    var events: [Event] = []
    if !isFinished { events.append(.grow) }
    if waits { events.append(.goOn) }
    if let awaited, isFinished || head >= awaited { events.append(.bytesAreReady) }
    if let current, let place = place(current) {
      if !content.hasEnded {
        if content.position < min(head, content.end ?? .max) { events += [.hand, .hand] }
        if mayEndContent { events.append(.endContent) }
      }
      let exchange = exchanges[place]
      let isIdle = exchange.down.isEmpty && (exchange.up.isEmpty || !exchange.isServerThere)
      if isIdle, !exchange.isServerThere || (content.hasEnded && !server.owes(current)) { events.append(.giveUp) }
    }
    for exchange in exchanges {
      if exchange.isServerThere && !exchange.up.isEmpty { events.append(.up(exchange.number)) }
      if exchange.isClientThere && !exchange.down.isEmpty { events.append(.down(exchange.number)) }
    }
    for (index, resource) in server.resources.enumerated() {
      if server.canStartSync(index) { events.append(.startSync(index)) }
      if resource.syncing != nil { events.append(.endSync(index)) }
      if resource.transfer != nil { events.append(.progress(index)) }
      if resource.isResponding { events.append(.respond(index)) }
    }
    return events
  }

  /// A live append may roll over whenever it is large enough, but a completing append must bring all bytes.
  private var mayEndContent: Bool {
    if let end = content.end, content.position == end { return true }
    if isFinished && content.position == head { return true }
    guard case .appending(let append) = machine.state, !append.completes, !sizes else { return false }
    return content.position - append.start >= max(1, machine.limits.minimumAppendSize ?? 1)
  }

  /// Whether the current request's content must have a known size.
  private var sizes: Bool {
    guard let current, let place = place(current), case .sized = exchanges[place].request.content else { return false }
    return true
  }

  /// Performs one event. Returns false when no event is possible any more.
  mutating func step() -> Bool {
    guard let event = events.randomElement(using: &random) else { return false }
    perform(event)
    collect()
    return true
  }

  private mutating func perform(_ event: Event) {
    let now = supply
    switch event {
    case .grow:
      head = min(conditions.length, head + UInt64(random.size(upTo: 200)))
      isFinished = head == conditions.length
      log("stream has \(head) bytes\(isFinished ? ", which are all" : "")")
    case .goOn:
      perform(machine.goOn(now))
      if waits { violation = "a pause is followed by a pause" }
    case .bytesAreReady: perform(machine.bytesAreReady(now))
    case .giveUp: interrupt(closes: random.chance(50))
    case .hand:
      let available = min(head, content.end ?? .max) - content.position
      let count = min(available, UInt64(random.size(upTo: 200)))
      push(.bytes((0..<count).map { pattern[content.position + $0] }))
      content.position += count
    case .endContent:
      content.hasEnded = true
      push(.end)
    case .up(let number): deliverUp(number)
    case .down(let number): deliverDown(number)
    case .startSync(let index): server.startSync(index)
    case .endSync(let index): server.endSync(index)
    case .progress(let index): server.tellProgress(index)
    case .respond(let index): server.respond(index)
    }
  }

  /// Delivers the next message that is under way to the server.
  private mutating func deliverUp(_ number: Int) {
    guard let place = place(number), !exchanges[place].up.isEmpty else { return }
    let message = exchanges[place].up.removeFirst()
    if case .head(let request) = message, let other = server.exchangeAtWork(request), other != number {
      // First delivers any number of the messages that are under way on the active connection.
      for _ in 0..<Int.random(in: 0...(self.place(other).map { exchanges[$0].up.count } ?? 0), using: &random) {
        deliverUp(other)
        collect()
      }
    }
    switch message {
    case .head: log("server gets #\(number)")
    case .bytes(let bytes): log("server gets \(bytes.count) bytes on #\(number)")
    case .end: log("server gets the end of #\(number)")
    case .closed: log("server sees #\(number) closed")
    }
    if message == .closed { exchanges[place].isServerThere = false }
    server.receive(message, on: number)
  }

  /// Sends the server's messages, and records any violation that it found.
  mutating func collect() {
    for (number, message) in server.takeOutput() {
      switch message {
      case .interim(let fields): log("server answers #\(number) 104 \(Self.text(fields))")
      case .final(let answer): log("server answers #\(number) \(answer.status) \(Self.text(answer.fields))")
      case .closed: log("server closes #\(number)")
      }
      guard let place = place(number) else { continue }
      if exchanges[place].isClientThere { exchanges[place].down.append(message) }
      if message == .closed {
        exchanges[place].isServerThere = false
        exchanges[place].up = []
      }
    }
    exchanges.removeAll { $0.number != current && (!$0.isServerThere || $0.up.isEmpty) }
    if violation == nil { violation = server.violation }
    if violation == nil { checkReleased() }
  }

  private mutating func deliverDown(_ number: Int) {
    guard let place = place(number), !exchanges[place].down.isEmpty else { return }
    let message = exchanges[place].down.removeFirst()
    guard number == current else { return }
    switch message {
    case .interim(let fields):
      let answer = ClientAnswer(status: 104, fields: fields, location: fields["Location"])
      if let failure = machine.received(interim: answer, sentUpTo: content.position) {
        violation = "the client breaks off at a sound 104: \(failure)"
      }
      perform(interimEffects: ())
    case .final(let answer):
      let early = !content.hasEnded
      log("client gets \(answer.status) \(Self.text(answer.fields)) on #\(number)\(early ? ", early" : "")")
      leaveCurrent(closes: true)
      let found = ClientAnswer(
        status: answer.status, fields: answer.fields, location: answer.fields["Location"], isEarly: early)
      let now = supply
      perform(machine.answered(found, sentUpTo: content.position, now))
    case .closed:
      log("client sees #\(number) closed")
      interrupt(closes: true)
    }
  }

  /// No action follows an interim response, but bytes and notes may.
  private mutating func perform(interimEffects: Void) {
    let (waited, awaitedBefore) = (waits, awaited)
    perform(UploadClientStateMachine.Action.none)
    (waits, awaited) = (waited, awaitedBefore)
  }

  // MARK: Faults

  mutating func restartServer(isPowerFailure: Bool, tells: Bool, _ random: inout SplitMix64) {
    let loses = isPowerFailure && (conditions.awaitsDisk || conditions.losesAcknowledged)
    server.restart(isPowerFailure: loses, &random)
    for place in exchanges.indices {
      exchanges[place].isServerThere = false
      exchanges[place].up = []
      // The kernel reports the end, unless the whole machine is gone.
      if exchanges[place].isClientThere, tells { exchanges[place].down.append(.closed) }
    }
    checkReleased()
  }

  mutating func expire(_ index: Int) { server.expire(index) }
  mutating func respondEarly(_ index: Int) { server.respond(index) }

  mutating func replay(_ messages: [Upstream], _ request: ModelRequest) -> Int {
    exchangeCount += 1
    var exchange = ModelExchange(number: exchangeCount, request: request, up: messages, sent: [])
    exchange.isClientThere = false
    exchanges.append(exchange)
    return exchangeCount
  }
}
