// The times of the queue after the wall clock was set, for example when a machine without a battery clock has got the
// time from the network.

internal import EventLoops
internal import TransferClient

extension TransferQueue {
  /// Moves the times from which durations are counted, so that these do not change. The begin of a transfer
  /// (`earliestBegin`) is a date, which stays. Pauses end instead.
  mutating func moveTimes(by step: Int64, _ actions: inout [Action]) {
    func move(_ time: inout Int64) { time = time.addingSaturated(step) }
    func moved(_ transfer: Transfer) -> Transfer {
      var transfer = transfer
      move(&transfer.created)
      transfer.request.deadline = transfer.request.deadline?.addingSaturated(step)
      if case .ended(var result) = transfer.state {
        move(&result.ended)
        transfer.state = .ended(result)
      }
      return transfer
    }
    for (id, transfer) in transfers.sorted(by: { $0.key < $1.key }) {
      let later = moved(transfer)
      transfers[id] = later
      actions.append(.store(later.stored))
    }
    for var one in abandoned.values.sorted(by: { $0.transfer.id < $1.transfer.id }) {
      one.transfer = moved(one.transfer)
      move(&one.time)
      abandoned[one.transfer.id] = one
      actions.append(.storeAbandoned(one))
    }
    for var one in acknowledged.values.sorted(by: { $0.id < $1.id }) {
      move(&one.time)
      acknowledged[one.key] = one
      actions.append(.storeAcknowledged(one))
    }
    endRests()
  }
}
