// The figures of a run with faults on a cluster.

internal import EventLoops

/// One successful run.
package struct ClusterChaosReport: Sendable, CustomStringConvertible {
  private struct Struck {
    var count = 0
    /// For each stream and fault, the time from the beginning of the fault to the next acknowledgement.
    var delays: [Duration] = []
  }

  package let seed: UInt64
  private let streams: Int
  private let brokerVersion: String
  private let syncsAlways: Bool
  private var struck: [String: Struck] = [:]
  var faultsDuration = Duration.zero
  private var (bytes, messages, uploads, requests, answers, outageCount) = (0, 0, 0, 0, 0, 0)
  private var orphans = 0
  private var statuses: [Int: Int] = [:]

  init(seed: UInt64, streams: Int, brokerVersion: String, syncsAlways: Bool) {
    (self.seed, self.streams) = (seed, streams)
    (self.brokerVersion, self.syncsAlways) = (brokerVersion, syncsAlways)
  }

  package var faults: Int { struck.values.reduce(0) { $0 + $1.count } }

  mutating func add(_ fault: ClusterFault, _ delays: [Duration]) {
    struck[fault.label, default: Struck()].count += 1
    struck[fault.label, default: Struck()].delays += delays
  }

  mutating func judged(
    _ histories: [String: UploadHistory], _ stored: StoredUploads, _ statuses: [Int: Int], _ streams: [ClusterStream]
  ) {
    bytes = streams.reduce(0) { $0 + Int($1.length) }
    messages = stored.messageCount
    uploads = histories.count
    orphans = stored.uploads.keys.filter { histories[$0] == nil }.count
    for history in histories.values {
      requests += history.operations.count
      answers += history.operations.reduce(0) { $0 + $1.progress.count + ($1.answer == nil ? 0 : 1) }
    }
    self.statuses = statuses
    outageCount = streams.reduce(0) { $0 + $1.outageCount }
  }

  func text(_ duration: Duration?) -> String { duration.map { "\(Int($0.seconds * 1000)) ms" } ?? "–" }

  package var description: String {
    var lines = [
      "seed \(seed): \(faults) faults in \(Int(faultsDuration.seconds)) s, \(streams) streams, "
        + "nats-server \(brokerVersion)"
        + (syncsAlways ? " with sync_interval: always" : ""),
      "  \(bytes) bytes in \(messages) messages of \(uploads) uploads "
        + "(\(orphans) more whose creation was not answered); \(outageCount) interruptions",
      "  \(requests) requests and \(answers) answers judged; final responses: "
        + statuses.sorted { $0.key < $1.key }.map { "\($0.value) × \($0.key)" }.joined(separator: ", "),
      "  from a fault's beginning to each stream's next acknowledgement, in ms:",
      Self.row("", "faults", "median", "p99", "longest"),
    ]
    for (label, struck) in struck.sorted(by: { $0.key < $1.key }) {
      lines.append(Self.row(label, "\(struck.count)", struck.delays))
    }
    lines.append(Self.row("all", "\(faults)", struck.values.flatMap(\.delays)))
    return lines.joined(separator: "\n")
  }

  private static func row(_ label: String, _ count: String, _ delays: [Duration]) -> String {
    let quantiles = DelayQuantiles(delays)
    return row(label, count, quantiles.median, quantiles.p99, quantiles.longest)
  }

  private static func row(_ columns: String...) -> String {
    "    "
      + columns.enumerated().map { index, text in
        let gap = String(repeating: " ", count: max(0, (index == 0 ? 14 : 9) - text.count))
        return index == 0 ? text + gap : gap + text
      }.joined()
  }
}

/// Median, 99th percentile and maximum, in milliseconds.
struct DelayQuantiles {
  let (median, p99, longest): (String, String, String)

  init(_ delays: [Duration]) {
    let sorted = delays.map(\.seconds).sorted()
    func at(_ fraction: Double) -> String {
      sorted.isEmpty ? "–" : "\(Int(sorted[min(sorted.count - 1, Int(Double(sorted.count) * fraction))] * 1000))"
    }
    (median, p99, longest) = (at(0.5), at(0.99), at(1))
  }
}
