// What happens to the queue: first on disk, then in what runs and to those who watch.

internal import EventLoops
internal import TransferClient

extension TransferAgent {
  /// Lets an event happen: in the database first, then in what runs.
  ///
  /// - Parameters:
  ///   - order: what is answered.
  ///   - then: called when the database has it.
  func happen(
    _ event: TransferQueue.Event, answering order: (peer: AgentPeer, number: Int64)? = nil,
    then: @escaping @Sendable () -> Void = {}
  ) {
    guard order != nil || pending.isEmpty else { return pending.append((event, then)) }
    if let error = tryEvent(event, order) {
      if let order {
        return order.peer.say(
          .refused(
            number: order.number, .database,
            "the agent's database cannot be written: \(error). Nothing has changed; try again later."))
      }
      pending.append((event, then))
      retryLater()
    } else {
      then()
    }
  }

  /// - Returns: why the database does not take it; nil if it does.
  func tryEvent(_ event: TransferQueue.Event, _ order: (peer: AgentPeer, number: Int64)?) -> String? {
    var next = queue
    let actions = next.handle(event, now: WallClock.now.sinceEpoch)
    do throws(AgentError) {
      try database.apply(actions)
    } catch {
      if case .database(_, let reason) = error { return reason }
      return "\(error)"
    }
    queue = next
    for action in actions { perform(action, order) }
    watchNetwork()
    endIfStopped()
    watchIdleness()
    return nil
  }

  func retryLater() {
    loop.schedule(after: pendingDelay) { [self] in
      pendingDelay = min(pendingDelay * 2, .seconds(60))
      while let (event, then) = pending.first {
        if tryEvent(event, nil) != nil { return retryLater() }
        pending.removeFirst()
        then()
      }
      pendingDelay = .seconds(1)
      // As long as an event waited, there was something to do.
      endIfStopped()
      watchIdleness()
    }
  }

  func perform(_ action: TransferQueue.Action, _ order: (peer: AgentPeer, number: Int64)?) {
    switch action {
    case .store, .remove, .forget, .storeAbandoned, .removeAbandoned: break
    case .accept(let id): order.map { $0.peer.say(.accepted(number: $0.number, id: id)) }
    case .refuse(let refusal, let message): order.map { $0.peer.say(.refused(number: $0.number, refusal, message)) }
    case .done: order.map { $0.peer.say(.done(number: $0.number)) }
    case .start(let transfer): start(transfer)
    case .stop(let id): running[id]?.cancel()
    case .retry(let id): running[id]?.retryNow()
    case .abandon(let transfer): abandon(transfer)
    case .tell(let id): tell(id)
    case .wake(let time): wake(at: time)
    }
  }

  func tell(_ id: Int64) {
    guard let transfer = queue.transfers[id], let watchers = watchers[transfer.request.session] else { return }
    let answer = AgentAnswer.transfer(number: nil, status(transfer))
    for watcher in watchers { watcher.say(answer, isRoutine: !transfer.hasEnded) }
  }

  /// The wall clock may be set: it is looked at again after a minute at the latest.
  func wake(at time: Int64) {
    wakeTimer.map { loop.cancel($0) }
    let delay = max(0, min(time - WallClock.now.sinceEpoch, 60_000))
    wakeTimer = loop.schedule(after: .milliseconds(delay)) { [self] in
      wakeTimer = nil
      happen(.timeCame)
    }
  }

  /// An address or a route has come or gone. When that settles, what waits for its next attempt need not wait longer.
  func networkHasChanged() {
    guard networkTimer == nil, !queue.isIdle else { return }
    networkTimer = loop.schedule(after: Self.settlingTime) { [self] in
      networkTimer = nil
      for transfer in running.values { transfer.retryNow() }
      queue.endRests()
      happen(.timeCame)
    }
  }

  /// Asks what kind of network it is, from the first transfer on that depends on it.
  func watchNetwork() {
    guard !watchesNetwork, queue.dependsOnNetwork else { return }
    watchesNetwork = true
    NetworkManager.watch { [self] conditions in loop.execute { [self] in happen(.network(conditions)) } }
  }
}
