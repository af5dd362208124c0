// The shared state of a run's loops: the plan, the clock, the bytes, and the limits for all loops.

internal import EventLoops
internal import LiveStreaming
internal import StreamBuffers
internal import Synchronization
internal import UploadClient

/// Read by all loops, which write only two counters.
final class LoadRunPlan: Sendable {
  let configuration: LoadConfiguration
  let bytes: BodyBytes
  let clock: RunClock
  let ramp: RampPlan
  /// When requests begin in an open model; nil if each stream has its own schedule.
  let arrivals: ArrivalPlan?
  /// The maximum number of requests that a loop has under way in an open model.
  let underWayPerLoop: Int
  /// In nanoseconds.
  let duration: Int64
  private let requests: [UploadRequest]
  /// The number of loops of all parts.
  private let loopCount: Int
  /// After this number of a loop's streams, their URLs repeat. So it is the number of URLs that the loop uses.
  private let streamsPerRotation: Int
  private let localAddresses: [String]
  /// Part of the streams' names, so that two runs cannot continue each other's streams.
  private let token: String
  private let spentBytes = Atomic<UInt64>(0)
  private let spentConnections = Atomic<UInt64>(0)
  /// Ends the run, with the reason.
  let end: @Sendable (LoadEndReason) -> Void

  init(
    _ configuration: LoadConfiguration, bytes: BodyBytes, localAddresses: [String], clock: RunClock,
    end: @escaping @Sendable (LoadEndReason) -> Void
  ) {
    self.configuration = configuration
    requests = configuration.requests
    let (loops, urls) = (configuration.part.count * configuration.threads, requests.count)
    loopCount = loops
    // A configuration has at least one URL.
    streamsPerRotation = (1...urls).first { $0 * (loops % urls) % urls == 0 } ?? 1
    self.bytes = bytes
    self.localAddresses = localAddresses
    self.clock = clock
    self.end = end
    arrivals = configuration.arrivalPlan
    underWayPerLoop = configuration.underWayPerLoop
    // In an open model, the ramp applies to arrivals. All streams exist from the start, and none is delayed.
    ramp =
      arrivals == nil
      ? RampPlan(
        streams: configuration.streams, ramp: configuration.ramp.nanoseconds, chunk: configuration.profile.chunk,
        stages: configuration.stages.isEmpty ? nil : StagePlan(configuration.stages))
      : RampPlan(streams: configuration.streams, ramp: 0, chunk: 1)
    duration = configuration.duration.nanoseconds
    token = String(LiveStreamConfiguration.randomStreamID().prefix(8))
  }

  /// The configuration of the stream in this place: like any other, with little memory.
  func streamConfiguration(_ place: LoadPlace) -> LiveStreamConfiguration {
    var stream = LiveStreamConfiguration(request: request(of: place, number: place.index))
    stream.streamID =
      "load-\(token)-\(place.index)" + (place.generation > 0 ? "-\(place.generation)" : "")
    stream.resumable = configuration.resumable
    stream.rollOver.after = configuration.rollOverAfter
    // About 35 acknowledgements: 9 kB of memory.
    stream.rollOver.responseHeadSize = 3500
    stream.buffer = .bytes(configuration.buffer)
    stream.retry.giveUpAfter = configuration.giveUpAfter
    stream.retry.maximumCeiling = configuration.retryCeiling
    if let limit = configuration.giveUpOnRefusalAfter { stream.retry.giveUpOnRefusalAfter = limit }
    stream.keepsOrigin = true
    stream.lane = lane(of: place, number: place.index)
    // Large enough for a message, and not larger. Bulk data is released in large pieces.
    stream.pairSize = max(256, min(configuration.profile.messageSize, 64 << 10))
    return stream
  }

  /// The request of a stream, or of one of its messages. URLs and local addresses are used in rotation.
  ///
  /// - Parameter number: the number of the stream, or of the message among all streams.
  func request(of place: LoadPlace, number: Int) -> UploadRequest {
    var request = requests[number % requests.count]
    request.receiveBufferSize = 1024
    request.tellsAccepted = configuration.tellsAccepted
    if !localAddresses.isEmpty {
      // Streams that share a connection use the same address.
      let user = configuration.sharesConnections ? lane(of: place, number: number) : number
      request.localAddress = localAddresses[user / requests.count % localAddresses.count]
    }
    return request
  }

  /// The number of lanes in a loop's session. Streams that share a connection share a lane, with one URL.
  var laneCount: Int {
    let perLoop = (configuration.share + configuration.threads - 1) / configuration.threads
    guard configuration.sharesConnections else { return max(1, perLoop / streamsPerLane) }
    return (max(0, perLoop - 1) / streamsPerRotation / streamsPerLane + 1) * requests.count
  }

  /// The lane of a stream, or of one of its messages.
  ///
  /// - Parameter number: the number of the stream, or of the message among all streams.
  func lane(of place: LoadPlace, number: Int) -> Int {
    // The stream's number within its loop. The part's streams are distributed one by one.
    let position = place.index / loopCount
    guard configuration.sharesConnections else { return position / streamsPerLane }
    return position / streamsPerRotation / streamsPerLane * requests.count + number % requests.count
  }

  private var streamsPerLane: Int {
    // One connection per lane: with several, libcurl opens more than necessary when many streams begin at once.
    configuration.sharesConnections ? configuration.streamsPerConnection : 200
  }

  /// Counts bytes that were passed on. Returns true when the run has reached its limit, and the loop must stop.
  func spend(bytes count: Int) -> Bool {
    let before = spentBytes.wrappingAdd(UInt64(count), ordering: .relaxed).oldValue
    let cap = configuration.maximumByteCount
    guard before + UInt64(count) >= cap else { return false }
    if before < cap { end(.byteLimit(cap)) }
    return true
  }

  /// Counts an opened connection. Returns true if it exceeds the limit.
  func spendConnection() -> Bool {
    let before = spentConnections.wrappingAdd(1, ordering: .relaxed).oldValue
    let cap = configuration.maximumConnectionCount
    guard before >= cap else { return false }
    if before == cap { end(.connectionLimit(cap)) }
    return true
  }
}
