// The lifetimes of uploads: when one is forgotten, and how old each is for the next server.

internal import EventLoops
internal import StreamServing

extension UploadResources {
  /// The minimum time between two searches for expired uploads.
  private static let expiryPause = Duration.milliseconds(250)

  // MARK: Expiry

  /// The timer is never moved to a later time. It fires, finds that its resource was alive, and is set again.
  func armExpiry(for resource: UploadResource) {
    let deadline = resource.deadline
    if let expiryTimer {
      guard deadline < expiryTimer.deadline else { return }
      loop.cancel(expiryTimer.timer)
    }
    arm(deadline)
  }

  private func arm(_ deadline: MonotonicInstant) {
    // Before all uploads are known, an expired one could take the bytes of another with it.
    guard !stops, !earlier.isUnlisted else { return }
    // Combine expirations that are close together, because each firing searches the whole table.
    let deadline = max(deadline, .now + Self.expiryPause)
    expiryTimer = (loop.schedule(at: deadline) { [unowned self] in expire() }, deadline)
  }

  private func expire() {
    expiryTimer = nil
    let now = MonotonicInstant.now
    expire(table.values.filter { $0.deadline <= now }[...])
  }

  /// In slices between which requests are served, because removing files takes time.
  private func expire(_ due: ArraySlice<UploadResource>) {
    let now = MonotonicInstant.now
    var due = due
    while let resource = due.popFirst() {
      // It may have been forgotten or used since the last slice.
      if table[resource.token] === resource, resource.deadline <= now { expire(resource) }
      if MonotonicInstant.now > now + Self.slice { break }
    }
    guard !stops else { return }
    if !due.isEmpty {
      let rest = due
      loop.schedule(after: .zero) { [unowned self] in expire(rest) }
    } else {
      armNext()
    }
  }

  /// A finished upload may have set the timer for its own, later end.
  func armNext() {
    guard let deadline = table.values.lazy.filter({ [self] in !mayShare($0) }).map(\.deadline).min() else { return }
    if let expiryTimer { loop.cancel(expiryTimer.timer) }
    arm(deadline)
  }

  private func expire(_ resource: UploadResource) {
    if !resource.isUnfinished {
      if resource.keepsBody { resource.touch() } else { forget(resource.token) }
    } else if !mayShare(resource) {
      resource.expire()
    }
  }

  // MARK: Ages

  /// After a kill, the server has lost at most an eighth of an upload's lifetime.
  func armAges() {
    guard !stops, agesTimer == nil, !table.isEmpty else { return }
    let life = lifetimes.shortest.nanoseconds
    let interval = Duration.nanoseconds(min(max(life / 8, 100_000_000), 900_000_000_000))
    agesTimer = loop.schedule(after: interval) { [unowned self] in
      agesTimer = nil
      noteAges()
      armAges()
    }
  }

  func noteAges() {
    let now = MonotonicInstant.now
    store.noteAges(
      table.values.compactMap { $0.isAtWork ? nil : (token: $0.token, idle: $0.age(now: now)) })
  }
}
