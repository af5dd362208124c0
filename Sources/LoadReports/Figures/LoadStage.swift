// One stage of a run: what was asked for, as a configuration gives it and a report repeats it.

package import JSONDocuments

/// A stretch of a run in which the number of live streams changes evenly from that of the stage before to ``streams``.
public struct LoadStage: Equatable, Sendable {
  /// In nanoseconds.
  public var duration: Int64 = 0
  /// Live at its end. In a run with an arrival rate, requests per second at its end.
  public var streams = 0

  /// A stage without streams and without length.
  public init() {}

  /// A stage that ends after `duration` nanoseconds with `streams` live streams.
  public init(duration: Int64, streams: Int) {
    self.duration = duration
    self.streams = streams
  }
}

extension LoadStage: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("duration_ns", &duration)
    try member("streams", &streams)
  }
}
