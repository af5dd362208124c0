// All counts of a run.

/// The sums of a run.
public struct LoadTotals: Equatable, Sendable {
  /// The number of streams, and their results.
  public var streams = Streams()
  /// The number of due messages, and their results.
  public var messages = Messages()
  /// The number of due bytes of messages, and their results.
  public var bytes = Bytes()
  /// The number of lost connections.
  public var interruptions = Interruptions()
  /// The number of opened connections.
  public var connects: UInt64 = 0
  /// The number of 100, 104 and other interim responses.
  public var interimResponses: UInt64 = 0
  /// The number of final responses by status.
  public var responses: [Int: UInt64] = [:]
  /// The errors by class: `refused`, `reset`, `http-503`, …
  public var errors: [String: ErrorClass] = [:]
  /// When streams stood still without a deliberate cut.
  package var outages = OutageLedger()

  /// Creates totals of zero.
  public init() {}

  /// Counts of streams.
  public struct Streams: Equatable, Sendable {
    /// Streams that started, with their first attempt to connect.
    public var started: UInt64 = 0
    /// Streams that reached their planned end, or that of the run, with everything acknowledged.
    public var finished: UInt64 = 0
    /// Streams that gave up.
    public var failed: UInt64 = 0
    /// The highest number of simultaneous live streams. For several parts, the sum of theirs.
    public var peakLive: UInt64 = 0
    /// The fewest live streams in the incomplete last second, at the end of the run or after a loss; nil in reports of
    /// older versions. For several loops or parts, the sum of theirs.
    package var fewestLiveAtEnd: UInt64?

    /// Creates counts of zero.
    public init() {}
  }

  /// Counts of messages.
  public struct Messages: Equatable, Sendable {
    /// Messages that became due.
    public var due: UInt64 = 0
    /// Messages that were passed to the engine.
    public var sent: UInt64 = 0
    /// Messages that the server acknowledged: 104 or 2xx.
    public var acknowledged: UInt64 = 0
    /// Messages that were never sent, because too many requests were in progress. Only with an arrival rate.
    public var dropped: UInt64 = 0

    /// Creates counts of zero.
    public init() {}
  }

  /// Counts of bytes, without framing.
  public struct Bytes: Equatable, Sendable {
    /// Bytes of all messages that became due.
    public var offered: UInt64 = 0
    /// Bytes that were passed to the engine.
    public var sent: UInt64 = 0
    /// Bytes that this machine's TCP accepted.
    public var accepted: UInt64 = 0
    /// Bytes that the server acknowledged: 104 or 2xx.
    public var acknowledged: UInt64 = 0
    /// Bytes that were sent more than once, after an interruption.
    public var sentAgain: UInt64 = 0
    /// Lost bytes, which will never be acknowledged.
    public var lost: UInt64 = 0

    /// Creates counts of zero.
    public init() {}
  }

  /// Counts of lost connections.
  public struct Interruptions: Equatable, Sendable {
    /// Connections that the generator cut, as the profile requires.
    public var onPurpose: UInt64 = 0
    /// All other lost connections. Each interruption of a stream counts once, regardless of the number of attempts.
    public var unplanned: UInt64 = 0
    /// Attempts that failed before the stream was connected again.
    public var failedAttempts: UInt64 = 0

    /// Creates counts of zero.
    public init() {}

    /// The number of all interruptions.
    public var total: UInt64 { onPurpose + unplanned }
  }

  /// Errors of one class.
  public struct ErrorClass: Equatable, Sendable {
    /// The number of errors.
    public var count: UInt64 = 0
    /// The text of the first error, on one line.
    public var example = ""

    /// Creates a class without errors.
    public init() {}
  }

  /// The number of errors of all classes.
  public var errorCount: UInt64 { errors.values.reduce(0) { $0 + $1.count } }

  /// Counts an error.
  ///
  /// - Parameters:
  ///   - name: its class, a short word that is the same for all errors of a kind.
  ///   - example: its text. The first one of a class is kept.
  package mutating func countError(_ name: String, example: @autoclosure () -> String) {
    if errors[name] == nil { errors[name, default: ErrorClass()].example = example() }
    errors[name]?.count += 1
  }

  /// Adds the sums of another loop or part.
  package mutating func merge(_ other: LoadTotals) {
    // A loop or a total without streams adds nothing.
    if streams.started == 0 {
      streams.fewestLiveAtEnd = other.streams.fewestLiveAtEnd
    } else if other.streams.started > 0 {
      streams.fewestLiveAtEnd = streams.fewestLiveAtEnd.flatMap { ours in
        other.streams.fewestLiveAtEnd.map { ours + $0 }
      }
    }
    streams.started += other.streams.started
    streams.finished += other.streams.finished
    streams.failed += other.streams.failed
    streams.peakLive += other.streams.peakLive
    messages.due += other.messages.due
    messages.sent += other.messages.sent
    messages.acknowledged += other.messages.acknowledged
    messages.dropped += other.messages.dropped
    bytes.offered += other.bytes.offered
    bytes.sent += other.bytes.sent
    bytes.accepted += other.bytes.accepted
    bytes.acknowledged += other.bytes.acknowledged
    bytes.sentAgain += other.bytes.sentAgain
    bytes.lost += other.bytes.lost
    interruptions.onPurpose += other.interruptions.onPurpose
    interruptions.unplanned += other.interruptions.unplanned
    interruptions.failedAttempts += other.interruptions.failedAttempts
    connects += other.connects
    interimResponses += other.interimResponses
    responses.merge(other.responses, uniquingKeysWith: +)
    outages.merge(other.outages)
    for (name, theirs) in other.errors {
      var ours = errors[name] ?? ErrorClass()
      ours.count += theirs.count
      // Not the first of all, but independent of the order.
      if ours.example.isEmpty || (!theirs.example.isEmpty && theirs.example < ours.example) {
        ours.example = theirs.example
      }
      errors[name] = ours
    }
  }
}
