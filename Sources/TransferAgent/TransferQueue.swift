// Which transfers there are, and which of them run: a state machine without clock, disk or network.

internal import EventLoops
internal import TransferClient
internal import UploadClient

/// All transfers of a user. An event comes in, and actions come out; the shell performs them in their order.
///
/// The shell keeps the queue from before an event until the database has what the event changed. If the database
/// refuses, the event has not happened.
package struct TransferQueue: Equatable, Sendable {
  package private(set) var transfers: [Int64: Transfer] = [:]
  /// Whether a transfer runs, or has been asked to stop and has not ended yet.
  package internal(set) var running: [Int64: Run] = [:]
  package private(set) var lastID: Int64
  /// By their keys: those that are not kept any more, for a program that has not heard that one was accepted.
  package private(set) var acknowledged: [String: AcknowledgedTransfer] = [:]
  /// Those that have given their place up, or could not begin, until it is their turn again.
  private var resting: [Int64: Rest] = [:]
  /// What is left of them is to be deleted, once they do not run any more.
  package internal(set) var abandoned: [Int64: AbandonedTransfer] = [:]
  /// Those of them that are being deleted.
  var deleting: Set<Int64> = []
  /// Those of them whose server did not answer, until it is asked again.
  var abandonedRests: [Int64: Rest] = [:]
  /// What downloads end with, and the part that their program gets, when they do not run any more: they were cancelled
  /// while they ran, or have no time left.
  private var handingOut: [Int64: TransferResult] = [:]
  /// Nil until it is known. What depends on it waits so long.
  private var network: NetworkConditions?
  private var isShutDown = false
  /// Why the database takes nothing, and what to do, in words; nil if it does, as far as is known. Nothing that has to be
  /// stored first begins or ends meanwhile.
  package private(set) var shortage: String?
  /// Those that do not run any more, and whose end the database has not taken. Others have their places.
  package private(set) var unstored: Set<Int64> = []

  package enum Run: Equatable, Sendable { case running, stopping }

  struct Rest: Equatable {
    /// In milliseconds since 1970.
    var end: Int64
    /// In milliseconds.
    var length: Int64

    /// How long a transfer rests at first, and at most, in milliseconds.
    private static let lengths: ClosedRange<Int64> = 10_000...900_000

    /// Twice as long as the last one.
    init(after last: Rest?, _ now: Int64) {
      length = last.map { min($0.length * 2, Self.lengths.upperBound) } ?? Self.lengths.lowerBound
      end = now.addingSaturated(length)
    }
  }

  /// How many results are kept that nobody has acknowledged.
  package var resultLimit = 10_000
  /// How long they are kept, in milliseconds.
  package static let resultAge: Int64 = 90 * 24 * 3_600_000

  /// The most transfers that run at once. The others wait for their turn, in the order in which they came.
  package static let limit = 4

  /// - Parameters:
  ///   - transfers: what the database has.
  ///   - lastID: the highest number that was ever given.
  ///   - acknowledged: those whose keys the database has.
  ///   - abandoned: those of which something is left.
  package init(
    _ transfers: [Transfer] = [], lastID: Int64 = 0, acknowledged: [AcknowledgedTransfer] = [],
    abandoned: [AbandonedTransfer] = []
  ) {
    for one in abandoned { self.abandoned[one.transfer.id] = one }
    for transfer in acknowledged { self.acknowledged[transfer.key] = transfer }
    for transfer in transfers { self.transfers[transfer.id] = transfer }
    self.lastID = max(lastID, transfers.map(\.id).max() ?? 0)
  }

  /// Whether there is nothing to do until somebody comes.
  package var isIdle: Bool {
    running.isEmpty && abandoned.isEmpty && !transfers.values.contains { $0.state == .active }
  }

  /// Whether a transfer depends on the kind of network.
  package var dependsOnNetwork: Bool { transfers.values.contains { !$0.hasEnded && $0.request.hasConditions } }

  /// What a transfer waits for that does not run, in words; nil for its turn, or its next attempt.
  package func awaited(_ transfer: Transfer) -> String? {
    if let shortage, unstored.contains(transfer.id) || transfer.request.kind == .download { return shortage }
    return obstacle(transfer)
  }

  /// The database takes nothing, or again what it gets.
  package mutating func note(shortage: String?, unstored: Set<Int64>) {
    (self.shortage, self.unstored) = (shortage, unstored)
  }

  /// Why a transfer has to wait for another network, in words; nil if it does not.
  package func obstacle(_ transfer: Transfer) -> String? {
    let request = transfer.request
    guard request.hasConditions else { return nil }
    guard let network else { return "it waits until the kind of network is known" }
    if network.isConstrained, !request.allowsConstrained { return "it waits for a network without low-data mode" }
    if network.isExpensive, !request.allowsExpensive || request.isDiscretionary {
      return "it waits for a network that is not metered"
    }
    return nil
  }

  /// The transfer that was accepted with a key; nil if there was none lately.
  package func id(ofKey key: String) -> Int64? {
    transfers.values.first { $0.request.key == key }?.id ?? acknowledged[key]?.id
  }

  /// Another attempt may succeed now: nothing rests any longer.
  package mutating func endRests() {
    for id in resting.keys { resting[id]?.end = .min }
    for id in abandonedRests.keys { abandonedRests[id]?.end = .min }
  }

  /// The progress of a transfer that runs. The database does not keep it.
  package mutating func note(
    _ id: Int64, acknowledged: UInt64? = nil, contentStart: UInt64? = nil, size: UInt64? = nil, trouble: String?? = nil
  ) {
    if let contentStart { transfers[id]?.contentStart = contentStart }
    if let size { transfers[id]?.size = size }
    if let acknowledged { transfers[id]?.acknowledged = acknowledged }
    if let trouble { transfers[id]?.trouble = trouble }
    if case .some(.none) = trouble { resting[id] = nil }
  }

  /// - Parameter now: in milliseconds since 1970.
  package mutating func handle(_ event: Event, now: Int64) -> [Action] {
    var actions: [Action] = []
    switch event {
    case .submitted(let request, let version, let size): submit(request, version, size, now, &actions)
    case .pause(let id): pause(id, &actions)
    case .resume(let id): resume(id, &actions)
    case .cancel(let id, let keeps): cancel(id, keeps, now, &actions)
    case .acknowledge(let id): acknowledge(id, now, &actions)
    case .abandoned(let id, let isDone): noteAbandoned(id, isDone, now, &actions)
    case .created(let id, let resumeData):
      if abandoned[id] != nil, running[id] != nil { abandon(id, resumeData: resumeData, &actions) }
      guard let transfer = transfers[id], !transfer.hasEnded, transfer.resumeData != resumeData else { break }
      transfers[id]?.resumeData = resumeData
      store(id, &actions)
    case .finished(let id, let ending): finish(id, ending, now, &actions)
    case .timeCame: break
    case .network(let conditions):
      guard conditions != network else { break }
      network = conditions
      for transfer in transfers.values.sorted(by: { $0.id < $1.id }) where transfer.state == .active {
        if obstacle(transfer) != nil { stop(transfer.id, &actions) }
        if transfer.request.hasConditions { actions.append(.tell(transfer.id)) }
      }
    case .shutdown:
      isShutDown = true
      for id in running.keys.sorted() { stop(id, &actions) }
    }
    begin(now, &actions)
    return actions
  }

  // MARK: Orders

  private mutating func submit(
    _ request: TransferRequest, _ version: String, _ size: UInt64?, _ now: Int64, _ actions: inout [Action]
  ) {
    // A program that did not hear the answer asks again.
    if let known = id(ofKey: request.key) {
      actions.append(.accept(known))
      return
    }
    forgetResults(now, &actions)
    lastID += 1
    transfers[lastID] = Transfer(id: lastID, request: request, version: version, size: size, created: now)
    store(lastID, &actions)
    actions += [.accept(lastID), .tell(lastID)]
  }

  private mutating func pause(_ id: Int64, _ actions: inout [Action]) {
    guard let transfer = known(id, &actions) else { return }
    if transfer.state == .active {
      transfers[id]?.state = .paused
      transfers[id]?.trouble = nil
      resting[id] = nil
      store(id, &actions)
      stop(id, &actions)
      actions.append(.tell(id))
    }
    actions.append(.done)
  }

  private mutating func resume(_ id: Int64, _ actions: inout [Action]) {
    guard let transfer = known(id, &actions) else { return }
    switch transfer.state {
    case .paused:
      transfers[id]?.state = .active
      store(id, &actions)
      actions.append(.tell(id))
    case .active where running[id] == .running: actions.append(.retry(id))
    case .active: resting[id] = nil
    case .ended: break
    }
    actions.append(.done)
  }

  private mutating func cancel(_ id: Int64, _ keeps: Bool, _ now: Int64, _ actions: inout [Action]) {
    guard let transfer = known(id, &actions) else { return }
    if !transfer.hasEnded, keeps, transfer.request.kind == .download, running[id] != nil {
      // The part is not the program's before nobody writes into it. If the agent is killed until then, the transfer is
      // paused, and the program cancels it once more.
      handingOut[id] = TransferResult(.cancelled)
      transfers[id]?.state = .paused
      store(id, &actions)
      stop(id, &actions)
    } else if !transfer.hasEnded {
      var result = TransferResult(.cancelled)
      result.byteCount = transfer.acknowledged
      if keeps, transfer.request.kind == .download { result.resumeData = transfer.knownPart }
      end(id, result, now, &actions)
      stop(id, &actions)
    }
    actions.append(.done)
  }

  private mutating func acknowledge(_ id: Int64, _ now: Int64, _ actions: inout [Action]) {
    // It was acknowledged before, and the program did not hear that.
    guard let transfer = transfers[id] else {
      if (1...max(1, lastID)).contains(id) { actions.append(.done) } else { _ = known(id, &actions) }
      return
    }
    guard transfer.hasEnded else {
      actions.append(.refuse(.invalid, "transfer \(id) has not ended. Cancel it first."))
      return
    }
    remove(transfer, now, &actions)
    actions.append(.done)
  }

  /// Nobody awaits the oldest results any more, or there are too many.
  private mutating func forgetResults(_ now: Int64, _ actions: inout [Action]) {
    let ended = transfers.values.filter(\.hasEnded).sorted {
      ($0.result?.ended ?? 0, $0.id) < ($1.result?.ended ?? 0, $1.id)
    }
    let excess = ended.count - resultLimit
    for (index, transfer) in ended.enumerated() {
      let isOld = (transfer.result?.ended ?? 0).addingSaturated(Self.resultAge) <= now
      if index < excess || isOld { remove(transfer, now, &actions) }
    }
  }

  private mutating func remove(_ transfer: Transfer, _ now: Int64, _ actions: inout [Action]) {
    let id = transfer.id
    transfers[id] = nil
    // The program has what it wanted of it.
    if transfer.request.isKept, transfer.result?.outcome == .completed { abandon(transfer, now, &actions) }
    let past = AcknowledgedTransfer(key: transfer.request.key, id: id, time: now)
    acknowledged[past.key] = past
    actions.append(.remove(id, past))
    var old = acknowledged.values.filter { $0.time < now - AcknowledgedTransfer.age }
    if old.isEmpty, acknowledged.count > AcknowledgedTransfer.limit {
      old = acknowledged.values.min { ($0.time, $0.id) < ($1.time, $1.id) }.map { [$0] } ?? []
    }
    for one in old.sorted(by: { $0.id < $1.id }) {
      acknowledged[one.key] = nil
      actions.append(.forget(key: one.key))
    }
  }

  private func known(_ id: Int64, _ actions: inout [Action]) -> Transfer? {
    if let transfer = transfers[id] { return transfer }
    actions.append(.refuse(.unknown, "transfer \(id) does not exist"))
    return nil
  }

  // MARK: What runs

  private mutating func finish(_ id: Int64, _ ending: Ending, _ now: Int64, _ actions: inout [Action]) {
    guard running.removeValue(forKey: id) != nil else { return }
    if abandoned[id] != nil {
      // It was cancelled, or had no time left, and may be acknowledged by now.
      if case .stopped(let data) = ending { abandon(id, resumeData: data, &actions) }
      if case .completed = ending { abandon(id, resumeData: nil, &actions) }
      return
    }
    guard let transfer = transfers[id] else { return }
    let handedOut = handingOut.removeValue(forKey: id)
    if resting[id] == nil { transfers[id]?.trouble = nil }
    switch ending {
    case .completed(let result), .failed(let result): end(id, result, now, &actions)
    case .stopped(let data):
      if var result = handedOut {
        (result.byteCount, result.resumeData) = (transfer.acknowledged, data)
        return end(id, result, now, &actions)
      }
      guard data != transfer.resumeData else { break }
      transfers[id]?.resumeData = data
      store(id, &actions)
    case .postponed(let words):
      if var result = handedOut {
        (result.byteCount, result.resumeData) = (transfer.acknowledged, transfer.knownPart)
        return end(id, result, now, &actions)
      }
      guard transfer.state == .active else { break }
      rest(id, now)
      transfers[id]?.trouble = words
      actions.append(.tell(id))
    }
  }

  private mutating func rest(_ id: Int64, _ now: Int64) {
    resting[id] = Rest(after: resting[id], now)
  }

  private mutating func end(_ id: Int64, _ result: TransferResult, _ now: Int64, _ actions: inout [Action]) {
    var result = result
    result.ended = now
    // Of what runs, something may be left that nobody knows of yet.
    if let transfer = transfers[id], result.outcome != .completed, result.resumeData == nil {
      // A server that refuses an upload decides itself what it keeps of it.
      let isRefused = transfer.request.kind == .upload && result.outcome == .failed && result.cause != "timedOut"
      if !isRefused { abandon(transfer, now, &actions) }
    }
    (resting[id], handingOut[id]) = (nil, nil)
    transfers[id]?.state = .ended(result)
    transfers[id]?.removeSecrets()
    transfers[id]?.trouble = nil
    store(id, &actions)
    actions.append(.tell(id))
  }

  private mutating func stop(_ id: Int64, _ actions: inout [Action]) {
    guard running[id] == .running else { return }
    running[id] = .stopping
    actions.append(.stop(id))
  }

  private func store(_ id: Int64, _ actions: inout [Action]) {
    if let transfer = transfers[id] { actions.append(.store(transfer.stored)) }
  }

  /// In which order transfers get room: as they came, and then those that can wait, small ones first.
  private var order: [Int64] {
    func rank(_ transfer: Transfer) -> (Int, Int64, Int64) {
      guard transfer.request.isDiscretionary else { return (0, 0, transfer.id) }
      let sent = transfer.request.expectedToSend ?? transfer.size.map { Int64(clamping: $0) } ?? 0
      return (1, sent.addingSaturated(transfer.request.expectedToReceive ?? 0), transfer.id)
    }
    return transfers.values.map { (rank($0), $0.id) }.sorted { $0.0 < $1.0 }.map(\.1)
  }

  /// Ends what has no time left, begins what is due and has room, and asks to be woken for the rest.
  private mutating func begin(_ now: Int64, _ actions: inout [Action]) {
    guard !isShutDown else { return }
    var next: Int64?
    func wake(_ time: Int64) { next = min(next ?? time, time) }
    var waiting = 0
    delete(now, &actions).map(wake)
    for id in order {
      guard let transfer = transfers[id], !transfer.hasEnded else { continue }
      if let deadline = transfer.request.deadline, shortage == nil {
        guard deadline > now else {
          expire(transfer, now, &actions)
          delete(now, &actions).map(wake)
          continue
        }
        wake(deadline)
      }
      guard transfer.state == .active, running[id] == nil else { continue }
      if let earliest = transfer.request.earliestBegin, earliest > now {
        wake(earliest)
        continue
      }
      if let rest = resting[id], rest.end > now {
        wake(rest.end)
        continue
      }
      guard obstacle(transfer) == nil else { continue }
      // The part of a download is stored before its first byte is written.
      guard shortage == nil || transfer.request.kind == .upload else { continue }
      guard running.count - unstored.count < Self.limit else {
        waiting += 1
        continue
      }
      running[id] = .running
      transfers[id]?.trouble = nil
      actions.append(.start(transfer))
    }
    makeRoom(for: waiting, now, &actions)
    if let next { actions.append(.wake(at: next)) }
  }

  /// A transfer has no time left. The program gets the part of a download that the agent keeps.
  private mutating func expire(_ transfer: Transfer, _ now: Int64, _ actions: inout [Action]) {
    let id = transfer.id
    var result = TransferResult(
      .failed, cause: "timedOut", message: "the transfer did not complete within its time limit")
    if transfer.request.isKept, running[id] != nil {
      // As where it is cancelled: the part is the program's when nobody writes into it any more.
      if handingOut[id] == nil { handingOut[id] = result }
      return stop(id, &actions)
    }
    result.byteCount = transfer.acknowledged
    if transfer.request.isKept { result.resumeData = transfer.knownPart }
    end(id, result, now, &actions)
    stop(id, &actions)
  }

  /// Those that wait for their next attempt make room for others that could run.
  private mutating func makeRoom(for waiting: Int, _ now: Int64, _ actions: inout [Action]) {
    let stopping = running.count { $0.value == .stopping && !unstored.contains($0.key) }
    let idle = running.keys.sorted().filter {
      running[$0] == .running && transfers[$0]?.trouble != nil && !unstored.contains($0)
    }
    for id in idle.prefix(max(0, waiting - stopping)) {
      rest(id, now)
      stop(id, &actions)
    }
  }
}
