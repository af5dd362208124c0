// The unwanted remains of transfers: uploads on servers, and parts of downloads.

internal import EventLoops

extension TransferQueue {
  /// Deletes the remains of a transfer as soon as it does not run.
  mutating func abandon(_ transfer: Transfer, _ now: Int64, _ actions: inout [Action]) {
    let one = AbandonedTransfer(transfer, time: now)
    guard one.hasRemains || running[transfer.id] != nil else { return }
    abandoned[transfer.id] = one
    actions.append(.storeAbandoned(one))
  }

  /// More, or less, is known about the remains.
  mutating func abandon(_ id: Int64, resumeData: String?, _ actions: inout [Action]) {
    guard var one = abandoned[id], one.transfer.resumeData != resumeData else { return }
    one.transfer.resumeData = resumeData
    abandoned[id] = one
    actions.append(.storeAbandoned(one))
  }

  mutating func noteAbandoned(_ id: Int64, _ isDone: Bool, _ now: Int64, _ actions: inout [Action]) {
    guard deleting.remove(id) != nil, let one = abandoned[id] else { return }
    if isDone || one.time.addingSaturated(AbandonedTransfer.age) <= now {
      forgetAbandoned(id, &actions)
    } else {
      abandonedRests[id] = Rest(after: abandonedRests[id], now)
    }
  }

  private mutating func forgetAbandoned(_ id: Int64, _ actions: inout [Action]) {
    (abandoned[id], abandonedRests[id]) = (nil, nil)
    actions.append(.removeAbandoned(id))
  }

  /// Deletes the remains that are due.
  ///
  /// - Returns: when the next ones are due; nil for never.
  mutating func delete(_ now: Int64, _ actions: inout [Action]) -> Int64? {
    var next: Int64?
    for (id, one) in abandoned.sorted(by: { $0.key < $1.key }) where running[id] == nil && !deleting.contains(id) {
      if let rest = abandonedRests[id], !rest.isOver(now) {
        next = min(next ?? rest.end, rest.end)
      } else if one.hasRemains {
        deleting.insert(id)
        actions.append(.abandon(one.transfer))
      } else if shortage == nil {
        forgetAbandoned(id, &actions)
      }
    }
    return next
  }
}
