// The pure part of a source that tasks write to. It decides which writer has its turn, and which waits for room.

/// Lets one writer at a time continue, in the order of their calls, so that messages do not mix.
///
/// `Waiter` is the value that the shell resumes, usually a continuation.
struct WriteQueue<Waiter> {
  private(set) var isBusy = false
  private(set) var hasEnded = false
  private var queue: [Waiter] = []
  /// The writer that has the turn, while it waits for room.
  private var blocked: Waiter?

  /// Begins a turn.
  ///
  /// - Returns: whether the caller has the turn now. Otherwise it calls ``wait(_:)``.
  mutating func begin() -> Bool {
    guard !isBusy else { return false }
    isBusy = true
    return true
  }

  /// Waits for the turn that another writer has. Returns false if the caller has the turn now.
  mutating func wait(_ waiter: Waiter) -> Bool {
    guard !begin() else { return false }
    queue.append(waiter)
    return true
  }

  /// Ends a turn.
  ///
  /// - Returns: the next writer, which the shell resumes.
  mutating func end() -> Waiter? {
    guard queue.isEmpty else { return queue.removeFirst() }
    isBusy = false
    return nil
  }

  /// Waits for room with the turn. Returns false if there will never be room.
  mutating func block(_ waiter: Waiter) -> Bool {
    guard !hasEnded else { return false }
    blocked = waiter
    return true
  }

  /// Ends the wait for room. There is room, or the source has started.
  ///
  /// - Returns: the writer that waited for room.
  mutating func unblock() -> Waiter? { blocked.take() }

  /// Ends all writing. Each writer finds this out at its turn.
  ///
  /// - Returns: the writer that waited for room.
  mutating func close() -> Waiter? {
    hasEnded = true
    return blocked.take()
  }
}
