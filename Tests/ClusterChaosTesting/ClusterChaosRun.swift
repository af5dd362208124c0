// Streams through a load balancer to servers and brokers that are killed one after another. Checks that each byte is
// stored once and that every answer was true.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import PropertyTesting
internal import UploadClient

/// One run with faults.
package final class ClusterChaosRun {
  package struct Options: Sendable {
    package var seed: UInt64
    package var faults: Int
    package var streams = 200
    package var pace = ClusterStream.Pace()
    /// The permitted kinds of faults. Those that need namespaces are omitted without them.
    package var kinds = ClusterFault.Kind.allCases
    package var cluster = Cluster.Options()
    /// Called after each fault.
    package var report: @Sendable (String) -> Void = { _ in }

    package init(seed: UInt64, faults: Int) { (self.seed, self.faults) = (seed, faults) }
  }

  /// How long all streams together may take until they are acknowledged again.
  private static let limit = Duration.seconds(120)

  private let options: Options
  private let cluster: Cluster
  private let recorder = HistoryRecorder()
  private let proxy: RecordingProxy
  private let news: StreamNews
  private let session: UploadSession
  private let streams: [ClusterStream]
  private var report: ClusterChaosReport

  package init(_ options: Options) throws {
    self.options = options
    cluster = try Cluster(options.cluster)
    let recorder = recorder
    proxy = try RecordingProxy(to: cluster.addresses) { recorder.record($0, $1) }
    (news, session) = (try StreamNews(), try UploadSession())
    let (address, news, session) = (proxy.address, news, session)
    streams = (0..<options.streams).map {
      ClusterStream($0, seed: options.seed, to: address, options.pace, session, news)
    }
    report = ClusterChaosReport(
      seed: options.seed, streams: options.streams, brokerVersion: cluster.brokerVersion,
      syncsAlways: cluster.losesPower)
  }

  /// Runs to the end.
  ///
  /// - Throws: ``TestFailure`` if a byte is missing, repeated or foreign, an answer was false, or a stream is no longer
  ///   acknowledged.
  package func perform() throws -> ClusterChaosReport {
    do {
      return try run()
    } catch {
      throw TestFailure("seed \(options.seed): \(error)\n\(report)\nfiles: \(cluster.keep())")
    }
  }

  private func run() throws -> ClusterChaosReport {
    let start = MonotonicInstant.now
    for stream in streams { stream.awaitAcknowledgement(since: start) }
    try awaitAcknowledgements("the beginning")
    var random = SplitMix64(state: options.seed)
    for number in 0..<options.faults {
      guard let fault = ClusterFault.drawn(from: kinds, cluster, using: &random) else { break }
      let struck = MonotonicInstant.now
      for stream in streams { stream.awaitAcknowledgement(since: struck) }
      try fault.strike(cluster)
      try awaitAcknowledgements("fault \(number + 1), \(fault)")
      report.add(fault, streams.compactMap(\.delay))
      let longest = report.text(streams.compactMap(\.delay).max())
      options.report("\(number + 1): \(fault); all streams acknowledged after \(longest)")
    }
    report.faultsDuration = MonotonicInstant.now - start
    for stream in streams { stream.finish() }
    guard news.wait(within: Self.limit, { streams.allSatisfy(\.isEnded) }) else {
      throw TestFailure("\(streams.filter { !$0.isEnded }.map(\.id)) did not end")
    }
    session.close()
    proxy.stop()
    try judge()
    return report
  }

  /// The kinds that this machine and these brokers support.
  private var kinds: [ClusterFault.Kind] {
    options.kinds.filter { kind in
      switch kind {
      case .cut: cluster.network.isIsolated
      case .power: cluster.losesPower
      default: true
      }
    }
  }

  /// The omitted kinds, with the reasons.
  package var leftOut: [String] {
    options.kinds.filter { !kinds.contains($0) }.map { kind in
      kind == .power && cluster.network.isIsolated
        ? "no power cuts: nats-server \(cluster.brokerVersion) has no sync_interval: always"
        : "no faults of the kind \(kind.rawValue): they require root"
    }
  }

  private func awaitAcknowledgements(_ what: String) throws {
    let isAcknowledged = news.wait(within: Self.limit) {
      streams.allSatisfy { $0.delay != nil || !$0.problems.isEmpty || $0.isEnded }
    }
    let late = streams.filter { $0.delay == nil }
    guard isAcknowledged, late.isEmpty else {
      let problems = late.flatMap(\.problems)
      throw TestFailure("\(what): no acknowledgement for \(late.map(\.id)): \(problems)")
    }
  }

  // MARK: Judgement

  private func judge() throws {
    var problems = streams.flatMap { stream in stream.problems.map { "\(stream.id): \($0)" } }
    let stored = try StoredUploads(cluster.brokerURLs)
    let histories = recorder.histories
    // Other uploads were created, but their client did not receive the answer.
    let addressed = Set(
      histories.filter { entry in
        entry.value.operations.contains { $0.isAddressed }
      }.keys)
    for stream in streams { problems += try stored.problems(of: stream, addressed: addressed) }
    for (token, history) in histories {
      let length = stored.uploads[token].map { UInt64($0.bytes.count) }
      for violation in HistoryChecker.violations(in: history, finalLength: length ?? 0) {
        problems.append("upload \(token): \(violation)")
      }
    }
    report.judged(histories, stored, recorder.statuses, streams)
    guard problems.isEmpty else {
      throw TestFailure("\(problems.count) problems:\n" + problems.prefix(50).joined(separator: "\n"))
    }
  }
}

extension UploadHistory.Operation {
  /// Whether a client knew the upload's URL.
  fileprivate var isAddressed: Bool {
    if case .append(let offset, _) = kind { offset > 0 || answer?.isSuccess == true } else { true }
  }
}
