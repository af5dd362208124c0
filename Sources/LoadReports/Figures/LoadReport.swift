// The measurements of one load test as one value. Everything that is shown, compared or judged comes from here.

/// The report of a load test, or of one part of it.
///
/// Times are in nanoseconds. Byte counts are bytes of streams, without framing and heads. ``merge(_:)`` combines the
/// reports of the parts of one run. Histograms and sums are stored because they can be merged exactly.
public struct LoadReport: Equatable, Sendable {
  /// The version of the JSON format that this version of Sluice writes.
  public static let formatVersion = 1

  /// The version of Sluice that ran the test.
  public var sluiceVersion = ""
  /// The URL of the test, without user, password and query. Several URLs are separated by commas.
  public var target = ""
  /// The start of the run by the wall clock: ISO 8601 in UTC, `2026-01-31T12:00:00Z`.
  public var startedAt = ""
  /// The duration of the measurement: from the run's start until nothing more was offered. Messages in progress at that
  /// time count as well.
  public var measured: Int64 = 0
  /// What was asked for, of all parts together.
  package var plan = LoadPlan()
  /// Who ran it: one for a part, or all that were merged, in the order of their numbers.
  package var parts: [LoadPart] = []
  /// The sums of the run.
  public var totals = LoadTotals()
  package var histograms = LoadHistograms()
  /// How the streams differed from each other.
  package var spread = StreamSpread()
  package var generator = GeneratorFigures()
  /// One row a second, or less often in a long run.
  package var intervals = IntervalSeries()

  /// An empty report.
  public init() {}
}

/// What a run was asked to do. Two reports belong to one run only if this is equal.
package struct LoadPlan: Equatable, Sendable {
  /// All streams of the run, over all parts.
  package var streams = 0
  /// In which time they are started, evenly.
  package var ramp: Int64 = 0
  /// How many of them were to be live when; empty for all of them.
  package var stages: [LoadStage] = []
  /// How long the run lasts, the ramp included.
  package var duration: Int64 = 0
  /// The profile's name.
  package var profile = ""
  /// Bytes a second and stream while it talks; 0 for as fast as they are taken.
  package var rate: UInt64 = 0
  /// The time from one message of a stream to its next.
  package var chunk: Int64 = 0
  /// `zeros`, `random`, `pattern`, or a file's name.
  package var body = ""
  /// `always`, `never` or `auto`.
  package var resumable = ""
  /// Each message was a request of its own.
  package var requestPerMessage = false
  /// Requests per second of the whole run, or at the start of ``stages``, which then are rates as well; nil where each
  /// stream has a schedule of its own.
  package var arrivalRate: Double?
  /// How many of them could be under way at one time.
  package var maximumUnderWay: Int?
  /// `1.1` or `2`.
  package var httpVersion = ""
  /// How many streams share a connection; nil where each has its own.
  package var streamsPerConnection: Int?
  /// The mean time after which a connection is cut on purpose; nil for never.
  package var dropEvery: Int64?
  /// The part of all streams that are slow on purpose, 0 to 1.
  package var slowFraction = 0.0
  package var seed: UInt64 = 0

  package init() {}
}

/// One process of a run: its share, and the machine that it ran on.
package struct LoadPart: Equatable, Sendable {
  /// How many parts a run can have.
  static let largestCount = 10_000

  /// From 1 to ``count``.
  package var index = 1
  package var count = 1
  package var seed: UInt64 = 0
  /// The machine's name.
  package var host = ""
  /// The processors that this process could use.
  package var cores = 0
  /// Network loops.
  package var threads = 1

  package init() {}
}

/// The generator's own figures, and whether it was the one that could not keep up.
package struct GeneratorFigures: Equatable, Sendable {
  /// Processor time of the process, in its own code and in the kernel.
  package var userTime: Int64 = 0
  package var systemTime: Int64 = 0
  /// The most memory that it had resident, in bytes; the sum over the parts.
  package var maximumResident: UInt64 = 0
  /// The part of the time that the busiest loop was not waiting, 0 to 1.
  package var busiestLoop = 0.0
  /// Why the figures tell more about the generator than about the server, in words; empty when it kept up.
  package var bottlenecks: [String] = []

  /// The generator did not keep up: delays in the report are its own at least in part.
  package var isBottleneck: Bool { !bottlenecks.isEmpty }

  package init() {}
}
