// The transfers, and which of them run: a state machine without clock, disk or network.

internal import EventLoops
internal import TransferClient
internal import UploadClient

/// All transfers of a user. It takes events and returns actions, which the shell performs in order.
///
/// The shell keeps the queue from before an event until the database has stored the event's changes. If the database
/// refuses, the event has not happened.
package struct TransferQueue: Equatable, Sendable {
  package internal(set) var transfers: [Int64: Transfer] = [:]
  /// The transfers that run, or that were asked to stop and have not ended yet.
  package internal(set) var running: [Int64: Run] = [:]
  package private(set) var lastID: Int64
  /// Removed transfers by their keys, for a program that did not learn that one was accepted.
  package internal(set) var acknowledged: [String: AcknowledgedTransfer] = [:]
  /// Transfers that have given up their places, or could not begin, until they are due again.
  private var resting: [Int64: Rest] = [:]
  /// Transfers whose remains are deleted as soon as they do not run.
  package internal(set) var abandoned: [Int64: AbandonedTransfer] = [:]
  /// The ones whose remains are being deleted.
  var deleting: Set<Int64> = []
  /// The ones whose server did not answer, until it is asked again.
  var abandonedRests: [Int64: Rest] = [:]
  /// The results of downloads that were cancelled while they ran, or have no time left. The program receives the part
  /// when they no longer run.
  private var handingOut: [Int64: TransferResult] = [:]
  /// Nil until it is known. Transfers that depend on it wait until then.
  private var network: NetworkConditions?
  /// Why it cannot be determined, in words; nil if no attempt has failed.
  private var networkFailure: String?
  private var isShutDown = false
  /// Why the database rejects writes, and what to do, in words; nil if it works as far as is known. Meanwhile nothing
  /// that must be stored first begins or ends.
  package private(set) var shortage: String?
  /// Transfers that no longer run, and whose end the database has not stored. Their places are free for others.
  package private(set) var unstored: Set<Int64> = []

  package enum Run: Equatable, Sendable { case running, stopping }

  struct Rest: Equatable {
    /// In milliseconds since 1970.
    var end: Int64
    /// In milliseconds.
    var length: Int64

    /// The first and the longest rest of a transfer, in milliseconds.
    private static let lengths: ClosedRange<Int64> = 10_000...900_000

    /// Doubles the last rest.
    init(after last: Rest?, _ now: Int64) {
      length = last.map { min($0.length * 2, Self.lengths.upperBound) } ?? Self.lengths.lowerBound
      end = now.addingSaturated(length)
    }

    /// A rest that ends later than it can is one that began before the clock was set back.
    func isOver(_ now: Int64) -> Bool { end <= now || end > now.addingSaturated(length) }
  }

  let earlier: EarlierTimes
  /// How many unacknowledged results are kept.
  package var resultLimit = 10_000
  /// How long they are kept, in milliseconds.
  package static let resultAge: Int64 = 90 * 24 * 3_600_000

  /// The maximum number of transfers that run at once. The others wait in the order of their arrival.
  package static let limit = 4

  /// - Parameters:
  ///   - transfers: the transfers in the database.
  ///   - lastID: the highest number ever assigned.
  ///   - acknowledged: the ones whose keys are in the database.
  ///   - abandoned: the ones with remains.
  ///   - earlier: the times of earlier boots; nil if all of these times are.
  package init(
    _ transfers: [Transfer] = [], lastID: Int64 = 0, acknowledged: [AcknowledgedTransfer] = [],
    abandoned: [AbandonedTransfer] = [], earlier: EarlierTimes? = nil
  ) {
    self.earlier = earlier ?? EarlierTimes(transfers, acknowledged, abandoned)
    for one in abandoned { self.abandoned[one.transfer.id] = one }
    for transfer in acknowledged { self.acknowledged[transfer.key] = transfer }
    for transfer in transfers { self.transfers[transfer.id] = transfer }
    self.lastID = max(lastID, transfers.map(\.id).max() ?? 0)
  }

  /// Whether there is nothing to do until a program connects.
  package var isIdle: Bool {
    running.isEmpty && abandoned.isEmpty && !transfers.values.contains { $0.state == .active }
  }

  /// Whether a transfer depends on the kind of network.
  package var dependsOnNetwork: Bool { transfers.values.contains { !$0.hasEnded && $0.request.hasConditions } }

  /// What a transfer that does not run is waiting for, in words; nil if it waits for its place or its next attempt.
  package func awaited(_ transfer: Transfer) -> String? {
    if let shortage, unstored.contains(transfer.id) || transfer.request.kind == .download { return shortage }
    return obstacle(transfer)
  }

  /// The database rejects writes, or works again.
  package mutating func note(shortage: String?, unstored: Set<Int64>) {
    (self.shortage, self.unstored) = (shortage, unstored)
  }

  /// Why a transfer has to wait for another network, in words; nil if it does not.
  package func obstacle(_ transfer: Transfer) -> String? {
    let request = transfer.request
    guard request.hasConditions else { return nil }
    guard let network else {
      let reason = networkFailure.map { ": NetworkManager cannot be asked (\($0))" } ?? ""
      return "it waits until the kind of network is known" + reason
    }
    if network.isConstrained, !request.allowsConstrained { return "it waits for a network without low-data mode" }
    if network.isExpensive, !request.allowsExpensive || request.isDiscretionary {
      return "it waits for a network that is not metered"
    }
    return nil
  }

  /// The transfer that was accepted with a key; nil if there was none recently.
  package func id(ofKey key: String) -> Int64? {
    transfers.values.first { $0.request.key == key }?.id ?? acknowledged[key]?.id
  }

  /// Another attempt may succeed now, so no transfer rests any longer.
  package mutating func endRests() {
    for id in resting.keys { resting[id]?.end = .min }
    for id in abandonedRests.keys { abandonedRests[id]?.end = .min }
  }

  /// Nobody watches the kind of network, because no transfer depends on it. The next one waits until it is known.
  package mutating func forgetNetwork() { (network, networkFailure) = (nil, nil) }

  /// The progress of a running transfer. The database does not keep it.
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
    case .clockSet(let step): moveTimes(by: step, &actions)
    case .networkUnknown(let reason):
      guard network == nil, networkFailure != reason else { break }
      networkFailure = reason
      for transfer in transfers.values.sorted(by: { $0.id < $1.id })
      where transfer.state == .active && transfer.request.hasConditions {
        actions.append(.tell(transfer.id))
      }
    case .network(let conditions):
      networkFailure = nil
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
    // A program that did not receive the answer asks again.
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
      // The program may receive the part only when nobody writes into it any more. If the agent is killed before that,
      // the transfer is paused, and the program cancels it again.
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
    // It was acknowledged before, and the program did not learn that.
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

  /// Nobody is waiting for the oldest results any more, or there are too many.
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
    // The program has received what it wanted.
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

  // MARK: Running

  private mutating func finish(_ id: Int64, _ ending: Ending, _ now: Int64, _ actions: inout [Action]) {
    guard running.removeValue(forKey: id) != nil else { return }
    if abandoned[id] != nil {
      // It was cancelled, or had no time left, and may already be acknowledged.
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
    // A running transfer may leave remains that are not known yet.
    if let transfer = transfers[id], result.outcome != .completed, result.resumeData == nil {
      // A server that refuses an upload decides by itself what it keeps.
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

  /// The order in which transfers get places: first as they arrived, and then those that can wait, small ones first.
  private var order: [Int64] {
    func rank(_ transfer: Transfer) -> (Int, Int64, Int64) {
      guard transfer.request.isDiscretionary else { return (0, 0, transfer.id) }
      let sent = transfer.request.expectedToSend ?? transfer.size.map { Int64(clamping: $0) } ?? 0
      return (1, sent.addingSaturated(transfer.request.expectedToReceive ?? 0), transfer.id)
    }
    return transfers.values.map { (rank($0), $0.id) }.sorted { $0.0 < $1.0 }.map(\.1)
  }

  /// Ends transfers that have no time left, begins those that are due and have a place, and requests a wake-up for the
  /// rest.
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
      if let rest = resting[id], !rest.isOver(now) {
        wake(rest.end)
        continue
      }
      guard obstacle(transfer) == nil else { continue }
      // The part of a download is stored in the database before its first byte is written.
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

  /// A transfer has no time left. The program receives the part of a download that the agent keeps.
  private mutating func expire(_ transfer: Transfer, _ now: Int64, _ actions: inout [Action]) {
    let id = transfer.id
    var result = TransferResult(
      .failed, cause: "timedOut", message: "the transfer did not complete within its time limit")
    if transfer.request.isKept, running[id] != nil {
      // As for a cancelled one, the program receives the part when nobody writes into it any more.
      if handingOut[id] == nil { handingOut[id] = result }
      return stop(id, &actions)
    }
    result.byteCount = transfer.acknowledged
    if transfer.request.isKept { result.resumeData = transfer.knownPart }
    end(id, result, now, &actions)
    stop(id, &actions)
  }

  /// Transfers that wait for their next attempt make room for others that could run.
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
