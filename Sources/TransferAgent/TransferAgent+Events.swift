// Processes the queue's events: first on disk, then for the running transfers and the watching programs.

internal import EventLoops
internal import TransferClient

extension TransferAgent {
  /// Processes an event: in the database first, and then for the running transfers.
  ///
  /// - Parameter order: the order to answer.
  func happen(_ event: TransferQueue.Event, answering order: (peer: AgentPeer, number: Int64)? = nil) {
    // A transfer's own events are stored in sequence. Other events need not wait for them.
    if let id = event.transfer, let words = queue.shortage, pending.contains(where: { $0.transfer == id }) {
      pending.append(event)
      return noteShortage(words)
    }
    guard let words = tryEvent(event, order) else { return }
    if let order {
      order.peer.say(.refused(number: order.number, .database, "\(words) Nothing has changed. Then try again."))
    } else if event.transfer != nil {
      pending.append(event)
      noteShortage(words)
    } else {
      // Do the part that works without the database. The rest follows when there is space.
      _ = tryEvent(event, nil)
    }
  }

  /// - Returns: why the database rejects it, and what to do; nil if it is stored.
  func tryEvent(_ event: TransferQueue.Event, _ order: (peer: AgentPeer, number: Int64)?) -> String? {
    var next = queue
    let now = ClockReading.now
    let step = now.step(since: clocks)
    var actions: [TransferQueue.Action] = []
    var isNewStep = step.magnitude >= Self.leastStep
    if isNewStep, queue.shortage != nil {
      // A database that rejects writes cannot store the times either, so they move with the next event that it stores.
      var withoutStep = next
      isNewStep = withoutStep.handle(event, now: now.wall).contains(where: \.isStored)
    }
    if isNewStep { actions = next.handle(.clockSet(by: step), now: now.wall) }
    actions += next.handle(event, now: now.wall)
    let hasStored: Bool
    do throws(AgentError) {
      hasStored = try database.apply(actions, at: now)
    } catch {
      let words = Self.words(error, location)
      noteShortage(words)
      return words
    }
    queue = next
    if isNewStep || step.magnitude < Self.leastStep { clocks = now }
    for action in actions { perform(action, order) }
    if hasStored {
      databasePauses.reset()
      if queue.shortage != nil { endShortage() }
    }
    watchNetwork()
    endIfStopped()
    watchIdleness()
    return nil
  }

  private static func words(_ error: AgentError, _ location: AgentLocation) -> String {
    switch error {
    case .database(let name, let reason):
      "cannot write the agent's database \(location.directory)/\(name): \(reason). Free space on its disk."
    case .databaseMoved(let name):
      "cannot write the agent's database \(location.directory)/\(name): it was moved, removed or replaced. "
        + "Move it back, or restart the agent, which then has only the transfers of the database at that path."
    default: "\(error)."
    }
  }

  // MARK: A database that rejects writes

  private func noteShortage(_ words: String) {
    let unstored = Set(
      pending.compactMap { event in
        if case .finished(let id, _) = event { return id }
        return nil
      })
    guard queue.shortage != words || queue.unstored != unstored else { return }
    let isNew = queue.shortage == nil
    queue.note(shortage: words, unstored: unstored)
    for id in queue.transfers.keys where queue.transfers[id]?.hasEnded == false { tell(id) }
    // Ended transfers no longer occupy their places.
    if !unstored.isEmpty { loop.execute { [self] in happen(.timeCame) } }
    if isNew { askDatabaseLater() }
  }

  private func askDatabaseLater() {
    databaseTimer.map { loop.cancel($0) }
    databaseTimer = loop.schedule(after: databasePauses.next()) { [self] in
      databaseTimer = nil
      do throws(AgentError) { try database.check() } catch { return askDatabaseLater() }
      endShortage()
    }
  }

