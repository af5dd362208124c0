// How fast a soak run lives: how long its parts last, in simulated seconds.

/// The rhythm of a run.
package struct SoakPace: Sendable {
  /// From one fault to the next.
  var cycle = 3600.0
  /// From the beginning of a cycle to its fault.
  var prelude: ClosedRange<Double> = 60...900
  /// After a fault, before a sample: requests that it has left behind end meanwhile.
  var calm = 120.0
  /// From one step of the wall clock to the next.
  var day = 86_400.0
  /// What the durations of faults are multiplied by, and the client's buffer of five minutes.
  var scale = 1.0
  /// How long a process is young: its buffers have not been as full as they get.
  var warmUp = 12 * 3600.0
  /// What memory may grow by in the life of a process, in bytes. Code that runs for the first time takes memory, too.
  var memoryLimit = 512.0 * 1024

  /// An hour for each fault. A short run has fewer of them, and less time to warm up.
  static func hourly(_ hours: Int) -> SoakPace {
    var pace = SoakPace()
    guard hours < 48 else { return pace }
    pace.warmUp = Double(hours) * 900
    pace.memoryLimit = 1536 * 1024
    return pace
  }

  /// Each fault in a few minutes, for tests: `cycles` of them.
  package static func compressed(cycles: Int) -> SoakPace {
    SoakPace(
      cycle: 200, prelude: 5...20, calm: 15, day: 1200, scale: 0.1, warmUp: 200 * Double(cycles) / 2,
      memoryLimit: 1536 * 1024)
  }

  var buffer: Double { 300 * scale }
}
