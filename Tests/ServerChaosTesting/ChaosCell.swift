// The matrix: the combinations, and how often each occurred.

/// The operations on a stream or an upload, and the events of the server meanwhile.
package enum Operation: String, CaseIterable, Sendable {
  case create, append, complete, head, delete
  case expire, restart, terminate, kill, powerCut

  /// Whether it is a request. The other operations apply to all sequences of a batch at once.
  package var isRequest: Bool {
    switch self {
    case .create, .append, .complete, .head, .delete: true
    case .expire, .restart, .terminate, .kill, .powerCut: false
    }
  }
  package static let events = allCases.filter { !$0.isRequest }
}

/// The simultaneous request, and its relation to the first one.
package enum Second: String, CaseIterable, Sendable {
  case none
  /// Another upload of the same stream.
  case createSameStream
  /// Another upload whose stream has the same `Stream-ID` and name, but another type.
  case createSameName
  /// A plain request for the same stream.
  case plain
  /// A request to the same upload resource.
  case append, complete, head, delete

  var needsUpload: Bool {
    switch self {
    case .append, .complete, .head, .delete: true
    case .none, .createSameStream, .createSameName, .plain: false
    }
  }
}

package enum Issuer: String, CaseIterable, Sendable {
  case sameToken, otherToken
}

/// Where servers store.
package enum ChaosStorage: String, CaseIterable, Sendable {
  case directory, discarding
  /// A log of a real broker, with one server.
  case log
  /// A log with two servers. Each request goes to one of them.
  case twoServers

  package var isLog: Bool { self == .log || self == .twoServers }
  /// The number of servers that run at the same time.
  var serverCount: Int { self == .twoServers ? 2 : 1 }

  fileprivate var description: String {
    switch self {
    case .directory: "stored"
    case .discarding: "discarded"
    case .log: "log"
    case .twoServers: "log of two servers"
    }
  }
}

/// The configuration of the server.
package struct ServerSetting: Hashable, Sendable, CustomStringConvertible {
  package var durability: String
  package var threads: Int
  package var storage: ChaosStorage

  /// With a log, a server has no files to sync. `always` requires the proof that its brokers sync, and `none` equals
  /// `interval`.
  package static let all =
    combinations(["always", "interval", "none"], [.directory, .discarding])
    + combinations(["always", "interval"], [.log, .twoServers])

  private static func combinations(_ durabilities: [String], _ storages: [ChaosStorage]) -> [ServerSetting] {
    durabilities.flatMap { durability in
      [1, 2].flatMap { threads in
        storages.map { ServerSetting(durability: durability, threads: threads, storage: $0) }
      }
    }
  }

  package var description: String { "\(durability), threads \(threads), \(storage.description)" }
}

/// One combination of the matrix.
package struct ChaosCell: Hashable, Sendable, CustomStringConvertible {
  package var setting: ServerSetting
  package var operation: Operation
  package var second: Second
  package var issuer: Issuer

  /// All combinations. Without a second request, there is no other token.
  package static let all: [ChaosCell] = ServerSetting.all.flatMap { setting in
    Operation.allCases.flatMap { operation in
      pairs.map {
        ChaosCell(setting: setting, operation: operation, second: $0.0, issuer: $0.1)
      }
    }
  }
  private static let pairs = Second.allCases.flatMap { second in
    (second == .none ? [.sameToken] : Issuer.allCases).map { (second, $0) }
  }

  /// Whether its broker must be a recent one from upstream (``ChaosLog/hasRecentBroker``). Older ones cannot prove that
  /// they sync, and may lose acknowledged messages when their process is killed (docs/scaling.md, "Losses by failure").
  package var requiresRecentBroker: Bool {
    setting.storage.isLog && (setting.durability == "always" || operation == .powerCut)
  }

  package var description: String {
    "\(operation.rawValue) × \(second.rawValue)\(second == .none ? "" : " by \(issuer.rawValue)") (\(setting))"
  }
}

/// The total counts of all sequences.
package struct ChaosTally: Sendable, CustomStringConvertible {
  var requests = 0
  var announcedOffsets = 0
  /// Appends that had to be accepted at their offset.
  var probes = 0
  var quotas = 0
  var expired = 0
  var struck: [String: Int] = [:]

  package init() {}

  mutating func add(_ other: ChaosTally) {
    requests += other.requests
    announcedOffsets += other.announcedOffsets
    probes += other.probes
    quotas += other.quotas
    expired += other.expired
    struck.merge(other.struck, uniquingKeysWith: +)
  }

  package var description: String {
    "\(requests) requests, \(announcedOffsets) offsets announced, \(probes) appends where an offset had been announced, "
      + "\(quotas) quotas counted, \(expired) uploads expired; sequences struck by "
      + struck.sorted { $0.key < $1.key }.map { "\($0.key): \($0.value)" }.joined(separator: ", ")
  }
}

/// How often each combination occurred.
package struct ChaosCoverage: Sendable {
  package private(set) var counts: [ChaosCell: Int] = [:]

  package init() {}

  mutating func add(_ cell: ChaosCell) { counts[cell, default: 0] += 1 }
  mutating func add(_ other: ChaosCoverage) { counts.merge(other.counts, uniquingKeysWith: +) }

  /// Those of these combinations that did not occur.
  func missing(of cells: [ChaosCell]) -> [ChaosCell] { cells.filter { counts[$0] == nil } }

  /// The counts of each operation with each second request, over all settings that occurred: the smallest and the sum.
  package var table: String {
    var lines: [String] = []
    let occurred = Set(counts.keys.map(\.setting))
    let settings = ServerSetting.all.filter(occurred.contains)
    let seconds = Second.allCases.flatMap { second in
      (second == .none ? [.sameToken] : Issuer.allCases).map { (second: second, issuer: $0) }
    }
    for column in seconds {
      let name = column.second.rawValue + (column.issuer == .otherToken ? ", other token" : "")
      let values = Operation.allCases.map { operation -> String in
        let cells = settings.map {
          counts[ChaosCell(setting: $0, operation: operation, second: column.second, issuer: column.issuer)] ?? 0
        }
        return pad("\(cells.min() ?? 0)/\(cells.reduce(0, +))", to: 10)
      }
      lines.append("  " + (name + String(repeating: " ", count: max(0, 30 - name.count))) + values.joined())
    }
    let head =
      "  " + String(repeating: " ", count: 30)
      + Operation.allCases.map { pad($0.rawValue, to: 10) }.joined()
    return ([head] + lines).joined(separator: "\n")
  }

  private func pad(_ text: String, to width: Int) -> String {
    String(repeating: " ", count: max(1, width - text.count)) + text
  }
}
