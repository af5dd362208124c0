// The measurements of one load test as a value, from which everything is printed, compared and judged.

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
  /// The plan of all parts together.
  package var plan = LoadPlan()
  /// The parts: one, or all that were merged, in the order of their numbers.
  package var parts: [LoadPart] = []
  /// The sums of the run.
  public var totals = LoadTotals()
  package var histograms = LoadHistograms()
  /// How the streams differed from each other.
  package var spread = StreamSpread()
  package var generator = GeneratorFigures()
  /// One row per second, or fewer in a long run.
  package var intervals = IntervalSeries()

  /// Creates an empty report.
  public init() {}
}

/// The plan of a run. Two reports belong to one run only if their plans are equal.
package struct LoadPlan: Equatable, Sendable {
  /// All streams of the run, over all parts.
  package var streams = 0
  /// The time over which their starts are distributed evenly.
  package var ramp: Int64 = 0
  /// The planned number of live streams over time; empty for all.
  package var stages: [LoadStage] = []
  /// The duration of the run, including the ramp.
  package var duration: Int64 = 0
  /// The profile's name.
  package var profile = ""
  /// Bytes per second per stream while it is active; 0 for the maximum speed.
  package var rate: UInt64 = 0
  /// The time from one message of a stream to its next.
  package var chunk: Int64 = 0
  /// `zeros`, `random`, `pattern`, or a file's name.
  package var body = ""
  /// `always`, `never` or `auto`.
  package var resumable = ""
  /// Whether each message was a separate request.
  package var requestPerMessage = false
  /// Requests per second of the whole run, or at the start of ``stages``, which then contain rates as well; nil if each
  /// stream has its own schedule.
  package var arrivalRate: Double?
  /// The maximum number of them under way at once.
  package var maximumUnderWay: Int?
  /// `1.1` or `2`.
  package var httpVersion = ""
  /// How many streams share a connection; nil if each has its own.
  package var streamsPerConnection: Int?
  /// The mean time after which a connection is cut on purpose; nil for never.
  package var dropEvery: Int64?
  /// The share of streams that are slow on purpose, 0 to 1.
  package var slowFraction = 0.0
  package var seed: UInt64 = 0

  package init() {}
}

/// One process of a run: its share, and its machine.
package struct LoadPart: Equatable, Sendable {
  /// The maximum number of parts of a run.
  static let largestCount = 10_000

  /// From 1 to ``count``.
  package var index = 1
  package var count = 1
  package var seed: UInt64 = 0
  /// The machine's name.
  package var host = ""
  /// The processors available to this process.
  package var cores = 0
  /// The number of network loops.
  package var threads = 1
  /// The duration of its measurement, if its report was merged with others; otherwise nil, as in reports of older
  /// versions.
  package var measured: Int64?

  package init() {}
}

/// The generator's own figures, and whether it was the bottleneck.
package struct GeneratorFigures: Equatable, Sendable {
  /// Processor time of the process, in user mode and in the kernel.
  package var userTime: Int64 = 0
  package var systemTime: Int64 = 0
  /// Its maximum resident memory in bytes; the sum over all parts.
  package var maximumResident: UInt64 = 0
  /// The share of time in which the busiest loop was not waiting, 0 to 1.
  package var busiestLoop = 0.0
  /// Why the figures describe the generator rather than the server, in words; empty if it kept up.
  package var bottlenecks: [String] = []

  /// The generator did not keep up, so it has caused at least some of the delays in the report.
  package var isBottleneck: Bool { !bottlenecks.isEmpty }

  package init() {}
}
