// Decides from the brokers' reports whether they store what they acknowledge. Pure: takes reports and returns a
// verdict.

internal import EventLoops
internal import JetStream

/// What is known of the durability of a stream.
enum StorageProof {
  /// Why it is not proven that each broker of the stream syncs before it acknowledges; nil if it is.
  ///
  /// - Parameters:
  ///   - brokers: the names or identifiers of those that have the stream.
  ///   - facts: the reports of all witnesses.
  static func flaw(_ brokers: [String], _ facts: [BrokerFacts]) -> String? {
    if let lazy = facts.first(where: { !$0.syncsAlways }) {
      return lazy.syncInterval == nil
        ? "broker \(lazy.name) (NATS \(lazy.version)) does not report whether it syncs before it acknowledges. Use a version that does, such as 2.14"
        : "broker \(lazy.name) acknowledges before it syncs. Set sync_interval: always in the jetstream section of its configuration"
    }
    guard !brokers.isEmpty else { return "the brokers do not report which of them have the stream" }
    if let unknown = brokers.first(where: { broker in !facts.contains { $0.isCalled(broker) } }) {
      return
        "broker \(unknown) has the stream, and its sync setting is unknown. It cannot be reached, or its monitoring port is not named"
    }
    return nil
  }

  /// What is wrong with outdated brokers.
  private static let losses =
    "versions before \(BrokerFacts.leastVersion) can lose acknowledged messages when their process is killed "
    + "(nats-server #7564, Jepsen's analysis of NATS 2.12.1)"

  /// Notes for an operator if no witness reports when the brokers sync.
  ///
  /// - Parameter isBefore210: whether the brokers are older than NATS 2.10. Otherwise, their version is unknown.
  static func notes(isBefore210: Bool) -> [String] {
    var notes: [String] = []
    if isBefore210 {
      notes.append("the brokers are older than NATS 2.10: \(losses). Upgrade them.")
    }
    notes.append(
      "the sync interval of the brokers is unknown. The default is two minutes. If they lose power, messages that they "
        + "acknowledged since the last sync may be lost. Set sync_interval: always.")
    return notes
  }

  /// Notes for an operator, one sentence each.
  static func notes(_ facts: [BrokerFacts]) -> [String] {
    facts.flatMap { broker in
      var notes: [String] = []
      if broker.isOutdated {
        notes.append("broker \(broker.name) is NATS \(broker.version): \(losses). Upgrade it.")
      }
      if !broker.syncsAlways {
        let window =
          broker.syncInterval.map { "\($0.nanoseconds / 1_000_000_000) s" }
          ?? "two minutes, unless it is configured otherwise,"
        notes.append(
          "broker \(broker.name) acknowledges before it syncs. If it loses power, messages that it acknowledged in the last "
            + "\(window) may be lost. Set sync_interval: always.")
      }
      return notes
    }
  }
}
