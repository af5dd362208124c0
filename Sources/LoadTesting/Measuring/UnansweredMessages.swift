// The due times of messages that failed at once. A refused connection takes a millisecond, but the message is never
// acknowledged. Its delay is known only at the end of the run.

internal import LoadReports

/// The due times of messages that will never be acknowledged. It has at most ``limit`` entries, whatever their number
/// and their order.
struct UnansweredMessages: Equatable, Sendable {
  static let limit = 1 << 16

  struct Entry: Equatable, Sendable {
    /// The latest due time of the messages that it counts, so that no age is overstated.
    var due: Int64
    var count: UInt64
  }

  /// By their due times, in units of ``granularity``.
  private(set) var entries: [Int64: Entry] = [:]
  /// Messages that are due within this number of nanoseconds share an entry.
  private var granularity: Int64 = 1_000_000

  /// A message failed or was never sent.
  mutating func add(dueAt due: Int64) {
    join(Entry(due: due, count: 1))
    while entries.count > Self.limit {
      granularity *= 2
      let before = entries.values
      entries = [:]
      for entry in before { join(entry) }
    }
  }

  private mutating func join(_ entry: Entry) {
    let place = entry.due / granularity
    let known = entries[place]
    entries[place] = Entry(due: max(known?.due ?? entry.due, entry.due), count: (known?.count ?? 0) + entry.count)
  }

  /// Records the age of each message at this time, or slightly less: by at most a 30,000th of the run.
  func recordAges(at now: Int64, in histogram: inout LatencyHistogram) {
    for entry in entries.values { histogram.record(max(0, now - entry.due), count: entry.count) }
  }
}
