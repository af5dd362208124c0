// The public type: a run from its checks to its report.

internal import EventLoops
public import LoadReports
internal import UploadClient

/// A load test: many paced live streams from one process to a server, and a report of the measurements.
///
/// The streams are those of `LiveStreaming`, the engine that streams a microphone. All delays are measured from the
/// time at which a message was *due*, by a schedule that nothing can delay. So a slow server cannot hide its delays by
/// slowing down the generator (coordinated omission), and a slow generator shows as its own lateness.
public final class LoadTest: Sendable {
  private let configuration: LoadConfiguration
  private let bytes: BodyBytes
  private let localAddresses: [String]
  private let coordinator: EventLoop
  private let run = Lock<LoadRun?>(nil)
  private let reason = Lock<LoadEndReason?>(nil)

  /// Creates a load test, and checks everything that can be checked before the first connection: permission, limits,
  /// the body.
  ///
  /// - Throws: ``LoadError``, whose description names the remedy.
  public init(_ configuration: LoadConfiguration) throws(LoadError) {
    var configuration = configuration
    try Self.validate(configuration)
    for request in configuration.requests {
      try LoadPermission.check(request, permitted: configuration.permittedHosts)
    }
    // The permission check does not cover proxies from environment variables such as http_proxy.
    configuration.request.proxy = configuration.request.proxy ?? ""
    let share = configuration.share
    let connections =
      configuration.arrivals != nil
      // The maximum number of simultaneous requests if the server is slow.
      ? Int(
        clamping: min(
          UInt64(configuration.underWayPerLoop * configuration.usedLoopCount), configuration.maximumConnectionCount))
      // Each loop has its own connections.
      : configuration.sharesConnections
        ? (share + configuration.streamsPerConnection - 1) / configuration.streamsPerConnection + configuration.threads
          - 1
        : share
    guard connections <= configuration.maximumConnectionCount else {
      throw .tooManyConnections(needed: connections, limit: configuration.maximumConnectionCount)
    }
    // In addition to the connections: epoll, wake-ups, timers, libcurl's own, and some for reconnections.
    try ProcessLimits.reserve(descriptors: connections + connections / 50 + 16 * configuration.threads + 64)
    localAddresses = try Self.addresses(for: connections, configuration)
    bytes = try BodyBytes(configuration.profile.body, seed: configuration.seed)
    do throws(SystemError) { coordinator = try EventLoop() } catch { throw .resources(error.description) }
    self.configuration = configuration
  }

  /// Runs on the calling thread until all streams have ended, and returns the report. Call it only once.
  ///
  /// - Parameter progress: called once per second, on the calling thread.
  /// - Throws: ``LoadError/resources(_:)`` when threads or descriptors are refused.
  public func run(progress: @escaping (LoadProgress) -> Void = { _ in }) throws(LoadError) -> LoadReport {
    let run: LoadRun
    do throws(SystemError) {
      run = try LoadRun(
        configuration, bytes: bytes, localAddresses: localAddresses, coordinator: coordinator, progress: progress)
    } catch {
      throw .resources(error.description)
    }
    self.run.withLock { $0 = run }
    coordinator.atEndOfTurn { run.begin() }
    coordinator.run()
    self.run.withLock { $0 = nil }
    reason.withLock { $0 = run.endReason }
    return run.report
  }

  /// The reason why the run ended early. Nil while it runs, and after its regular end.
  public var endReason: LoadEndReason? { reason.withLock { $0 } }

  /// Ends the run at once. ``run(progress:)`` returns with the measurements so far. Any thread.
  public func stop() {
    coordinator.execute { [self] in run.withLock { $0 }?.stop(because: .stopped) }
  }

