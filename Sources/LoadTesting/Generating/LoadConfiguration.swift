// Everything that can be chosen about a load test.

internal import EventLoops
public import LiveStreaming
public import LoadReports
public import UploadClient

/// What a ``LoadTest`` does.
public struct LoadConfiguration: Sendable {
  /// Where to, and how; each stream adds its `Stream-ID`.
  public var request: UploadRequest
  /// More URLs. The streams use the request's and these in turn.
  public var otherURLs: [String] = []
  /// What a stream sends, and when.
  public var profile = LoadProfile.mic
  /// All streams of the run, over all parts.
  public var streams = 1
  /// In which time they are started.
  public var ramp = Duration.zero
  /// How many streams are live when, in place of `streams`, `ramp` and `duration`; empty for the same number all the
  /// time.
  public var stages: [LoadStage] = [] {
    didSet {
      guard !stages.isEmpty else { return }
      let plan = StagePlan(stages)
      (streams, ramp, duration) = (plan.peak, .zero, .nanoseconds(plan.duration))
    }
  }
  /// An open model, for ``sendsRequestPerMessage``: requests begin at these times, whatever the server does. Of the
  /// profile remains the size of a message, and of ``streams`` which of several URLs and loops take a request in turn.
  public var arrivals: Arrivals? {
    didSet {
      guard let stages = arrivals?.stages, !stages.isEmpty else { return }
      (ramp, duration) = (.zero, .nanoseconds(StagePlan(stages).duration))
    }
  }

  /// When the requests of an open model begin.
  public struct Arrivals: Equatable, Sendable {
    /// Requests per second of the whole run, from the ramp's end on; with stages, at the start of the first.
    public var rate: Double
    /// In place of ramp and duration: each changes the rate evenly to so many per second.
    public var stages: [LoadStage] = []
    /// How many requests may be under way at one time, over all parts. One that is due beyond that is never sent.
    public var maximumUnderWay = 1000

    /// A constant rate, in requests per second of the whole run.
    public init(rate: Double) { self.rate = rate }
  }
  /// How long the run lasts, the ramp included.
  public var duration = Duration.seconds(10)
  /// Which part of the run this is, 1 to `count`.
  public var part = (index: 1, count: 1)
  /// Decides everything that is random: sizes, lengths, faults.
  public var seed: UInt64 = 0
  /// Network loops, each with a thread of its own.
  public var threads = 1
  /// Whether streams are resumable uploads.
  public var resumable = LiveStreamConfiguration.ResumableUse.auto
  /// Each message is a request of its own, over kept connections. It is not repeated when it fails.
  public var sendsRequestPerMessage = false
  /// When one request of a resumable upload ends and the next begins. Long by default: what is acknowledged within a
  /// request needs no end of it.
  public var rollOverAfter = Duration.seconds(120)
  /// What a device in a stream's place could keep, in bytes: an outage may last as long as that.
  public var buffer = 1 << 20
  /// A stream ends as failed when nothing of it was acknowledged for so long.
  public var giveUpAfter = Duration.seconds(30)
  /// The longest pause between two attempts of a stream.
  public var retryCeiling = RetryPolicy().maximumCeiling
  /// A stream ends as failed when it is refused for this long.
  public var giveUpOnRefusalAfter: Duration?
  /// After the run's end: how long what is under way may take to be acknowledged.
  public var grace = Duration.seconds(10)
  /// Addresses of this machine to connect from, in turns; empty leaves it to the kernel, or takes as many loopback
  /// addresses as needed for a server on loopback.
  public var localAddresses: [String] = []
  /// HTTP/2 only: how many streams share a connection.
  public var streamsPerConnection = 100
  /// Hosts that may be loaded although they are not this machine.
  public var permittedHosts: [String] = []
  /// The run ends when this number of bytes was sent.
  public var maximumByteCount: UInt64 = 1 << 40
  /// The run ends when this number of connections was opened.
  public var maximumConnectionCount: UInt64 = 1_000_000

  /// One stream of a microphone for ten seconds.
  ///
  /// - Parameter request: where to, and how.
  public init(request: UploadRequest) { self.request = request }

  /// The request for each URL, in the order in which the streams take them.
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

  /// How many requests a loop may have under way in an open model: its share, and one at least.
  var underWayPerLoop: Int {
    max(1, (arrivals?.maximumUnderWay ?? 0) / max(1, part.count * threads))
  }

  /// How many of the streams are this part's.
  package var share: Int { LoadPart(self).streamIndices(of: streams).underestimatedCount }

  /// Whether it is known when this machine's TCP has taken a message: over HTTP/2 libcurl and the streams of one
  /// connection keep bytes of their own in between.
  var tellsAccepted: Bool { request.httpVersion != .http2 && !sendsRequestPerMessage }

  /// Whether streams share connections.
  var sharesConnections: Bool { request.httpVersion == .http2 && streamsPerConnection > 1 }
}
