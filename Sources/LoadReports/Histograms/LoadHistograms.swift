// The histograms of the delays of a run, by name.

/// The measures of every message, connection or interruption.
public enum LoadMeasure: String, CaseIterable, Sendable {
  /// Connections: from the request for one until it is established.
  case connect
  /// Requests: from sending the head to the first interim response (100, 104).
  case interim
  /// Messages: from due to accepted by this machine's TCP.
  case accepted
  /// Messages: from due to acknowledged by the server (104, 2xx).
  case acknowledged
  /// The same for streams that are slow on purpose, which the previous measure excludes.
  case acknowledgedSlow = "acknowledged-slow"
  /// Messages: from due until they were passed to the engine, or would have been if there had been space.
  case lateness
  /// The time without space for a due message.
  case stall
  /// From an interruption to the server's next acknowledgement of bytes, without the generator's own pauses between
  /// attempts.
  case resume
  /// The same with these pauses: the time during which the stream made no progress.
  case outage
  /// Requests: from the end of the content to the final response.
  case response
  /// Streams: from one acknowledgement of the server to the next.
  case rhythm
  /// The size of a message, in bytes.
  case message

  /// Whether its values are delays.
  var isDelay: Bool { self != .message }

  /// The beginning and the end of the measured time, for tables and help.
  var meaning: String {
    switch self {
    case .connect: "from asking for a connection to having it"
    case .interim: "from the head of a request to its first interim response (100, 104)"
    case .accepted: "from due to accepted by this machine's TCP; not with HTTP/2"
    case .acknowledged: "from due to acknowledged by the server (104, 2xx)"
    case .acknowledgedSlow: "the same as ack, for streams that are slow on purpose"
    case .lateness: "how late the generator sent a message that was due: its own delay"
    case .stall: "how long there was no space for a message that was due"
    case .resume: "the same as outage, without the generator's own pauses between attempts"
    case .outage: "from a lost connection to the next acknowledged byte"
    case .response: "from the end of a request's content to its final response"
    case .rhythm: "from one acknowledgement of a stream to its next"
    case .message: "the size of a message"
    }
  }

  fileprivate var position: Int {
    switch self {
    case .connect: 0
    case .interim: 1
    case .accepted: 2
    case .acknowledged: 3
    case .acknowledgedSlow: 4
    case .lateness: 5
    case .stall: 6
    case .resume: 7
    case .message: 8
    case .outage: 9
    case .response: 10
    case .rhythm: 11
    }
  }
}

/// A histogram for each ``LoadMeasure``.
package struct LoadHistograms: Equatable, Sendable {
  private var histograms = [LatencyHistogram](repeating: LatencyHistogram(), count: LoadMeasure.allCases.count)

  package init() {}

  package subscript(measure: LoadMeasure) -> LatencyHistogram {
    get { histograms[measure.position] }
    _modify { yield &histograms[measure.position] }
  }

  /// Counts a value. A negative value counts as zero.
  package mutating func record(_ value: Int64, as measure: LoadMeasure) { histograms[measure.position].record(value) }

  package mutating func merge(_ other: LoadHistograms) {
    for measure in LoadMeasure.allCases { self[measure].merge(other[measure]) }
  }
}
