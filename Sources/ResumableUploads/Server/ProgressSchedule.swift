// When a 104 tells progress: at once where that helps, and otherwise at most a few times a second.

/// Decides when the offset of a transfer is announced. Times are nanoseconds of any clock that does not go back.
///
/// libcurl fails a transfer after 300 KB of response heads: with about a hundred bytes each, four a second last for twelve
/// minutes, and clients roll over long before.
package struct ProgressSchedule: Equatable, Sendable {
  /// The least time between two announcements.
  package static let interval: Int64 = 250_000_000

  package enum Action: Equatable, Sendable {
    case nothing
    case announce
    /// Call ``timerFired(now:)`` at this time.
    case setTimer(at: Int64)
  }

  private var last: Int64?
  private var isTimerSet = false
  private var hasKeptBytes = false

  package init() {}

  /// The append was accepted: an announcement tells the client that the offset matched.
  package mutating func accepted(now: Int64) -> Action {
    last = now
    return .announce
  }

  /// Bytes were kept that were not announced.
  package mutating func kept(now: Int64) -> Action {
    // The first ones at once: the client sees that bytes get through.
    let isFirst = !hasKeptBytes
    hasKeptBytes = true
    if !isFirst, let last, now - last < Self.interval {
      if isTimerSet { return .nothing }
      isTimerSet = true
      return .setTimer(at: last + Self.interval)
    }
    last = now
    return .announce
  }

  /// The end of a burst is announced too, however short it was.
  package mutating func timerFired(now: Int64) -> Action {
    isTimerSet = false
    last = now
    return .announce
  }
}
