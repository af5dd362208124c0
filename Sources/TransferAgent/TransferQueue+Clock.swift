// The times of the queue after the wall clock was set, for example when a machine without a battery clock has got the
// time from the network.

internal import EventLoops
internal import JSONLines
internal import TransferClient

/// Which times of the queue were recorded in an earlier boot of the machine. The clock may have been set since then,
/// perhaps several times, so nobody knows by how much these times differ from the present clock. In the present boot,
/// the clock that nobody sets shows it (``ClockReading``).
package struct EarlierTimes: Equatable, Sendable {
  /// The transfers whose beginning was recorded then, and with it the time limit.
  let begins: Set<Int64>
  let ends: Set<Int64>
  let abandoned: Set<Int64>
  let acknowledged: Set<Int64>

  init(_ transfers: [Transfer] = [], _ acknowledged: [AcknowledgedTransfer] = [], _ abandoned: [AbandonedTransfer] = [])
  {
    let all = transfers + abandoned.map(\.transfer)
    begins = Set(all.map(\.id))
    ends = Set(all.filter(\.hasEnded).map(\.id))
    self.abandoned = Set(abandoned.map(\.transfer.id))
    self.acknowledged = Set(acknowledged.map(\.id))
  }

  // MARK: As a line

  var text: String {
    func list(_ ids: Set<Int64>) -> [String] { ids.sorted().map { String($0) } }
    var line = JSONLine(event: "earlier")
    line.add("begins", list(begins))
    line.add("ends", list(ends))
    line.add("abandoned", list(abandoned))
    line.add("acknowledged", list(acknowledged))
    return line.line
  }

  /// Nil if the text is not of that form.
  init?(text: String) {
    guard let line = FlatJSON(text.utf8) else { return nil }
    func ids(_ key: String) -> Set<Int64>? { line.strings(key).map { Set($0.compactMap { Int64($0) }) } }
    guard let begins = ids("begins"), let ends = ids("ends"), let abandoned = ids("abandoned"),
      let acknowledged = ids("acknowledged")
    else { return nil }
    (self.begins, self.ends, self.abandoned, self.acknowledged) = (begins, ends, abandoned, acknowledged)
  }
}

extension TransferQueue {
  /// Moves the times from which durations are counted, so that these do not change. The begin of a transfer
  /// (`earliestBegin`) is a date, which stays, and so do times of an earlier boot. Pauses end instead.
  mutating func moveTimes(by step: Int64, _ actions: inout [Action]) {
    func moved(_ transfer: Transfer) -> Transfer {
      var transfer = transfer
      if !earlier.begins.contains(transfer.id) {
        transfer.created = transfer.created.addingSaturated(step)
        transfer.request.deadline = transfer.request.deadline?.addingSaturated(step)
      }
      if case .ended(var result) = transfer.state, !earlier.ends.contains(transfer.id) {
        result.ended = result.ended.addingSaturated(step)
        transfer.state = .ended(result)
      }
      return transfer
    }
    for (id, transfer) in transfers.sorted(by: { $0.key < $1.key }) {
      let later = moved(transfer)
      guard later != transfer else { continue }
      transfers[id] = later
      actions.append(.store(later.stored))
    }
    for one in abandoned.values.sorted(by: { $0.transfer.id < $1.transfer.id }) {
      var later = one
      later.transfer = moved(one.transfer)
      if !earlier.abandoned.contains(one.transfer.id) { later.time = one.time.addingSaturated(step) }
      guard later != one else { continue }
      abandoned[one.transfer.id] = later
      actions.append(.storeAbandoned(later))
    }
    for var one in acknowledged.values.sorted(by: { $0.id < $1.id }) where !earlier.acknowledged.contains(one.id) {
      one.time = one.time.addingSaturated(step)
      acknowledged[one.key] = one
      actions.append(.storeAcknowledged(one))
    }
    endRests()
  }
}
