// The start times of requests in an open model. They are determined before the run, so that a slow server gets the same
// number of requests as a fast one.

internal import LoadReports

/// The times of a run's requests, at a rate that changes linearly. They are the same on every machine and for any
/// number of streams.
package struct ArrivalPlan: Equatable, Sendable {
  /// The requests per second at a time, and their linear change up to ``end``.
  private struct Piece: Equatable, Sendable {
    /// In seconds.
    var start: Double
    var length: Double
    var rate: Double
    var rateAtEnd: Double
    /// How many requests arrive before it and in it.
    var before: Double
    var count: Double
  }

  private var pieces: [Piece] = []

  /// The highest rate allowed, in requests per second.
  package static let highestRate = 10_000_000.0

  /// - Parameters:
  ///   - rate: per second, after the ramp or at the start of the first stage.
  ///   - ramp: the time in which the rate rises from 0, in nanoseconds.
  ///   - stages: replace the ramp and the duration. Each changes the rate linearly to its
  ///     ``LoadReports/LoadStage/streams`` per second.
  ///   - duration: the duration of the run, in nanoseconds.
  init(rate: Double, ramp: Int64 = 0, stages: [LoadStage] = [], duration: Int64) {
    guard stages.isEmpty else {
      var level = rate
      for stage in stages {
        add(stage.duration, from: level, to: Double(stage.streams))
        level = Double(stage.streams)
      }
      return
    }
    add(ramp, from: 0, to: rate)
    add(duration - ramp, from: rate, to: rate)
  }

  private mutating func add(_ length: Int64, from rate: Double, to rateAtEnd: Double) {
    guard length > 0 else { return }
    let seconds = Double(length) / 1e9
    let last = pieces.last
    pieces.append(
      Piece(
        start: last.map { $0.start + $0.length } ?? 0, length: seconds, rate: rate, rateAtEnd: rateAtEnd,
        before: last.map { $0.before + $0.count } ?? 0, count: (rate + rateAtEnd) / 2 * seconds))
  }

  /// How many requests arrive in the whole run.
  var count: Double { pieces.last.map { $0.before + $0.count } ?? 0 }

  /// When the request with this number is due, in nanoseconds since the run's start; nil after the last one.
  ///
  /// In the middle of its share of the time: 20 per second are due at 25 ms, 75 ms, 125 ms and so on.
  func time(of number: UInt64) -> Int64? {
    let wanted = Double(number) + 0.5
    guard let piece = pieces.first(where: { $0.before + $0.count >= wanted }) else { return nil }
    let missing = max(0, wanted - piece.before)
    // The root of a linear function's integral, in the form that is also valid for a constant function.
    let slope = (piece.rateAtEnd - piece.rate) / piece.length
    let root = max(0, piece.rate * piece.rate + 2 * slope * missing).squareRoot()
    // A piece with arrivals has a rate above 0 at one of its ends at least, and something is missing.
    let time = 2 * missing / (piece.rate + root)
    return Int64(saturating: (piece.start + min(time, piece.length)) * 1e9)
  }
}
