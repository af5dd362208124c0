// Whose turn it is to write, and who waits for room: the pure part of a source that tasks write into.

/// Lets one writer at a time continue, in the order of their calls, so that no two messages mix.
///
/// `Waiter` is what the shell resumes, a continuation as a rule.
struct WriteQueue<Waiter> {
  private(set) var isBusy = false
  private(set) var hasEnded = false
  private var queue: [Waiter] = []
  /// The writer whose turn it is, while it waits for room.
  private var blocked: Waiter?

  /// Begins a turn.
  ///
  /// - Returns: whether the caller has the turn now. Otherwise it calls ``wait(_:)``.
  mutating func begin() -> Bool {
    guard !isBusy else { return false }
    isBusy = true
    return true
  }

  /// Waits for the turn that another writer has; false if the caller has it now.
  mutating func wait(_ waiter: Waiter) -> Bool {
    guard !begin() else { return false }
    queue.append(waiter)
    return true
  }

  /// Ends a turn.
  ///
  /// - Returns: who has the turn next, for the shell to resume.
  mutating func end() -> Waiter? {
    guard queue.isEmpty else { return queue.removeFirst() }
    isBusy = false
    return nil
  }

  /// The writer whose turn it is waits for room; false if there will be none.
  mutating func block(_ waiter: Waiter) -> Bool {
    guard !hasEnded else { return false }
    blocked = waiter
    return true
  }

  /// There is room, or the source has started.
  ///
  /// - Returns: who waited for it.
  mutating func unblock() -> Waiter? { blocked.take() }

  /// Nothing can be written any more. Each writer finds that out at its turn.
  ///
  /// - Returns: who waited for room.
  mutating func close() -> Waiter? {
    hasEnded = true
    return blocked.take()
  }
}
