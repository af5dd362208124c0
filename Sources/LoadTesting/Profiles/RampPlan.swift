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
  /// Replaces the ramp; nil if all streams live until the run's end.
  let stages: StagePlan?

  init(streams: Int, ramp: Int64, chunk: Int64, stages: StagePlan? = nil) {
    self.streams = streams
    self.ramp = ramp
    self.chunk = max(1, chunk)
    self.stages = stages
  }

  /// The life of a stream that includes this time, or the next life; nil if there is none. It begins at the stream's
  /// offset in its period.
  func life(of stream: Int, from time: Int64) -> Range<Int64>? {
    guard let stages else { return max(time, start(of: stream))..<Int64.max }
    guard let life = stages.lives(of: stream).first(where: { $0.upperBound > time }) else { return nil }
    let offset = Self.startOffset(of: stream, chunk: chunk)
    let begin = max(life.lowerBound, time)
    let start = begin.addingSaturated((offset - begin % chunk + chunk) % chunk)
    // A life that would end before this offset begins at once.
    return (start < life.upperBound ? start : begin)..<life.upperBound
  }

  /// Whether the stream lives at this time, or begins within one period.
  func hasLife(of stream: Int, at time: Int64) -> Bool {
    guard let life = life(of: stream, from: time) else { return false }
    return life.lowerBound <= time.addingSaturated(chunk)
  }

  /// The offset of a stream's messages within the period. The offsets of consecutive streams are distributed evenly
  /// over the period, and so are those of every n-th stream.
  ///
  /// The fractional part of the stream's number times the golden ratio (Weyl's sequence).
  static func startOffset(of stream: Int, chunk: Int64) -> Int64 {
    let turn = UInt64(bitPattern: Int64(stream)) &* 0x9E37_79B9_7F4A_7C15
    return Int64(turn.multipliedFullWidth(by: UInt64(max(1, chunk))).high)
  }

  /// When a stream begins, in nanoseconds since the run's start: at its place on the ramp or up to one period later, at
  /// its offset. Its message *k* is due *k* periods after that.
  func start(of stream: Int) -> Int64 {
    let place = Int64(Double(ramp) * Double(stream) / Double(max(1, streams)))
    let offset = Self.startOffset(of: stream, chunk: chunk)
    let wait = (offset - place % chunk + chunk) % chunk
    return place + wait
  }
}
