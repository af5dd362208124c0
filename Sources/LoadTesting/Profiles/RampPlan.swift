// When each stream of a run begins: evenly over the ramp, and so that thousands with one period do not speak in chorus.

/// The starts of all streams of a run.
public struct RampPlan: Equatable, Sendable {
  /// All streams of the run, over all parts.
  public let streams: Int
  /// In nanoseconds.
  public let ramp: Int64
  /// The time from one message of a stream to the next, in nanoseconds.
  public let chunk: Int64

  public init(streams: Int, ramp: Int64, chunk: Int64) {
    self.streams = streams
    self.ramp = ramp
    self.chunk = max(1, chunk)
  }

  /// Where in the period a stream's messages are due, from 0 to the period: any number of streams that follow each other are
  /// spread evenly over it, and so is every n-th of them.
  ///
  /// The stream's number times the golden ratio, of which only the fraction counts (Weyl's sequence).
  public static func startOffset(of stream: Int, chunk: Int64) -> Int64 {
    let turn = UInt64(bitPattern: Int64(stream)) &* 0x9E37_79B9_7F4A_7C15
    return Int64(turn.multipliedFullWidth(by: UInt64(max(1, chunk))).high)
  }

  /// When a stream begins, in nanoseconds since the run's start: its place on the ramp, or up to one period later, when its
  /// turn comes. Its message *k* is due *k* periods after that.
  public func start(of stream: Int) -> Int64 {
    let place = Int64(Double(ramp) * Double(stream) / Double(max(1, streams)))
    let offset = Self.startOffset(of: stream, chunk: chunk)
    let wait = (offset - place % chunk + chunk) % chunk
    return place + wait
  }
}
