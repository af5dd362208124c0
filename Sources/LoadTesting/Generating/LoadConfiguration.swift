// All settings of a load test.

internal import EventLoops
public import LiveStreaming
public import LoadReports
public import UploadClient

/// The settings of a ``LoadTest``.
public struct LoadConfiguration: Sendable {
  /// The destination and the settings of the requests. Each stream adds its `Stream-ID`.
  public var request: UploadRequest
  /// More URLs. The streams use the request's URL and these in turn.
  public var otherURLs: [String] = []
  /// The content and the schedule of a stream.
  public var profile = LoadProfile.mic
  /// The number of streams of the run, over all parts.
  public var streams = 1
  /// The time over which the streams start.
  public var ramp = Duration.zero
  /// The number of live streams over time, instead of `streams`, `ramp` and `duration`. Empty for a constant number.
  public var stages: [LoadStage] = [] {
    didSet {
      guard !stages.isEmpty else { return }
      let plan = StagePlan(stages)
      (streams, ramp, duration) = (plan.peak, .zero, .nanoseconds(plan.duration))
    }
  }
  /// An open model for ``sendsRequestPerMessage``: requests begin at these times, regardless of the server. Only the
  /// size of a message is used from the profile, and ``streams`` determines the URL and the loop of a request in turn.
  public var arrivals: Arrivals? {
    didSet {
      guard let stages = arrivals?.stages, !stages.isEmpty else { return }
      (ramp, duration) = (.zero, .nanoseconds(StagePlan(stages).duration))
    }
  }

  /// The times at which the requests of an open model begin.
  public struct Arrivals: Equatable, Sendable {
    /// Requests per second of the whole run after the ramp. With stages, the rate at the start of the first one.
    public var rate: Double
    /// Stages instead of ramp and duration. Each changes the rate linearly to its number of requests per second.
    public var stages: [LoadStage] = []
    /// The maximum number of requests in progress, over all parts. A request that is due beyond it is never sent.
    public var maximumUnderWay = 1000

    /// Creates a constant rate, in requests per second of the whole run.
    public init(rate: Double) { self.rate = rate }
  }
  /// The duration of the run, including the ramp.
  public var duration = Duration.seconds(10)
  /// The part of the run, from 1 to `count`.
  public var part = (index: 1, count: 1)
  /// The seed of all random values: sizes, lengths, faults.
  public var seed: UInt64 = 0
  /// The number of network loops, each with its own thread.
  public var threads = 1
  /// Whether streams are resumable uploads.
  public var resumable = LiveStreamConfiguration.ResumableUse.auto
  /// Whether each message is a separate request, over persistent connections. A failed request is not repeated.
  public var sendsRequestPerMessage = false
  /// The time after which one request of a resumable upload ends and the next begins. The default is long, because
  /// acknowledgements within a request do not require its end.
  public var rollOverAfter = Duration.seconds(120)
  /// The buffer of a simulated device in bytes, which determines how long an outage may last without a loss.
  public var buffer = 1 << 20
  /// The time without an acknowledgement after which a stream fails.
  public var giveUpAfter = Duration.seconds(30)
  /// The longest delay between two attempts of a stream.
  public var retryCeiling = RetryPolicy().maximumCeiling
  /// The time of refusals after which a stream fails.
  public var giveUpOnRefusalAfter: Duration?
  /// The time after the end of the run to receive outstanding acknowledgements.
  public var grace = Duration.seconds(10)
  /// Addresses of this machine to connect from, in turn. Empty leaves the choice to the kernel, or uses the required
  /// number of loopback addresses for a server on loopback.
  public var localAddresses: [String] = []
  /// HTTP/2 only: the number of streams that share a connection.
  public var streamsPerConnection = 100
  /// Hosts other than this machine that may be loaded.
  public var permittedHosts: [String] = []
  /// The number of sent bytes at which the run ends.
  public var maximumByteCount: UInt64 = 1 << 40
  /// The number of opened connections at which the run ends.
  public var maximumConnectionCount: UInt64 = 1_000_000

  /// Creates the configuration of one stream of a microphone for ten seconds.
  ///
  /// - Parameter request: the destination and the settings of the requests.
  public init(request: UploadRequest) { self.request = request }

  /// The request for each URL, in the order in which streams use them.
  var requests: [UploadRequest] {
    [request]
      + otherURLs.map { url in
        var other = request
        other.url = url
        return other
      }
  }

  var arrivalPlan: ArrivalPlan? {
    arrivals.map {
      ArrivalPlan(rate: $0.rate, ramp: ramp.nanoseconds, stages: $0.stages, duration: duration.nanoseconds)
    }
  }

  /// How many requests a loop with streams may have under way in an open model: its share, and at least one.
  var underWayPerLoop: Int {
    max(1, (arrivals?.maximumUnderWay ?? 0) / max(1, part.count * usedLoopCount))
  }

  /// The number of loops with streams. With fewer streams than threads, the other loops have none.
  var usedLoopCount: Int { min(threads, share) }

  /// How many of the streams belong to this part.
  package var share: Int { LoadPart(self).streamIndices(of: streams).underestimatedCount }

  /// Whether it is known when this machine's TCP has accepted a message. Over HTTP/2, libcurl and the other streams of
  /// a connection keep bytes in between.
  var tellsAccepted: Bool { request.httpVersion != .http2 && !sendsRequestPerMessage }

  /// Whether streams share connections.
  var sharesConnections: Bool { request.httpVersion == .http2 && streamsPerConnection > 1 }
}
