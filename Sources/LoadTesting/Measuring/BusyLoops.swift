// How busy the network loops of a run were. A loop that has no time to wait delays messages itself.

internal import LoadReports

/// The processor time of each loop during the measured time of a run.
///
/// Each loop reports its seconds by itself, so the last ones may arrive after the end of the measured time.
struct BusyLoops: Equatable, Sendable {
  private struct Loop: Equatable, Sendable {
    var processorTime: Int64 = 0
    /// The number of seconds in ``processorTime``.
    var secondCount: Int64 = 0
  }

  private var loops: [Loop]
  /// In nanoseconds; nil until it is over.
  private var measured: Int64?

  init(loopCount: Int) { loops = Array(repeating: Loop(), count: loopCount) }

  /// The measured time is over after this number of nanoseconds. Zero or less if the run was stopped before its start.
  mutating func end(after time: Int64) { measured = time }

  /// Counts a second of a loop, unless it extends beyond the measured time.
  ///
  /// - Parameters:
  ///   - processorTime: the loop's processor time in this second, in nanoseconds.
  ///   - number: the number of the second, from 1. The last second of a loop may be incomplete.
  ///   - loop: the number of the loop, from 0.
  mutating func add(processorTime: Int64, ofSecond number: Int64, loop: Int) {
    // The first second always counts, because a run of less than a second has no other.
    if let measured, number > 1, number > measured / 1_000_000_000 { return }
    loops[loop].processorTime = loops[loop].processorTime.addingSaturated(processorTime)
    loops[loop].secondCount += 1
  }

  /// The share of the measured time in which the busiest loop did not wait, 0 to 1.
  var busiestShare: Double {
    let shares = loops.map { loop in
      let time = min(Double(measured ?? 0), Double(loop.secondCount) * 1e9)
      return time > 0 ? min(1, Double(loop.processorTime) / time) : 0
    }
    return shares.max() ?? 0
  }
}
