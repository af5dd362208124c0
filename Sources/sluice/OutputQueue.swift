// What waits to be written to one output: lines in order, and below them the status, of which only the latest counts.

/// Keeps at most this number of bytes of lines and drops the oldest, counted. A value: it writes nothing itself.
struct OutputQueue {
  private enum Item {
    case line(String)
    /// A status that stays where it stands.
    case kept(String)

    var byteCount: Int {
      switch self {
      case .line(let text), .kept(let text): text.utf8.count + 1
      }
    }
  }

  /// In bytes.
  private let limit: Int
  /// The line that stands in for so many dropped ones.
  private let notice: @Sendable (UInt64) -> String
  private var items: [Item] = []
  /// How many of `items` are gone already: removing the first of an array moves all others.
  private var start = 0
  private var byteCount = 0
  /// What is to stand below the lines, and what stands there now.
  private var status: [String] = []
  private var shown: [String] = []
  /// Lines dropped since the last ``take()``, and ever.
  private var dropped: UInt64 = 0
  private(set) var droppedEver: UInt64 = 0

  init(limit: Int, notice: @escaping @Sendable (UInt64) -> String) {
    self.limit = limit
    self.notice = notice
  }

  mutating func append(line: String) { append(.line(line)) }

  mutating func show(status lines: [String]) { status = lines }

  /// The status stays where it is, and what follows goes below it.
  mutating func keepStatus() {
    guard !status.isEmpty else { return }
    append(.kept(status.joined(separator: "\n")))
    status = []
  }

  private mutating func append(_ item: Item) {
    items.append(item)
    byteCount += item.byteCount
    // One line is kept however long it is.
    while byteCount > limit, items.count - start > 1 { dropOldest() }
    // At most as many dropped ones as kept ones: each is moved once.
    guard start > items.count / 2 else { return }
    items.removeFirst(start)
    start = 0
  }

  private mutating func dropOldest() {
    byteCount -= items[start].byteCount
    if case .line = items[start] {
      dropped = dropped.addingReportingOverflow(1).partialValue
      droppedEver = droppedEver.addingReportingOverflow(1).partialValue
    }
    items[start] = .line("")
    start += 1
  }

  var isEmpty: Bool { items.count == start && status == shown && dropped == 0 }

  /// All that is to be written next; nil when there is nothing. The caller writes it before it asks again.
  mutating func take() -> String? {
    guard !isEmpty else { return nil }
    var text = Self.erasing(shown)
    if dropped > 0 { text += notice(dropped) + "\n" }
    for item in items[start...] {
      switch item {
      case .line(let line), .kept(let line): text += line + "\n"
      }
    }
    text += status.joined(separator: "\n")
    shown = status
    (items, start, byteCount, dropped) = ([], 0, 0, 0)
    return text
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
