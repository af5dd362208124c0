// Requests that wait until a reported offset can no longer change.

/// Delays requests while answers, or requests before their first byte, wait for the disk.
struct SettlingGate {
  /// How many wait for the disk.
  private var count = 0
  private var waiting: [() -> Void] = []

  /// Something begins to wait for the disk.
  mutating func close() { count += 1 }

  /// It no longer waits. Returns the work that may continue now; nil while something else waits.
  mutating func open() -> [() -> Void]? {
    count -= 1
    guard count == 0 else { return nil }
    defer { waiting = [] }
    return waiting
  }

  /// Whether `work` may run now. If not, ``open()`` returns it later.
  mutating func admits(_ work: @escaping () -> Void) -> Bool {
    if count > 0 { waiting.append(work) }
    return count == 0
  }
}
