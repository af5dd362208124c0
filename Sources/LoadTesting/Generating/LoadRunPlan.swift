// The shared state of a run's loops: the plan, the clock, the bytes, and the limits for all loops.

internal import EventLoops
internal import LiveStreaming
internal import StreamBuffers
internal import Synchronization
internal import UploadClient

/// Read by all loops; what they write are two counters.
final class LoadRunPlan: Sendable {
  let configuration: LoadConfiguration
  let bytes: BodyBytes
  let clock: RunClock
  let ramp: RampPlan
  /// When requests begin in an open model; nil where each stream has a schedule of its own.
  let arrivals: ArrivalPlan?
  /// In nanoseconds.
  let duration: Int64
  private let requests: [UploadRequest]
  private let localAddresses: [String]
  /// In the streams' names, so that two runs do not take each other's streams for their own.
  private let token: String
  private let spentBytes = Atomic<UInt64>(0)
  private let spentConnections = Atomic<UInt64>(0)
  /// Ends the run, and says why.
  let end: @Sendable (String) -> Void

  init(
    _ configuration: LoadConfiguration, bytes: BodyBytes, localAddresses: [String], clock: RunClock,
    end: @escaping @Sendable (String) -> Void
  ) {
    self.configuration = configuration
    requests = configuration.requests
    self.bytes = bytes
    self.localAddresses = localAddresses
    self.clock = clock
    self.end = end
    arrivals = configuration.arrivalPlan
    // In an open model the ramp is one of arrivals: all streams are there from the start, and none waits for its turn.
    ramp =
      arrivals == nil
      ? RampPlan(
        streams: configuration.streams, ramp: configuration.ramp.nanoseconds, chunk: configuration.profile.chunk,
        stages: configuration.stages.isEmpty ? nil : StagePlan(configuration.stages))
      : RampPlan(streams: configuration.streams, ramp: 0, chunk: 1)
    duration = configuration.duration.nanoseconds
    token = String(LiveStreamConfiguration.randomStreamID().prefix(8))
  }

  /// How the stream in this place is streamed: like any other, with little memory.
  func streamConfiguration(_ place: LoadPlace) -> LiveStreamConfiguration {
    var stream = LiveStreamConfiguration(request: request(of: place, number: place.index))
    stream.streamID =
      "load-\(token)-\(place.index)" + (place.generation > 0 ? "-\(place.generation)" : "")
    stream.resumable = configuration.resumable
    stream.rollOver.after = configuration.rollOverAfter
    // Some 35 acknowledgements: 9 kB of memory.
    stream.rollOver.responseHeadSize = 3500
    stream.buffer = .bytes(configuration.buffer)
    stream.retry.giveUpAfter = configuration.giveUpAfter
    stream.retry.maximumCeiling = configuration.retryCeiling
    if let limit = configuration.giveUpOnRefusalAfter { stream.retry.giveUpOnRefusalAfter = limit }
    stream.keepsOrigin = true
    stream.lane = lane(of: place)
    // A message fits, and no more than that is needed; bulk is let go in large pieces.
    stream.pairSize = max(256, min(configuration.profile.messageSize, 64 << 10))
    return stream
  }

  /// The request of a stream, or of one of its messages: to one URL after the other, and from one address after the
  /// other.
  ///
  /// - Parameter number: counts streams, or the messages of all streams.
  func request(of place: LoadPlace, number: Int) -> UploadRequest {
    // Those that share a connection come from one address, and go to one.
    let number = configuration.sharesConnections ? lane(of: place) : number
    var request = requests[number % requests.count]
    request.receiveBufferSize = 1024
    request.tellsAccepted = configuration.tellsAccepted
    if !localAddresses.isEmpty {
      request.localAddress = localAddresses[number / requests.count % localAddresses.count]
    }
    return request
  }

  /// How many lanes the session of a loop has, and which one a stream takes. Those that share a connection share a
  /// lane.
  var laneCount: Int {
    let perLoop = (configuration.share + configuration.threads - 1) / configuration.threads
    return max(
      1, configuration.sharesConnections ? (perLoop + streamsPerLane - 1) / streamsPerLane : perLoop / streamsPerLane)
  }

  private func lane(of place: LoadPlace) -> Int {
    // Which of the loop's own streams it is: the part's are shared out one by one.
    place.index / (configuration.part.count * configuration.threads) / streamsPerLane
  }

  private var streamsPerLane: Int {
    // One lane, one connection: of several in one lane libcurl opens more than are needed when many streams begin at
    // once.
    configuration.sharesConnections ? configuration.streamsPerConnection : 200
  }

  /// Counts what was handed over; true when the run has had its bytes, and the loop is to stop.
  func spend(bytes count: Int) -> Bool {
    let before = spentBytes.wrappingAdd(UInt64(count), ordering: .relaxed).oldValue
    let cap = configuration.maximumByteCount
    guard before + UInt64(count) >= cap else { return false }
    if before < cap { end("the limit of \(cap) bytes (--max-bytes) was reached") }
    return true
  }

  /// Counts a connection that was opened; true when it is one too many.
  func spendConnection() -> Bool {
    let before = spentConnections.wrappingAdd(1, ordering: .relaxed).oldValue
    let cap = configuration.maximumConnectionCount
    guard before >= cap else { return false }
    if before == cap { end("the limit of \(cap) connections (--max-connections) was reached") }
    return true
  }
}