  /// There is space again, so process the events that have waited for it.
  private func endShortage() {
    databaseTimer.map { loop.cancel($0) }
    databaseTimer = nil
    let waiting = pending
    pending = []
    queue.note(shortage: nil, unstored: [])
    queue.endRests()
    for event in waiting { happen(event) }
    happen(.timeCame)
  }

  func perform(_ action: TransferQueue.Action, _ order: (peer: AgentPeer, number: Int64)?) {
    switch action {
    case .store, .remove, .storeAcknowledged, .forget, .storeAbandoned, .removeAbandoned: break
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

  /// The wall clock may be set, so check it again within a minute.
  func wake(at time: Int64) {
    wakeTimer.map { loop.cancel($0) }
    let delay = max(0, min(time - WallClock.now.sinceEpoch, 60_000))
    wakeTimer = loop.schedule(after: .milliseconds(delay)) { [self] in
      wakeTimer = nil
      happen(.timeCame)
    }
  }

  /// An address or a route has changed. When that settles, transfers need no longer wait for their next attempt.
  func networkHasChanged() {
    guard networkTimer == nil, !queue.isIdle else { return }
    networkTimer = loop.schedule(after: Self.settlingTime) { [self] in
      networkTimer = nil
      watchNetworkAgain()
      for transfer in running.values { transfer.retryNow() }
      queue.endRests()
      happen(.timeCame)
    }
  }

  // MARK: The kind of network

  /// Watches the kind of network while a transfer depends on it.
  func watchNetwork() {
    if watchesNetwork, watchTimer == nil { return }
    guard queue.dependsOnNetwork else {
      // Do not ask again before a transfer depends on it. Then what is known now may be wrong.
      watchTimer.map { loop.cancel($0) }
      (watchTimer, watchesNetwork) = (nil, false)
      knowledge.forget()
      return queue.forgetNetwork()
    }
    guard !watchesNetwork else { return }
    watchesNetwork = true
    NetworkManager.watch(after: knowledge.last) { [self] news in loop.execute { [self] in hear(news) } }
  }

  private func hear(_ news: NetworkManager.News) {
    switch news {
    case .conditions(let conditions):
      knowledge.note(conditions)
      happen(.network(conditions))
    case .silent(let error):
      happen(.networkUnknown("\(error)"))
      report(knowledge.noteSilence(), error)
      if let last = knowledge.noteSilenceAfterAnswer() {
        report(error, "its last answer holds: the network is \(last.isExpensive ? "" : "not ")metered")
      }
    case .noBus(let error): endWatch(isBusMissing: true, error)
    case .lost(let error): endWatch(isBusMissing: false, error)
    }
  }

  /// The watch has ended. The next one follows after a pause.
  private func endWatch(isBusMissing: Bool, _ error: SystemError) {
    let (conditions, pause, substitute) = knowledge.endWatch(isBusMissing: isBusMissing, now: .now)
    if let conditions { happen(.network(conditions)) } else { happen(.networkUnknown("\(error)")) }
    report(substitute, error)
    watchTimer = loop.schedule(after: pause) { [self] in watchNetworkAgain() }
    watchNetwork()
  }

  /// Reports what the agent does without knowing the kind of network; nil for nothing.
  private func report(_ substitute: NetworkKnowledge.Substitute?, _ error: SystemError) {
    switch substitute {
    case nil: break
    case .waiting?: report(error, "transfers that avoid metered networks wait")
    case .unmetered?: report(error, "no network counts as metered")
    }
  }

  private func report(_ error: SystemError, _ consequence: String) {
    settings.log(
      "cannot ask NetworkManager whether the network is metered: \(error). Until it can be asked, \(consequence).")
  }

  /// Starts the watch that has ended, without the rest of its pause.
  private func watchNetworkAgain() {
    guard let timer = watchTimer else { return }
    loop.cancel(timer)
    (watchTimer, watchesNetwork) = (nil, false)
    watchNetwork()
  }
}
