// How many streams are live when: rising and falling in straight lines, as the users of k6 and Locust write it.

/// A stretch of a run in which the number of live streams changes evenly from that of the stage before to ``streams``.
public struct LoadStage: Equatable, Sendable {
  /// In nanoseconds.
  public var duration: Int64 = 0
  /// Live at its end; requests per second at its end where they are those of ``LoadConfiguration/Arrivals``.
  public var streams = 0

  /// A stage without streams and without length.
  public init() {}

  /// A stage that ends after `duration` nanoseconds with `streams` live streams.
  public init(duration: Int64, streams: Int) {
    self.duration = duration
    self.streams = streams
  }
}

/// The stages of a run, in order. The first one begins with no streams.
package struct StagePlan: Equatable, Sendable {
  let stages: [LoadStage]

  package init(_ stages: [LoadStage]) { self.stages = stages }

  /// The sum of all stages, in nanoseconds; at most what 63 bits hold.
  package var duration: Int64 { stages.reduce(0) { $0.addingSaturated($1.duration) } }

  /// The most streams that are live at one time.
  package var peak: Int { stages.map(\.streams).max() ?? 0 }

  /// When the stream with this number lives, in nanoseconds since the run's start: whenever more streams than its
  /// number are to be live.
  package func lives(of stream: Int) -> [Range<Int64>] {
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

  /// When a stage that begins with `level` streams passes the stream with this number.
  private func crossing(_ level: Int, _ stage: LoadStage, from start: Int64, at stream: Int) -> Int64 {
    let (distance, whole) = (Double(stream - level), Double(stage.streams - level))
    let share = whole == 0 ? 0 : max(0, min(1, distance / whole))
    return start.addingSaturated(Int64(saturating: Double(stage.duration) * share))
  }
}

extension LoadStage: JSONObject {
  mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("duration_ns", &duration)
    try member("streams", &streams)
  }
}
