// Measures how long streams stand still when one of their servers is killed.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import UploadClient

/// Kills each server once under many streams, and measures the time until each stream has its next acknowledgement.
package final class ClusterRecoveryRun {
  private static let limit = Duration.seconds(120)

  private let cluster: Cluster
  private let news: StreamNews
  private let session: UploadSession
  private let streams: [ClusterStream]
  private let pace: ClusterStream.Pace

  package init(streams count: Int, isIsolated: Bool) throws {
    var options = Cluster.Options()
    options.isIsolated = isIsolated
    cluster = try Cluster(options)
    (news, session) = (try StreamNews(), try UploadSession())
    let pace = ClusterStream.Pace()
    self.pace = pace
    let (address, news, session) = (cluster.addresses[0], news, session)
    streams = (0..<count).map { ClusterStream($0, seed: 1, to: address, pace, session, news) }
  }

  /// - Returns: the report.
  package func perform() throws -> String {
    var lines = [
      "\(streams.count) streams with a message every \(Int(pace.interval.seconds * 1000)) ms, nats-server "
        + "\(cluster.brokerVersion)\(cluster.losesPower ? " with sync_interval: always" : ""); from the kill of one of "
        + "three servers to each stream's next acknowledgement, in ms:"
    ]
    try awaitAll(since: .now) {}
    for server in cluster.servers {
      // All streams must run again before the next kill.
      try awaitAll(since: .now) {}
      let killed = MonotonicInstant.now
      try awaitAll(since: killed) { try server.end(SIGKILL) }
      let struck = streams.filter { $0.wasDropped(since: killed) }
      lines.append("  \(server.name): " + Self.text("all", streams) + "; " + Self.text("of that server", struck))
      try server.start()
    }
    let problems = streams.flatMap(\.problems)
    guard problems.isEmpty else { throw TestFailure("\(problems.prefix(20))") }
    for stream in streams { stream.finish() }
    guard news.wait(within: Self.limit, { streams.allSatisfy(\.isEnded) }) else {
      throw TestFailure("\(streams.filter { !$0.isEnded }.count) streams did not end")
    }
    session.close()
    return lines.joined(separator: "\n")
  }

  private func awaitAll(since start: MonotonicInstant, _ strike: () throws -> Void) throws {
    for stream in streams { stream.awaitAcknowledgement(since: start) }
    try strike()
    guard news.wait(within: Self.limit, { streams.allSatisfy { $0.delay != nil } }) else {
      throw TestFailure("\(streams.filter { $0.delay == nil }.count) streams are not acknowledged any more")
    }
  }

  private static func text(_ label: String, _ streams: [ClusterStream]) -> String {
    let delays = DelayQuantiles(streams.compactMap(\.delay))
    return "\(label) (\(streams.count)) median \(delays.median), p99 \(delays.p99), longest \(delays.longest)"
  }
}