  private static func validate(_ configuration: LoadConfiguration) throws(LoadError) {
    do throws(UploadError) {
      for request in configuration.requests { try request.validate() }
    } catch {
      throw .invalid(error.description)
    }
    guard configuration.streams >= 1 else { throw .invalid("a load test requires at least one stream") }
    guard configuration.duration > .zero else { throw .invalid("the duration of a load test must be greater than 0") }
    guard configuration.ramp >= .zero, configuration.ramp <= configuration.duration else {
      throw .invalid("the ramp is longer than the run. Choose a shorter one.")
    }
    guard configuration.part.count >= 1, (1...configuration.part.count).contains(configuration.part.index) else {
      throw .invalid("invalid part \(configuration.part.index) of \(configuration.part.count): part numbers begin at 1")
    }
    guard configuration.part.count <= configuration.streams else {
      throw .invalid("\(configuration.streams) streams cannot be divided into \(configuration.part.count) parts")
    }
    if configuration.sharesConnections, !configuration.requests.allSatisfy(\.isSecure),
      let library = UploadSession.cannotReusePlainHTTP2
    {
      throw .cannotShareConnections(library: library)
    }
    if let arrivals = configuration.arrivals { try validate(arrivals, configuration) }
    if configuration.sendsRequestPerMessage {
      let faults = configuration.profile.faults
      guard faults.dropEvery == nil, faults.stalls == nil, faults.slowFraction == 0 else {
        throw .invalid("a stream with one request per message supports no faults. Remove the faults from the profile.")
      }
    }
    guard (1...256).contains(configuration.threads) else {
      throw .invalid("invalid number of threads. Choose a number from 1 to 256.")
    }
  }

  private static func validate(
    _ arrivals: LoadConfiguration.Arrivals, _ configuration: LoadConfiguration
  ) throws(LoadError) {
    guard configuration.sendsRequestPerMessage, configuration.stages.isEmpty else {
      throw .invalid("an arrival rate requires one request per message, and its own stages")
    }
    guard arrivals.rate >= 0, arrivals.rate <= ArrivalPlan.highestRate, configuration.arrivalPlan?.count ?? 0 > 0 else {
      throw .invalid("an arrival rate is more than 0, and at most \(Int(ArrivalPlan.highestRate)) per second")
    }
    guard (1...1_000_000).contains(arrivals.maximumUnderWay) else {
      throw .invalid("invalid number of requests in progress. Choose a number from 1 to 1000000.")
    }
    let profile = configuration.profile
    guard profile.turns == nil, profile.bursts == nil, profile.streamLength == nil, profile.jitter == 0 else {
      throw .invalid(
        "the arrival rate alone determines when a request begins. Remove talk, silence, bursts, jitter and stream_length from the profile."
      )
    }
  }

  /// The local addresses for connections; empty to let the kernel choose.
  static func addresses(for connections: Int, _ configuration: LoadConfiguration) throws(LoadError) -> [String] {
    guard configuration.request.unixSocket == nil else { return [] }
    // A port is not free immediately after its connection has ended (TIME_WAIT), so some are reserved.
    let ports = ProcessLimits.portCount * 9 / 10
    // The kernel first searches the ports of one parity. When these are used up, it tries all of them without success
    // for each connection, which takes a millisecond or more (`__inet_hash_connect`).
    let quickPorts = max(1, ProcessLimits.portCount * 45 / 100)
    let given = configuration.localAddresses
    let hosts = configuration.requests.map { $0.host ?? "" }
    let isIPv4 = hosts.allSatisfy { $0.hasPrefix("127.") }
    guard given.isEmpty, hosts.allSatisfy({ $0.hasPrefix("127.") || $0 == "localhost" }) else {
      guard connections <= ports * max(1, given.count) else {
        throw .tooFewPorts(streams: connections, addresses: max(1, given.count), portsOfEach: ports)
      }
      return given
    }
    // localhost may be ::1, which has no other addresses beside it.
    let each = isIPv4 ? quickPorts : ports
    guard connections > each else { return [] }
    // All of 127.0.0.0/8 belongs to this machine.
    return (1...((connections + each - 1) / each)).map { "127.0.\($0 / 254).\(1 + $0 % 254)" }
  }
}

extension LoadPart {
  init(_ configuration: LoadConfiguration) {
    self.init()
    index = configuration.part.index
    count = configuration.part.count
    seed = configuration.seed
    host = ProcessLimits.hostName
    cores = ProcessLimits.processorCount
    threads = configuration.threads
  }

  /// The numbers of its streams among all `streams` of the run: every ``count``-th, so that the parts are alike.
  func streamIndices(of streams: Int) -> StrideTo<Int> { stride(from: index - 1, to: streams, by: count) }
}

/// The progress of a run.
public struct LoadProgress: Sendable {
  /// The time since the start of the run in nanoseconds.
  public var elapsed: Int64
  /// Whether the time of the run is over, and only outstanding acknowledgements are awaited.
  public var isEnding: Bool
  /// The counts so far.
  public var totals: LoadTotals
  /// The last second that all loops have reported.
  package var interval: LoadInterval
}
