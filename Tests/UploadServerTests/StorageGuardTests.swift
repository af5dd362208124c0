// The check of the stream: what it needs, when it is repeated, and what is stored meanwhile.

import CallCounter
import EventLoops
import JetStream
import NetworkTesting
import Testing

@testable import UploadServer

@Suite("The guard of the log")
struct StorageGuardTests {
  @Test(
    "after a reconnect, the stream is checked as soon as a thread can be started, and one warning states the reason",
    arguments: [true, false])
  func noThread(_ requiresProof: Bool) throws {
    guard call_counter_works() else { return }
    let waiting = Lock<[@Sendable () -> Void]>([])
    let warnings = Lock<[String]>([])
    let checks = Lock(0)
    let guardian = StorageGuard(requiresProof: requiresProof, BrokerWitnesses()) {
      true
    } later: { work in
      waiting.withLock { $0.append(work) }
    } brokers: { () throws(BrokerError) in
      checks.withLock { $0 += 1 }
      return ["a"]
    }
    guardian.report { reason in warnings.withLock { $0.append(reason) } }
    // The check itself may warn that nothing proves the durability.
    func warningCount() -> Int { warnings.withLock { $0.count { $0.hasPrefix("cannot check the stream") } } }
    /// Ends the pause.
    func tryAgain() throws {
      let works = waiting.withLock { waiting in
        defer { waiting = [] }
        return waiting
      }
      #expect(works.count == 1)
      for work in works { work() }
    }
    refuse_next_thread_of_this_thread()
    guardian.connectionChanged(isConnected: true)
    refuse_next_thread_of_this_thread()
    try tryAgain()
    #expect(checks.withLock { $0 } == 0)
    #expect(warningCount() == 1)
    try tryAgain()
    try waitUntil("the stream is checked") { checks.withLock { $0 } > 0 }
    // An attempt for an earlier connection has no effect.
    refuse_next_thread_of_this_thread()
    guardian.connectionChanged(isConnected: true)
    guardian.connectionChanged(isConnected: false)
    refuse_next_thread_of_this_thread()
    try tryAgain()
    #expect(waiting.withLock { $0.isEmpty } && warningCount() == 2)
    // It was not used up.
    #expect(throws: SystemError.self) { try NamedThread("test") {}.detach() }
  }

  @Test("once the settings of the stream are unsuitable, nothing is stored until a check finds them repaired")
  func unsuitable() throws {
    let flaw = Lock<String?>("it discards old messages")
    let warnings = try EventLog<String>()
    let guardian = StorageGuard(requiresProof: false, BrokerWitnesses()) {
      true
    } later: { _ in
    } brokers: { () throws(BrokerError) in
      if let flaw = flaw.withLock({ $0 }) { throw .unsuitableStream("uploads", reason: flaw) }
      return ["a"]
    }
    guardian.report { reason in warnings.append(reason) }
    #expect(guardian.mayStore)
    guardian.connectionChanged(isConnected: true)
    let warning = try warnings.first("the warning") { _ in true }
    #expect(warning.hasPrefix("the server stores nothing until this is repaired: ") && !guardian.mayStore, "\(warning)")
    flaw.withLock { $0 = nil }
    guardian.connectionChanged(isConnected: true)
    try waitUntil("the server stores again") { guardian.mayStore }
  }

