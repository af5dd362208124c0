// One stage of a run, as a configuration states it and a report repeats it.

package import JSONDocuments

/// A period of a run in which the number of live streams changes linearly from that of the stage before to ``streams``.
public struct LoadStage: Equatable, Sendable {
  /// The duration in nanoseconds.
  public var duration: Int64 = 0
  /// The number of live streams at the end. In a run with an arrival rate, the requests per second at the end.
  public var streams = 0

  /// Creates a stage without streams and without duration.
  public init() {}

  /// Creates a stage of `duration` nanoseconds that ends with `streams` live streams.
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
