// The queue of one output: lines in order, and the latest status below them.

/// Keeps at most a number of bytes of lines. Beyond that, it drops and counts the oldest. It is a value and writes
/// nothing itself.
///
/// Routine lines are dropped first. A line that a later line repeats must not replace the report of a loss.
struct OutputQueue {
  /// Lines in order, each with its number among all lines of this output.
  private struct Lines {
    private var items: [(number: UInt64, text: String)] = []
    /// The number of items that are already removed. Removing the first item of an array moves all others.
    private var start = 0
    private(set) var byteCount = 0

    var waiting: ArraySlice<(number: UInt64, text: String)> { items[start...] }
    var isEmpty: Bool { start == items.count }

    mutating func append(_ text: String, number: UInt64) {
      items.append((number, text))
      byteCount += text.utf8.count + 1
    }

    mutating func dropOldest() {
      byteCount -= items[start].text.utf8.count + 1
      items[start].text = ""
      start += 1
      // There are at most as many removed items as kept ones, so each is moved once.
      guard start > items.count / 2 else { return }
      items.removeFirst(start)
      start = 0
    }
  }

  /// The text to write next, and the places of its lines.
  struct Batch {
    private(set) var text: String
    /// Whether it begins with the line end of a line that was written in part.
    fileprivate let endsTornLine: Bool
    /// The end of each line, before its line end, and the number of lines that it reports as dropped.
    fileprivate private(set) var lines: [(end: Int, dropped: UInt64)] = []

    fileprivate init(endsTornLine: Bool) {
      self.endsTornLine = endsTornLine
      text = endsTornLine ? "\n" : ""
    }

    /// - Parameter dropped: the number of lines that it replaces, or 0 for a line itself.
    fileprivate mutating func append(line: String, dropped: UInt64 = 0) {
      text += line
      lines.append((text.utf8.count, dropped))
      text += "\n"
    }

    fileprivate mutating func append(control: String) { text += control }
  }

  /// In bytes.
  private let limit: Int
  /// Makes the line that replaces a number of dropped lines.
  private let notice: @Sendable (UInt64) -> String
  private var reports = Lines()
  private var routine = Lines()
  /// The number of the next line, and the number of the first line that ``take()`` has not returned.
  private var nextNumber: UInt64 = 0
  private var firstNumber: UInt64 = 0
  /// The status to show below the lines, and the status that is shown now.
  private var status: [String] = []
  private var shown: [String] = []
  /// The number of lines dropped so far: too many waited, or they could not be written.
  private(set) var droppedEver: UInt64 = 0
  /// The number of lines that could not be written and that no notice reports yet.
  private var unreported: UInt64 = 0
  /// Whether the last written byte is within a line.
  private var isTorn = false
  private var isReportDue = false

  init(limit: Int, notice: @escaping @Sendable (UInt64) -> String) {
    self.limit = limit
    self.notice = notice
  }

  /// - Parameter isRoutine: whether a later line makes this one obsolete, as with progress.
  mutating func append(line: String, isRoutine: Bool = false) {
    if isRoutine { routine.append(line, number: nextNumber) } else { reports.append(line, number: nextNumber) }
    nextNumber &+= 1
    // A single line is kept regardless of its length.
    while routine.byteCount + reports.byteCount > limit, routine.waiting.count + reports.waiting.count > 1 {
      if routine.waiting.isEmpty { reports.dropOldest() } else { routine.dropOldest() }
      droppedEver &+= 1
    }
  }

  mutating func show(status lines: [String]) { status = lines }

  /// Leaves the status in its place. Later lines go below it.
  mutating func keepStatus() {
    guard !status.isEmpty else { return }
    append(line: status.joined(separator: "\n"))
    status = []
  }

  var isEmpty: Bool { reports.isEmpty && routine.isEmpty && status == shown && !isReportDue }

  /// Returns everything to write next, or nil if there is nothing. The caller writes it before the next call.
  mutating func take() -> Batch? {
    guard !isEmpty else { return nil }
    var batch = Batch(endsTornLine: isTorn)
    batch.append(control: Self.erasing(shown))
    var (first, second) = (reports.waiting, routine.waiting)
    var next = firstNumber
    var dropped = unreported
    while let item = Self.older(&first, &second) {
      dropped &+= item.number &- next
      if dropped > 0 { batch.append(line: notice(dropped), dropped: dropped) }
      batch.append(line: item.text)
      (next, dropped) = (item.number &+ 1, 0)
    }
    dropped &+= nextNumber &- next
    if dropped > 0 { batch.append(line: notice(dropped), dropped: dropped) }
    batch.append(control: status.joined(separator: "\n"))
    shown = status
    (reports, routine, firstNumber) = (Lines(), Lines(), nextNumber)
    (unreported, isTorn, isReportDue) = (0, false, false)
    return batch
  }

  /// Only the first `count` bytes of a batch were written. Its other lines are dropped, and the next batch reports
  /// them.
  mutating func failed(_ batch: Batch, after count: Int) {
    for line in batch.lines where line.end > count {
      unreported &+= max(line.dropped, 1)
      // The lines that a notice replaces were counted before.
      if line.dropped == 0 { droppedEver &+= 1 }
    }
    isTorn = count == 0 ? batch.endsTornLine : batch.text.utf8.prefix(count).last != UInt8(ascii: "\n")
  }

  /// The next batch need not wait for another line if it reports lines that could not be written.
  mutating func reportLosses() { isReportDue = unreported > 0 || isTorn }

  /// Removes the line that was appended first.
  private static func older(
    _ a: inout ArraySlice<(number: UInt64, text: String)>, _ b: inout ArraySlice<(number: UInt64, text: String)>
  ) -> (number: UInt64, text: String)? {
    guard let first = a.first else { return b.popFirst() }
    guard let second = b.first, second.number < first.number else { return a.popFirst() }
    return b.popFirst()
  }

  /// The sequence that erases a status: to its first line, and everything from there to the end.
  private static func erasing(_ status: [String]) -> String {
    switch status.count {
    case 0: ""
    case 1: "\r\u{1B}[K"
    default: "\r\u{1B}[\(status.count - 1)A\u{1B}[J"
    }
  }
}
