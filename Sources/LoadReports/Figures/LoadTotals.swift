// Everything that is only counted.

/// The sums of a run.
public struct LoadTotals: Equatable, Sendable {
  /// How many streams there were, and how they ended.
  public var streams = Streams()
  /// How many messages came due, and what became of them.
  public var messages = Messages()
  /// How many bytes of messages came due, and what became of them.
  public var bytes = Bytes()
  /// How many connections were lost.
  public var interruptions = Interruptions()
  /// Connections that were opened.
  public var connects: UInt64 = 0
  /// 100, 104 and other interim responses that arrived.
  public var interimResponses: UInt64 = 0
  /// Final responses by status.
  public var responses: [Int: UInt64] = [:]
  /// By class: `refused`, `reset`, `http-503`, …
  public var errors: [String: ErrorClass] = [:]
  /// When streams stood still that nobody cut on purpose.
  package var outages = OutageLedger()

  /// Sums of nothing.
  public init() {}

  /// Counts of streams.
  public struct Streams: Equatable, Sendable {
    /// Began, with their first attempt to connect.
    public var started: UInt64 = 0
    /// Came to their planned end, or to that of the run, and everything was acknowledged.
    public var finished: UInt64 = 0
    /// Gave up.
    public var failed: UInt64 = 0
    /// The most that were live at one time; of several parts, the sum of theirs.
    public var peakLive: UInt64 = 0

    /// Zero of everything.
    public init() {}
  }

  /// Counts of messages.
  public struct Messages: Equatable, Sendable {
    /// Their time came.
    public var due: UInt64 = 0
    /// Handed to the engine.
    public var sent: UInt64 = 0
    /// Acknowledged by the server: 104 or 2xx.
    public var acknowledged: UInt64 = 0
    /// Never sent, because as many requests as may be were under way: with an arrival rate only.
    public var dropped: UInt64 = 0

    /// Zero of everything.
    public init() {}
  }

  /// Counts of bytes, without framing.
  public struct Bytes: Equatable, Sendable {
    /// Of all messages whose time came.
    public var offered: UInt64 = 0
    /// Handed to the engine.
    public var sent: UInt64 = 0
    /// Taken by this machine's TCP.
    public var accepted: UInt64 = 0
    /// Acknowledged by the server: 104 or 2xx.
    public var acknowledged: UInt64 = 0
    /// Sent more than once, after an interruption.
    public var sentAgain: UInt64 = 0
    /// Given up: never to be acknowledged.
    public var lost: UInt64 = 0

    /// Zero of everything.
    public init() {}
  }

  /// Counts of lost connections.
  public struct Interruptions: Equatable, Sendable {
    /// Connections that the generator cut, as the profile asks.
    public var onPurpose: UInt64 = 0
    /// All others: each stream counts once, however many attempts it takes until it is back.
    public var unplanned: UInt64 = 0
    /// Attempts that failed before the stream was back.
    public var failedAttempts: UInt64 = 0

    /// Zero of everything.
    public init() {}

    /// All of them.
    public var total: UInt64 { onPurpose + unplanned }
  }

  /// Errors that are alike.
  public struct ErrorClass: Equatable, Sendable {
    /// How many there were.
    public var count: UInt64 = 0
    /// What the first one said, on one line.
    public var example = ""

    /// Zero of everything.
    public init() {}
  }

  /// Errors of all classes.
  public var errorCount: UInt64 { errors.values.reduce(0) { $0 + $1.count } }

  /// Counts an error.
  ///
  /// - Parameters:
  ///   - name: its class, a short word that never differs between two errors that are alike.
  ///   - example: what this one says; the first one of a class is kept.
  package mutating func countError(_ name: String, example: @autoclosure () -> String) {
    if errors[name] == nil { errors[name, default: ErrorClass()].example = example() }
    errors[name]?.count += 1
  }

  /// Adds the sums of others: of another loop, or another part.
  package mutating func merge(_ other: LoadTotals) {
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
      // Not the first of all, but the same one whatever the order.
      if ours.example.isEmpty || (!theirs.example.isEmpty && theirs.example < ours.example) {
        ours.example = theirs.example
      }
      errors[name] = ours
    }
  }
}
