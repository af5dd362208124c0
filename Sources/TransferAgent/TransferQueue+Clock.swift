// The times of the queue after the wall clock was set, for example when a machine without a battery clock has got the
// time from the network.

internal import EventLoops
internal import TransferClient

/// Which times of the queue an earlier process has recorded. The clock may have been set between that process and this
/// one, perhaps several times, so nobody knows by how much these times differ from the present clock.
struct EarlierTimes: Equatable, Sendable {
  /// The transfers of which an earlier process recorded the beginning, and with it the time limit.
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
}

extension TransferQueue {
  /// Moves the times from which durations are counted, so that these do not change. The begin of a transfer
  /// (`earliestBegin`) is a date, which stays, and so do times of an earlier process. Pauses end instead.
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
