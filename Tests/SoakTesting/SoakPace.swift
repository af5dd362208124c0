// The durations of a soak run's parts, in simulated seconds.

/// The durations of a run's parts.
package struct SoakPace: Sendable {
  /// From one fault to the next.
  var cycle = 3600.0
  /// From the beginning of a cycle to its fault.
  var prelude: ClosedRange<Double> = 60...900
  /// After a fault and before a sample, so that its remaining requests can end.
  var calm = 120.0
  /// From one step of the wall clock to the next.
  var day = 86_400.0
  /// The factor for the durations of faults, and for the client's buffer of five minutes.
  var scale = 1.0
  /// How long a process is young, because its buffers have not reached their maximum yet.
  var warmUp = 12 * 3600.0
  /// The permitted growth of memory in the life of a process, in bytes. Code that runs for the first time also needs
  /// memory.
  var memoryLimit = 512.0 * 1024

  /// One hour per fault. A short run has fewer faults, and a shorter warm-up.
  static func hourly(_ hours: Int) -> SoakPace {
    var pace = SoakPace()
    guard hours < 48 else { return pace }
    pace.warmUp = Double(hours) * 900
    pace.memoryLimit = 1536 * 1024
    return pace
  }

  /// A few minutes per fault, for tests with `cycles` faults.
  package static func compressed(cycles: Int) -> SoakPace {
    SoakPace(
      cycle: 200, prelude: 5...20, calm: 15, day: 1200, scale: 0.1, warmUp: 200 * Double(cycles) / 2,
      memoryLimit: 1536 * 1024)
  }

  var buffer: Double { 300 * scale }
}
