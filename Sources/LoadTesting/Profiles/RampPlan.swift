// The start of each stream of a run. Starts are distributed evenly over the ramp, so that thousands of streams with the
// same period do not send simultaneously.

internal import LoadReports

/// The starts of all streams of a run.
struct RampPlan: Equatable, Sendable {
  /// All streams of the run, over all parts.
  let streams: Int
  /// In nanoseconds.
  let ramp: Int64
  /// The time from one message of a stream to the next, in nanoseconds.
  let chunk: Int64
  /// In place of the ramp; nil where all streams live to the run's end.
  let stages: StagePlan?

  init(streams: Int, ramp: Int64, chunk: Int64, stages: StagePlan? = nil) {
    self.streams = streams
    self.ramp = ramp
    self.chunk = max(1, chunk)
    self.stages = stages
  }

  /// The life of a stream that contains this time, or else the next one; nil if there is none. It begins when the
  /// stream's turn comes.
  func life(of stream: Int, from time: Int64) -> Range<Int64>? {
    guard let stages else { return max(time, start(of: stream))..<Int64.max }
    guard let life = stages.lives(of: stream).first(where: { $0.upperBound > time }) else { return nil }
    let offset = Self.startOffset(of: stream, chunk: chunk)
    let begin = max(life.lowerBound, time)
    let start = begin.addingSaturated((offset - begin % chunk + chunk) % chunk)
    // One that ends before its turn would come begins at once.
    return (start < life.upperBound ? start : begin)..<life.upperBound
  }

  /// Where in the period a stream's messages are due, from 0 to the period: any number of streams that follow each
  /// other are spread evenly over it, and so is every n-th of them.
  ///
  /// The stream's number times the golden ratio, of which only the fraction counts (Weyl's sequence).
  static func startOffset(of stream: Int, chunk: Int64) -> Int64 {
    let turn = UInt64(bitPattern: Int64(stream)) &* 0x9E37_79B9_7F4A_7C15
    return Int64(turn.multipliedFullWidth(by: UInt64(max(1, chunk))).high)
  }

  /// When a stream begins, in nanoseconds since the run's start: its place on the ramp, or up to one period later, when
  /// its turn comes. Its message *k* is due *k* periods after that.
  func start(of stream: Int) -> Int64 {
    let place = Int64(Double(ramp) * Double(stream) / Double(max(1, streams)))
    let offset = Self.startOffset(of: stream, chunk: chunk)
    let wait = (offset - place % chunk + chunk) % chunk
    return place + wait
  }
}
