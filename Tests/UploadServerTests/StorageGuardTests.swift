// The check of the stream after a reconnect, by a process that lacks threads.

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
}
