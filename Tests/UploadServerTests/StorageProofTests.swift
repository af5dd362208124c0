// Tests, without brokers, what their reports prove, and what the notes for an operator state.

import EventLoops
import JetStream
import Testing

@testable import UploadServer

@Suite("The proof that brokers sync before they acknowledge")
struct StorageProofTests {
  private static func facts(
    _ name: String, _ always: Bool = true, _ interval: Duration? = .seconds(120), version: String = "2.14.0"
  ) -> BrokerFacts {
    BrokerFacts(name: name, identifier: name + "-id", version: version, syncsAlways: always, syncInterval: interval)
  }

  private static let lazy =
    "broker b acknowledges before it syncs. Set sync_interval: always in the jetstream section of its configuration"
  private static let silent =
    "broker b (NATS 2.9.10) does not report whether it syncs before it acknowledges. Use a version that does, such as "
    + "2.14"

  private static func unknown(_ name: String) -> String {
    "broker \(name) has the stream, and its sync setting is unknown. It cannot be reached, or its monitoring port is "
      + "not named"
  }

  @Test("each broker of the stream must report that it syncs, and no other one may report that it does not")
  func flaws() {
    let cases: [(brokers: [String], facts: [BrokerFacts], flaw: String?)] = [
      (["a"], [Self.facts("a")], nil),
      (["a-id"], [Self.facts("a")], nil),
      (["a", "b"], [Self.facts("b"), Self.facts("a"), Self.facts("c")], nil),
      (["a"], [Self.facts("a"), Self.facts("b", false)], Self.lazy),
      (["a"], [Self.facts("a"), Self.facts("b", false, nil, version: "2.9.10")], Self.silent),
      ([], [Self.facts("b", false)], Self.lazy),
      ([], [Self.facts("a")], "the brokers do not report which of them have the stream"),
      ([], [], "the brokers do not report which of them have the stream"),
      (["a"], [], Self.unknown("a")),
      (["a", "b", "c"], [Self.facts("a"), Self.facts("c")], Self.unknown("b")),
    ]
    for (brokers, facts, flaw) in cases { #expect(StorageProof.flaw(brokers, facts) == flaw) }
  }

  private static let losses =
    "versions before 2.10.23 can lose acknowledged messages when their process is killed (nats-server #7564, Jepsen's "
    + "analysis of NATS 2.12.1)"
  private static let unknownInterval =
    "the sync interval of the brokers is unknown. The default is two minutes. If they lose power, messages that they "
    + "acknowledged since the last sync may be lost. Set sync_interval: always."

  private static func window(_ name: String, _ length: String) -> String {
    "broker \(name) acknowledges before it syncs. If it loses power, messages that it acknowledged in the last "
      + "\(length) may be lost. Set sync_interval: always."
  }

  @Test("the notes name each broker that may lose messages, and how many")
  func notes() {
    let old = "the brokers are older than NATS 2.10: \(Self.losses). Upgrade them."
    #expect(StorageProof.notes(isBefore210: false) == [Self.unknownInterval])
    #expect(StorageProof.notes(isBefore210: true) == [old, Self.unknownInterval])
    #expect(StorageProof.notes([]).isEmpty)
    let notes = StorageProof.notes([
      Self.facts("a"), Self.facts("b", version: "2.10.22"), Self.facts("c", false, .milliseconds(90_999)),
      Self.facts("d", false, nil, version: "2.9.10"),
    ])
    let expected = [
      "broker b is NATS 2.10.22: \(Self.losses). Upgrade it.", Self.window("c", "90 s"),
      "broker d is NATS 2.9.10: \(Self.losses). Upgrade it.",
      Self.window("d", "two minutes, unless it is configured otherwise,"),
    ]
    #expect(notes == expected)
  }
}