  @Test("a flaw is reported once, however often the check is repeated, and a pause precedes each repetition")
  func repeated() throws {
    let pause = 20
    let checks = Lock(0)
    let reasons = ["old", "old", "old", "short", "short", nil] as [String?]
    let warnings = try EventLog<String>()
    let guardian = StorageGuard(requiresProof: false, BrokerWitnesses(), pause: Int32(pause)) {
      true
    } later: { _ in
    } brokers: { () throws(BrokerError) in
      let number = checks.withLock { checks in
        defer { checks += 1 }
        return checks
      }
      if let reason = reasons[min(number, reasons.count - 1)] { throw .unsuitableStream("u", reason: reason) }
      return ["a"]
    }
    guardian.report { reason in warnings.append(reason) }
    let start = MonotonicInstant.now
    guardian.connectionChanged(isConnected: true)
    try waitUntil("the last check") { checks.withLock { $0 } == reasons.count }
    #expect(MonotonicInstant.now - start >= .milliseconds(pause * (reasons.count - 1)))
    try waitUntil("the server stores again") { guardian.mayStore }
    #expect(
      warnings.all
        == ["old", "short"].map {
          "the server stores nothing until this is repaired: the JetStream stream \"u\" is unsuitable: \($0)"
        })
  }

  @Test("a server that needs no proof continues to store, and reports nothing, while the brokers do not answer")
  func unanswered() throws {
    let checks = Lock(0)
    let warnings = try EventLog<String>()
    let guardian = StorageGuard(requiresProof: false, BrokerWitnesses(), pause: 1) {
      true
    } later: { _ in
    } brokers: { () throws(BrokerError) in
      let number = checks.withLock { checks in
        checks += 1
        return checks
      }
      if number < 4 { throw .timedOut }
      return ["a"]
    }
    guardian.report { reason in warnings.append(reason) }
    guardian.connectionChanged(isConnected: true)
    try waitUntil("the last check") { checks.withLock { $0 } == 4 }
    #expect(guardian.mayStore && warnings.all.isEmpty, "\(warnings.all)")
  }

  /// A monitoring port that reports, one after another, whether its broker syncs before it acknowledges. The last
  /// report is repeated.
  private static func monitor(_ reports: [Bool]) throws -> ScriptedServer {
    try ScriptedServer { connection, number in
      _ = try connection.head()
      let syncs = reports[min(number, reports.count - 1)]
      try connection.respond(
        "200 OK",
        body: """
          {"server_name":"a","server_id":"a-id","version":"2.14.0",\
          "jetstream":{"config":{"sync_always":\(syncs),"sync_interval":120000000000}}}
          """)
    }
  }

  private static let flaw =
    "broker a acknowledges before it syncs. Set sync_interval: always in the jetstream section of its configuration"

  @Test("with a required proof, nothing is stored before it, and after each reconnect before the next one")
  func proof() throws {
    let monitor = try Self.monitor([false, true, true, false, false, true])
    let witnesses = BrokerWitnesses(monitors: [try #require(BrokerMonitor(monitor.url))])
    let failure = Lock<BrokerError?>(.noResponders)
    let warnings = try EventLog<String>()
    let changes = Lock<[@Sendable () -> Void]>([])
    let guardian = StorageGuard(requiresProof: true, witnesses, pause: 1) {
      true
    } later: { _ in
    } brokers: { () throws(BrokerError) in
      for change in changes.withLock({ $0 }) { change() }
      if let failure = failure.withLock({ $0 }) { throw failure }
      return ["a"]
    }
    guardian.report { reason in warnings.append(reason) }
    #expect(!guardian.mayStore)
    #expect(throws: UploadServerError.brokers(.noResponders)) { try guardian.prove() }
    failure.withLock { $0 = nil }
    #expect(throws: UploadServerError.notDurable(Self.flaw)) { try guardian.prove() }
    #expect(!guardian.mayStore)
    // The connection is lost while the witnesses are asked.
    changes.withLock { $0 = [{ guardian.connectionChanged(isConnected: false) }] }
    try guardian.prove()
    #expect(!guardian.mayStore)
    changes.withLock { $0 = [] }
    try guardian.prove()
    #expect(guardian.mayStore)
    // The broker does not sync at first, and then does.
    guardian.connectionChanged(isConnected: false)
    #expect(!guardian.mayStore)
    guardian.connectionChanged(isConnected: true)
    try waitUntil("the server stores again") { guardian.mayStore }
    #expect(
      warnings.all == ["the server stores nothing until the durability of the brokers is proven: \(Self.flaw)"])
  }
}
