// Notices that the wall clock was set, which a difference of two of its times does not show.

/// The wall clock and the clock that nobody sets, at one moment.
package struct ClockReading: Sendable {
  /// Milliseconds since 1970.
  package var wall: Int64
  /// Milliseconds since the machine started, including sleep.
  package var sinceBoot: Int64

  package init(wall: Int64, sinceBoot: Int64) { (self.wall, self.sinceBoot) = (wall, sinceBoot) }

  package static var now: ClockReading {
    ClockReading(
      wall: WallClock.now.sinceEpoch, sinceBoot: MonotonicInstant.sinceBoot.nanoseconds / 1_000_000)
  }

  /// By how many milliseconds the wall clock was set forward since an earlier reading. A few may be the slewing of the
  /// clock, or the time between reading both clocks.
  package func step(since earlier: ClockReading) -> Int64 {
    wall.subtractingSaturated(earlier.wall).subtractingSaturated(sinceBoot.subtractingSaturated(earlier.sinceBoot))
  }
}
