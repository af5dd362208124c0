// Two clients append to one upload through two servers at once, and one of them sends false offsets. Checks whose bytes
// are stored.

internal import BrokerTesting
internal import EventLoops
internal import HTTPServer
internal import NetworkTesting
internal import PropertyTesting

/// An honest client asks where the upload ends, and appends there. Another one, which knows the upload's URL, sends
/// other bytes, uses offsets below and beyond the end, and aborts requests in the middle.
///
/// The bytes of each request are unique, so each stored byte shows which request has added it.
package final class RivalRun {
  /// A request, and the bytes that it would have stored.
  private struct Attempt {
    var start: UInt64
    var bytes: [UInt8]
    /// Whether it was acknowledged. If not, any prefix of it may be stored.
    var isAccepted = false
  }

  private struct Findings {
    var attempts: [Attempt] = []
    var problems: [String] = []
    var (accepted, refused, lost) = (0, 0, 0)
  }

  /// The number of rounds after which another upload begins.
  private static let roundsPerUpload = 200
  private let seed: UInt64
  private let rounds: Int
  private let cluster: Cluster
  private let recorder = HistoryRecorder()
  private let proxy: RecordingProxy

  /// - Parameter rounds: the number of rounds of each client.
  package init(seed: UInt64, rounds: Int) throws {
    (self.seed, self.rounds) = (seed, rounds)
    var options = Cluster.Options()
    (options.brokers, options.servers, options.hasProxy) = (1, 2, false)
    cluster = try Cluster(options)
    let recorder = recorder
    proxy = try RecordingProxy(to: cluster.addresses) { recorder.record($0, $1) }
  }

  /// Runs all rounds, and returns the report.
  ///
  /// - Throws: ``TestFailure`` after a hole, a repeated or foreign byte, or a false answer.
  package func perform() throws -> String {
    var (accepted, refused, lost, uploads) = (0, 0, 0, 0)
    var all: [String: [Attempt]] = [:]
    var problems: [String] = []
    for first in stride(from: 0, to: rounds, by: Self.roundsPerUpload) {
      let (token, findings) = try contend(rounds: min(Self.roundsPerUpload, rounds - first), seed &+ UInt64(first))
      all[token] = findings.attempts
      problems += findings.problems
      uploads += 1
      (accepted, refused, lost) = (accepted + findings.accepted, refused + findings.refused, lost + findings.lost)
    }
    proxy.stop()
    let stored = try StoredUploads(cluster.brokerURLs)
    for (token, history) in recorder.histories {
      guard let upload = stored.uploads[token], let attempts = all[token] else {
        problems.append("upload \(token) is not stored")
        continue
      }
      problems += upload.problems
      problems += Self.problems(of: upload.bytes, attempts)
      problems += HistoryChecker.violations(in: history, finalLength: UInt64(upload.bytes.count)).map(\.description)
    }
    guard problems.isEmpty else {
      throw TestFailure("seed \(seed): \(problems.count) problems:\n" + problems.prefix(20).joined(separator: "\n"))
    }
    let bytes = stored.uploads.values.reduce(0) { $0 + $1.bytes.count }
    return "seed \(seed): \(rounds) rounds of two clients on \(uploads) uploads; \(accepted) appends accepted, "
      + "\(refused) refused, \(lost) broken off; \(bytes) bytes stored, each of the request that brought it, once"
  }

  // MARK: The clients

  private func contend(rounds: Int, _ seed: UInt64) throws -> (token: String, Findings) {
    let address = try ListenAddress(proxy.address)
    let creator = try RawClient(address)
    try creator.request("POST", "/rivals.bin", ["Upload-Complete: ?0"], body: "")
    guard let location = try creator.final().answer["location"], let token = location.split(separator: "/").last else {
      throw TestFailure("no upload")
    }
    let findings = Lock(Findings())
    let threads = try [false, true].map { lies in
      try NamedThread(lies ? "liar" : "honest") {
        var random = SplitMix64(state: seed &+ (lies ? 1 << 40 : 0))
        for _ in 0..<rounds {
          // A connection that ends is also an answer.
          try? Self.round(address, location, lies, &random, findings)
        }
      }
    }
    for thread in threads { thread.join() }
    return (String(token), findings.withLock { $0 })
  }

  private static func round(
    _ address: ListenAddress, _ location: String, _ lies: Bool, _ random: inout SplitMix64,
    _ findings: borrowing Lock<Findings>
  ) throws {
    let client = try RawClient(address)
    let answer = try client.head(location)
    // 503: the other client publishes too fast.
    guard answer.status == 204, let end = answer["upload-offset"].flatMap({ UInt64($0) }) else {
      if answer.status != 503 { findings.withLock { $0.problems.append("HEAD: \(answer)") } }
      return
    }
    var start = end
    let lie = lies ? Int.random(in: 0..<4, using: &random) : 3
    switch lie {
    case 0: start += UInt64.random(in: 1...2000, using: &random)
    case 1: start -= min(start, UInt64.random(in: 1...2000, using: &random))
    default: break
    }
    let bytes = (0..<Int.random(in: 1...600, using: &random)).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    let number = findings.withLock { findings in
      findings.attempts.append(Attempt(start: start, bytes: bytes))
      return findings.attempts.count - 1
    }
    try client.patch(location, at: Int(start), chunked: true)
    // In two pieces, so that the other client may come in between.
    let half = bytes.count / 2
    if half > 0 { try client.sendChunk(Array(bytes[..<half])) }
    if lie == 2 {
      client.disconnect()
      return findings.withLock { $0.lost += 1 }
    }
    do {
      try client.sendChunk(Array(bytes[half...]))
      try client.send("0\r\n\r\n")
      let final = try client.final().answer
      findings.withLock { findings in
        switch final.status {
        case 204:
          findings.attempts[number].isAccepted = true
          findings.accepted += 1
        case 409: findings.refused += 1
        case 503: findings.lost += 1
        default: findings.problems.append("\(final)")
        }
      }
    } catch {
      // Another client has taken over.
      findings.withLock { $0.lost += 1 }
    }
  }

  // MARK: Whose bytes

  /// Whether the bytes are consecutive requests: all accepted ones completely, and the others up to some byte.
  private static func problems(of stored: [UInt8], _ attempts: [Attempt]) -> [String] {
    var problems: [String] = []
    for attempt in attempts where attempt.isAccepted {
      let range = Int(attempt.start)..<Int(attempt.start) + attempt.bytes.count
      if range.upperBound > stored.count || Array(stored[range]) != attempt.bytes {
        problems.append("\(range) is not what the request has sent that was acknowledged")
      }
    }
    /// Where requests may have ended.
    var ends: Set<Int> = [0]
    for attempt in attempts.sorted(by: { $0.start < $1.start }) where ends.contains(Int(attempt.start)) {
      let rest = stored[Int(attempt.start)...]
      let common = zip(rest, attempt.bytes).prefix { $0 == $1 }.count
      let least = attempt.isAccepted ? attempt.bytes.count : 0
      guard least <= common else { continue }
      for count in least...common { ends.insert(Int(attempt.start) + count) }
    }
    if !ends.contains(stored.count) {
      problems.append("the bytes from \(ends.max() ?? 0) of \(stored.count) on are of no request that was sent there")
    }
    return problems
  }
}
