// What waits to be written to one output: lines in order, and below them the status, of which only the latest counts.

/// Keeps at most this number of bytes of lines and drops the oldest, counted. A value: it writes nothing itself.
///
/// Routine lines are dropped first: what a later line says again must not replace the report of a loss.
struct OutputQueue {
  /// Lines in order, each with its number among all lines of this output.
  private struct Lines {
    private var items: [(number: UInt64, text: String)] = []
    /// How many of `items` are gone already: removing the first of an array moves all others.
    private var start = 0
    private(set) var byteCount = 0

    var waiting: ArraySlice<(number: UInt64, text: String)> { items[start...] }

    mutating func append(_ text: String, number: UInt64) {
      items.append((number, text))
      byteCount += text.utf8.count + 1
    }

    mutating func dropOldest() {
      byteCount -= items[start].text.utf8.count + 1
      items[start].text = ""
      start += 1
      // At most as many dropped ones as kept ones: each is moved once.
      guard start > items.count / 2 else { return }
      items.removeFirst(start)
      start = 0
    }
  }

  /// In bytes.
  private let limit: Int
  /// The line that stands in for so many dropped ones.
  private let notice: @Sendable (UInt64) -> String
  private var reports = Lines()
  private var routine = Lines()
  /// The number of the next line, and the number of the first one that ``take()`` has not returned.
  private var nextNumber: UInt64 = 0
  private var firstNumber: UInt64 = 0
  /// What is to stand below the lines, and what stands there now.
  private var status: [String] = []
  private var shown: [String] = []
  /// Lines dropped so far.
  private(set) var droppedEver: UInt64 = 0

  init(limit: Int, notice: @escaping @Sendable (UInt64) -> String) {
    self.limit = limit
    self.notice = notice
  }

  /// - Parameter isRoutine: whether a later line makes this one obsolete, as with progress.
  mutating func append(line: String, isRoutine: Bool = false) {
    if isRoutine { routine.append(line, number: nextNumber) } else { reports.append(line, number: nextNumber) }
    nextNumber &+= 1
    // One line is kept however long it is.
    while routine.byteCount + reports.byteCount > limit, routine.waiting.count + reports.waiting.count > 1 {
      if routine.waiting.isEmpty { reports.dropOldest() } else { routine.dropOldest() }
      droppedEver = droppedEver.addingReportingOverflow(1).partialValue
    }
  }

  mutating func show(status lines: [String]) { status = lines }

  /// The status stays where it is, and what follows goes below it.
  mutating func keepStatus() {
    guard !status.isEmpty else { return }
    append(line: status.joined(separator: "\n"))
    status = []
  }

  var isEmpty: Bool { firstNumber == nextNumber && status == shown }

  /// All that is to be written next; nil when there is nothing. The caller writes it before it asks again.
  mutating func take() -> String? {
    guard !isEmpty else { return nil }
    var text = Self.erasing(shown)
    var (first, second) = (reports.waiting, routine.waiting)
    var next = firstNumber
    func skip(to number: UInt64, _ text: inout String) {
      if number != next { text += notice(number &- next) + "\n" }
    }
    while let item = Self.older(&first, &second) {
      skip(to: item.number, &text)
      text += item.text + "\n"
      next = item.number &+ 1
    }
    skip(to: nextNumber, &text)
    text += status.joined(separator: "\n")
    shown = status
    (reports, routine, firstNumber) = (Lines(), Lines(), nextNumber)
    return text
  }

  /// Removes the line that was appended first.
  private static func older(
    _ a: inout ArraySlice<(number: UInt64, text: String)>, _ b: inout ArraySlice<(number: UInt64, text: String)>
  ) -> (number: UInt64, text: String)? {
    guard let first = a.first else { return b.popFirst() }
    guard let second = b.first, second.number < first.number else { return a.popFirst() }
    return b.popFirst()
  }

  /// What takes a status away: up to its first line, and everything from there on.
  private static func erasing(_ status: [String]) -> String {
    switch status.count {
    case 0: ""
    case 1: "\r\u{1B}[K"
    default: "\r\u{1B}[\(status.count - 1)A\u{1B}[J"
    }
  }
}
