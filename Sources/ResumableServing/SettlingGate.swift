// Requests that wait until the offset which another one was told stands still no more.

/// Holds requests back while answers, or requests before their first byte, wait for the disk.
struct SettlingGate {
  /// How many wait for the disk.
  private var count = 0
  private var waiting: [() -> Void] = []

  /// Something waits for the disk from now on.
  mutating func close() { count += 1 }

  /// It waits no more. What may go on now; nil while something else waits.
  mutating func open() -> [() -> Void]? {
    count -= 1
    guard count == 0 else { return nil }
    defer { waiting = [] }
    return waiting
  }

  /// Whether `work` may be done now. If not, ``open()`` returns it later.
  mutating func admits(_ work: @escaping () -> Void) -> Bool {
    if count > 0 { waiting.append(work) }
    return count == 0
  }
}
