// The number of live streams over time, with linear changes, as users of k6 and Locust specify it.

package import LoadReports

/// The stages of a run, in order. The first one begins with no streams.
package struct StagePlan: Equatable, Sendable {
  let stages: [LoadStage]

  package init(_ stages: [LoadStage]) { self.stages = stages }

  /// The total duration of all stages in nanoseconds, which saturates at 63 bits.
  package var duration: Int64 { stages.reduce(0) { $0.addingSaturated($1.duration) } }

  /// The maximum number of streams that are live at once.
  var peak: Int { stages.map(\.streams).max() ?? 0 }

  /// When the stream with this number lives, in nanoseconds since the run's start: whenever the plan has more live
  /// streams than its number.
  func lives(of stream: Int) -> [Range<Int64>] {
    var lives: [Range<Int64>] = []
    var (start, level): (Int64, Int) = (0, 0)
    var birth: Int64?
    for stage in stages {
      let end = start.addingSaturated(stage.duration)
      if birth == nil, stage.streams > stream {
        birth = crossing(level, stage, from: start, at: stream)
      } else if let born = birth, stage.streams <= stream {
        let death = crossing(level, stage, from: start, at: stream)
        if death > born { lives.append(born..<death) }
        birth = nil
      }
      (start, level) = (end, stage.streams)
    }
    if let birth, birth < start { lives.append(birth..<start) }
    return lives
  }

  /// When a stage that begins with `level` streams crosses the number of this stream, which is between both levels.
  private func crossing(_ level: Int, _ stage: LoadStage, from start: Int64, at stream: Int) -> Int64 {
    let (distance, whole) = (Double(stream - level), Double(stage.streams - level))
    return start.addingSaturated(Int64(saturating: Double(stage.duration) * (distance / whole)))
  }
}
