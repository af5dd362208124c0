// A run in progress: loops that report each second, and a thread that combines their figures.

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import LoadReports
internal import UploadClient

/// Owned by the coordinator's thread after `init`; unchecked for that reason.
final class LoadRun: @unchecked Sendable {
  private enum Phase { case running, quiet, stopping, ended }

  private let configuration: LoadConfiguration
  private let coordinator: EventLoop
  private let progress: (LoadProgress) -> Void
  private let plan: LoadRunPlan
  private var loops: [LoadLoop] = []
  private var phase = Phase.running
  private var idleCount = 0
  /// Seconds that some loops have not reported yet, per loop and in order.
  private var pending: [[LoadInterval]]
  private var latest: [LoadTotals]
  private var busyLoops: BusyLoops
  private let usageBefore = ProcessLimits.usage
  private var startedAt = WallClock.now.iso8601
  private(set) var report = LoadReport()
  private(set) var endReason: LoadEndReason?

  init(
    _ configuration: LoadConfiguration, bytes: BodyBytes, localAddresses: [String], coordinator: EventLoop,
    progress: @escaping (LoadProgress) -> Void
  ) throws(SystemError) {
    self.configuration = configuration
    self.coordinator = coordinator
    self.progress = progress
    pending = Array(repeating: [], count: configuration.threads)
    latest = Array(repeating: LoadTotals(), count: configuration.threads)
    busyLoops = BusyLoops(loopCount: configuration.threads)
    let ending = Ending()
    plan = LoadRunPlan(
      configuration, bytes: bytes, localAddresses: localAddresses,
      clock: RunClock(origin: .now + Self.headStart), end: { ending.tell($0) })
    for number in 0..<configuration.threads {
      loops.append(
        try LoadLoop(
          plan,
          report: { [weak self] second in
            coordinator.execute { [weak self] in self?.take(second, of: number) }
          },
          idle: { [weak self] in coordinator.execute { [weak self] in self?.loopIsIdle() } }))
    }
    ending.action.withLock { action in
      action = { [weak self] reason in coordinator.execute { [weak self] in self?.stop(because: reason) } }
    }
  }

  /// The plan is made before the run, which the plan's caps or streams may end.
  private final class Ending: Sendable {
    let action = Lock<@Sendable (LoadEndReason) -> Void>({ _ in })
    func tell(_ reason: LoadEndReason) { action.withLock { $0 }(reason) }
  }

  /// The time from the plan to the run's start, in which the loops learn their streams.
  private static let headStart = Duration.milliseconds(100)

  func begin() {
    let indices = Array(LoadPart(configuration).streamIndices(of: configuration.streams))
    for (number, loop) in loops.enumerated() {
      let share = stride(from: number, to: indices.count, by: loops.count).map { indices[$0] }
      loop.eventLoop.execute { loop.begin(share) }
    }
    coordinator.schedule(at: plan.clock.instant(0)) { [self] in startedAt = WallClock.now.iso8601 }
    coordinator.schedule(at: plan.clock.instant(plan.duration)) { [self] in quiet() }
  }

  private func quiet() {
    guard phase == .running else { return }
    phase = .quiet
    end(after: plan.duration)
    for loop in loops { loop.eventLoop.execute { loop.quiet() } }
    coordinator.schedule(after: configuration.grace) { [self] in
      for loop in loops { loop.eventLoop.execute { loop.giveUpUnacknowledged() } }
      // The others end one after another. The wait for a server that does not answer their ends is limited.
      let share = Duration.milliseconds(configuration.share)
      coordinator.schedule(after: configuration.grace + share) { [self] in stop(because: nil) }
    }
  }

  func stop(because reason: LoadEndReason?) {
    guard phase == .running || phase == .quiet else { return }
    if phase == .running { endReason = reason }
    phase = .stopping
    end(after: plan.clock.now)
    for loop in loops { loop.eventLoop.execute { loop.stop(isDue: reason == nil) } }
  }

  /// From here on nothing is offered. Later acknowledgements belong to earlier messages.
  private func end(after time: Int64) {
    guard report.measured == 0 else { return }
    report.measured = max(1, time)
    busyLoops.end(after: time)
  }

  private func loopIsIdle() {
    idleCount += 1
    if idleCount == loops.count, phase != .ended { end() }
  }

  // MARK: Figures

  private func take(_ second: LoopSecond, of number: Int) {
    pending[number].append(second.interval)
    latest[number] = second.totals
    busyLoops.add(processorTime: second.interval.processorTime, ofSecond: second.number, loop: number)
    // A finished loop reports no more.
    while pending.allSatisfy({ !$0.isEmpty }) { appendSecond() }
  }

  private func appendSecond() {
    var whole = LoadInterval()
    for number in pending.indices where !pending[number].isEmpty { whole.merge(pending[number].removeFirst()) }
    report.intervals.append(second: whole)
    var totals = LoadTotals()
    for part in latest { totals.merge(part) }
    progress(LoadProgress(elapsed: plan.clock.now, isEnding: phase != .running, totals: totals, interval: whole))
  }

  private func end() {
    phase = .ended
    while pending.contains(where: { !$0.isEmpty }) { appendSecond() }
    // A loop's thread has ended by then, so its state may be read.
    for loop in loops {
      loop.session.close()
      report.add(loop.figures)
    }
    report.sluiceVersion = UploadClient.sluiceVersion
    report.target = configuration.requests.map { Self.target($0.url) }.joined(separator: ", ")
    report.startedAt = startedAt
    report.plan = LoadPlan(configuration)
    report.parts = [LoadPart(configuration)]
    let usage = ProcessLimits.usage
    report.generator.userTime = usage.user - usageBefore.user
    report.generator.systemTime = usage.system - usageBefore.system
    report.generator.maximumResident = usage.maximumResident
    report.generator.busiestLoop = busyLoops.busiestShare
    report.generator.bottlenecks = GeneratorVerdict.bottlenecks(
      lateness: report.histograms[.lateness], chunk: configuration.arrivals == nil ? configuration.profile.chunk : 0,
      busiestLoop: report.generator.busiestLoop)
    coordinator.stop()
  }

  /// Without user, password and query, which may be secret.
  private static func target(_ url: String) -> String {
    String(UploadRequest.withoutCredentials(url).prefix { $0 != "?" && $0 != "#" })
  }
}

extension LoadPlan {
  init(_ configuration: LoadConfiguration) {
    self.init()
    let profile = configuration.profile
    streams = configuration.streams
    ramp = configuration.ramp.nanoseconds
    stages = configuration.arrivals?.stages ?? configuration.stages
    duration = configuration.duration.nanoseconds
    self.profile = profile.name
    rate = profile.rate
    chunk = profile.chunk
    switch profile.body {
    case .zeros: body = "zeros"
    case .random: body = "random"
    case .pattern: body = "pattern"
    case .file(let path): body = path
    }
    resumable = configuration.resumable.rawValue
    requestPerMessage = configuration.sendsRequestPerMessage
    arrivalRate = configuration.arrivals?.rate
    maximumUnderWay = configuration.arrivals?.maximumUnderWay
    httpVersion = configuration.request.httpVersion == .http2 ? "2" : "1.1"
    streamsPerConnection = configuration.sharesConnections ? configuration.streamsPerConnection : nil
    dropEvery = profile.faults.dropEvery?.mean
    slowFraction = profile.faults.slowFraction
    seed = configuration.seed
  }
}
