// Which transfers there are, and which of them run: a state machine without clock, disk or network.

internal import EventLoops
package import TransferClient

/// All transfers of a user. An event comes in, and actions come out; the shell performs them in their order.
///
/// The shell keeps the queue from before an event until the database has what the event changed. If the database
/// refuses, the event has not happened.
package struct TransferQueue: Equatable, Sendable {
  package enum Event: Equatable, Sendable {
    /// The file has been looked at: its version and its size.
    case submitted(TransferRequest, version: String, size: UInt64)
    case pause(Int64)
    case resume(Int64)
    case cancel(Int64)
    case acknowledge(Int64)
    /// The upload has a resource at the server (`ResumeData`).
    case created(Int64, resumeData: String)
    /// What ran has ended.
    case finished(Int64, Ending)
    /// Time has passed.
    case timeCame
    /// The network is of this kind now.
    case network(NetworkConditions)
    /// The agent ends: what runs is stopped, and nothing begins.
    case shutdown
  }

  /// How what ran has ended.
  package enum Ending: Equatable, Sendable {
    case completed(TransferResult)
    case failed(TransferResult)
    /// It was stopped. The resume data is nil if there is nothing at the server to continue.
    case stopped(resumeData: String?)
    /// This machine cannot run it now, for lack of descriptors or the like; why, in words.
    case postponed(String)
  }

  package enum Action: Equatable, Sendable {
    /// In the database, before anything that follows.
    case store(Transfer)
    /// It is not kept any more, and its key is.
    case remove(Int64, AcknowledgedTransfer)
    /// The key is not kept any more, either.
    case forget(key: String)
    case accept(Int64)
    case refuse(AgentAnswer.Refusal, String)
    case done
    case start(Transfer)
    /// It says ``Event/finished(_:_:)`` when it has ended.
    case stop(Int64)
    /// It runs and waits for its next attempt: that is due now.
    case retry(Int64)
    /// The server is asked to forget what it has. Nobody waits for that.
    case abandon(Transfer)
    /// Whoever watches the session is told.
    case tell(Int64)
    /// At this time, in milliseconds since 1970, comes ``Event/timeCame``.
    case wake(at: Int64)
  }

  package private(set) var transfers: [Int64: Transfer] = [:]
  /// Whether a transfer runs, or has been asked to stop and has not ended yet.
  package private(set) var running: [Int64: Run] = [:]
  package private(set) var lastID: Int64
  /// By their keys: those that are not kept any more, for a program that has not heard that one was accepted.
  package private(set) var acknowledged: [String: AcknowledgedTransfer] = [:]
  /// Those that have given their place up, or could not begin, until it is their turn again.
  private var resting: [Int64: Rest] = [:]
  /// Those that ended while they ran, as they were before: what the server has of them is to be deleted.
  private var leaving: [Int64: Transfer] = [:]
  /// Nil until it is known. What depends on it waits so long.
  private var network: NetworkConditions?
  private var isShutDown = false

  package enum Run: Equatable, Sendable { case running, stopping }

  private struct Rest: Equatable {
    /// In milliseconds since 1970.
    var end: Int64
    /// In milliseconds.
    var length: Int64
  }

  /// How long a transfer rests at first, and at most, in milliseconds.
  private static let restLength: ClosedRange<Int64> = 10_000...900_000

  /// The most transfers that run at once. The others wait for their turn, in the order in which they came.
  package static let limit = 4

  /// - Parameters:
  ///   - transfers: what the database has.
  ///   - lastID: the highest number that was ever given.
  ///   - acknowledged: those whose keys the database has.
  package init(_ transfers: [Transfer] = [], lastID: Int64 = 0, acknowledged: [AcknowledgedTransfer] = []) {
    for transfer in acknowledged { self.acknowledged[transfer.key] = transfer }
    for transfer in transfers { self.transfers[transfer.id] = transfer }
    self.lastID = max(lastID, transfers.map(\.id).max() ?? 0)
  }

  /// Whether there is nothing to do until somebody comes.
  package var isIdle: Bool { running.isEmpty && !transfers.values.contains { $0.state == .active } }

  /// Whether a transfer depends on the kind of network.
  package var dependsOnNetwork: Bool { transfers.values.contains { !$0.hasEnded && $0.request.hasConditions } }

  /// Why a transfer has to wait for another network, in words; nil if it does not.
  package func obstacle(_ transfer: Transfer) -> String? {
    let request = transfer.request
    guard request.hasConditions else { return nil }
    guard let network else { return "it waits until the kind of network is known" }
    if network.isConstrained, !request.allowsConstrained { return "it waits until the network need not be spared" }
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
  package mutating func endRests() { for id in resting.keys { resting[id]?.end = .min } }

  /// The progress of a transfer that runs. The database does not keep it.
  package mutating func note(_ id: Int64, acknowledged: UInt64? = nil, trouble: String?? = nil) {
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
    case .cancel(let id): cancel(id, now, &actions)
    case .acknowledge(let id): acknowledge(id, now, &actions)
    case .created(let id, let resumeData):
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
    _ request: TransferRequest, _ version: String, _ size: UInt64, _ now: Int64, _ actions: inout [Action]
  ) {
    // A program that did not hear the answer asks again.
    if let known = id(ofKey: request.key) {
      actions.append(.accept(known))
      return
    }
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

  private mutating func cancel(_ id: Int64, _ now: Int64, _ actions: inout [Action]) {
    guard let transfer = known(id, &actions) else { return }
    if !transfer.hasEnded {
      var result = TransferResult(.cancelled)
      result.byteCount = transfer.acknowledged
      end(id, result, now, &actions)
      // What runs ends first: it would make the server's upload anew.
      if running[id] == nil, transfer.resumeData != nil { actions.append(.abandon(transfer)) }
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
      actions.append(.refuse(.invalid, "transfer \(id) has not ended: cancel it first"))
      return
    }
    transfers[id] = nil
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
    actions.append(.done)
  }

  private func known(_ id: Int64, _ actions: inout [Action]) -> Transfer? {
    if let transfer = transfers[id] { return transfer }
    actions.append(.refuse(.unknown, "there is no transfer \(id)"))
    return nil
  }

  // MARK: What runs

  private mutating func finish(_ id: Int64, _ ending: Ending, _ now: Int64, _ actions: inout [Action]) {
    guard running.removeValue(forKey: id) != nil else { return }
    if var transfer = leaving.removeValue(forKey: id) {
      // It was cancelled, or had no time left, and may be acknowledged by now.
      if case .stopped(let data?) = ending {
        transfer.resumeData = data
        actions.append(.abandon(transfer))
      }
      return
    }
    guard let transfer = transfers[id] else { return }
    if resting[id] == nil { transfers[id]?.trouble = nil }
    switch ending {
    case .completed(let result), .failed(let result): end(id, result, now, &actions)
    case .stopped(let data):
      guard data != transfer.resumeData else { break }
      transfers[id]?.resumeData = data
      store(id, &actions)
    case .postponed(let words):
      guard transfer.state == .active else { break }
      rest(id, now)
      transfers[id]?.trouble = words
      actions.append(.tell(id))
    }
  }

  /// Twice as long as the last time.
  private mutating func rest(_ id: Int64, _ now: Int64) {
    let length = resting[id].map { min($0.length * 2, Self.restLength.upperBound) } ?? Self.restLength.lowerBound
    resting[id] = Rest(end: now.addingSaturated(length), length: length)
  }

  private mutating func end(_ id: Int64, _ result: TransferResult, _ now: Int64, _ actions: inout [Action]) {
    var result = result
    result.ended = now
    if running[id] != nil { leaving[id] = transfers[id] }
    resting[id] = nil
    transfers[id]?.state = .ended(result)
    // Its secrets are of no more use. The session and the key are.
    transfers[id]?.request.token = nil
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
      let sent = transfer.request.expectedToSend ?? Int64(clamping: transfer.size)
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
    for id in order {
      guard let transfer = transfers[id], !transfer.hasEnded else { continue }
      if let deadline = transfer.request.deadline {
        guard deadline > now else {
          var result = TransferResult(
            .failed, cause: "timedOut", message: "the transfer was not complete in the time that it had")
          result.byteCount = transfer.acknowledged
          end(id, result, now, &actions)
          stop(id, &actions)
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
      guard running.count < Self.limit else {
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

  /// Those that wait for their next attempt make room for others that could run.
  private mutating func makeRoom(for waiting: Int, _ now: Int64, _ actions: inout [Action]) {
    let stopping = running.values.count { $0 == .stopping }
    let idle = running.keys.sorted().filter { running[$0] == .running && transfers[$0]?.trouble != nil }
    for id in idle.prefix(max(0, waiting - stopping)) {
      rest(id, now)
      stop(id, &actions)
    }
  }
}
