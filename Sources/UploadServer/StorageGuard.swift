// Ensures that nothing is acknowledged without the configured durability, or in a stream that can drop messages.

internal import EventLoops
internal import Glibc
internal import JetStream

/// Checks the stream and its brokers again after each reconnect, because an operator may have changed them. Any thread.
///
/// With ``Durability/always``, the witnesses of the brokers must prove, at the start as well, that they sync before
/// they acknowledge. Until then, servers store nothing. Otherwise, servers store until the settings of the stream turn
/// out to be unsuitable.
final class StorageGuard: Sendable {
  private let requiresProof: Bool
  /// The pause before another attempt, in milliseconds.
  private let pause: Int32
  private let witnesses: BrokerWitnesses
  private let brokers: @Sendable () throws(BrokerError) -> [String]
  private let isConnected: @Sendable () -> Bool
  private let later: @Sendable (@escaping @Sendable () -> Void) -> Void
  private struct State {
    /// Counts lost and restored connections, because an earlier answer does not apply to a new connection.
    var change: UInt64 = 0
    var mayStore: Bool
  }
  private let state: Lock<State>
  private let warn: Lock<@Sendable (String) -> Void>

  /// - Parameters:
  ///   - requiresProof: whether the brokers have to sync before they acknowledge.
  ///   - pause: the pause before another attempt, in milliseconds.
  ///   - later: calls its argument after a pause, on any thread.
  ///   - brokers: asks which brokers have the stream, and waits for the answer. Throws if its settings are unsuitable.
  init(
    requiresProof: Bool, _ witnesses: BrokerWitnesses, pause: Int32 = 2000, isConnected: @escaping @Sendable () -> Bool,
    later: @escaping @Sendable (@escaping @Sendable () -> Void) -> Void,
    brokers: @escaping @Sendable () throws(BrokerError) -> [String]
  ) {
    (self.witnesses, self.isConnected, self.brokers) = (witnesses, isConnected, brokers)
    (self.requiresProof, self.pause, self.later) = (requiresProof, pause, later)
    state = Lock(State(mayStore: !requiresProof))
    warn = Lock({ _ in })
  }

  /// Whether bytes may be stored now. With ``Durability/always``, acknowledged ones are then on the disks of the
  /// brokers.
  var mayStore: Bool { state.withLock { $0.mayStore } }

  /// Sets the receiver of messages about why nothing can be stored.
  func report(to warn: @escaping @Sendable (String) -> Void) { self.warn.withLock { $0 = warn } }

  private func findFlaw() throws(BrokerError) -> String? {
    let brokers = try brokers()
    guard requiresProof else { return nil }
    return StorageProof.flaw(brokers, try witnesses.facts(about: brokers))
  }

  /// Asks for the proof at the start, and waits for it.
  func prove() throws(UploadServerError) {
    let change = state.withLock { $0.change }
    let flaw: String?
    do throws(BrokerError) {
      flaw = try findFlaw()
    } catch {
      throw .brokers(error)
    }
    if let flaw { throw .notDurable(flaw) }
    // If the connection has changed meanwhile, the proof must be repeated.
    allow(true, change)
  }

  /// Not if the connection has changed meanwhile.
  private func allow(_ mayStore: Bool, _ change: UInt64) {
    state.withLock { if $0.change == change { $0.mayStore = mayStore } }
  }

  /// The connection to the brokers was lost or restored. Nothing is proven for the present brokers yet.
  func connectionChanged(isConnected: Bool) {
    let change = state.withLock { state in
      state.change += 1
      state.mayStore = state.mayStore && !requiresProof
      return state.change
    }
    if isConnected { beginJudging(change, isFirstAttempt: true) }
  }

  /// Starts the thread that asks, unless the connection has changed meanwhile.
  private func beginJudging(_ change: UInt64, isFirstAttempt: Bool) {
    guard state.withLock({ $0.change }) == change else { return }
    do throws(SystemError) {
      try NamedThread("sluice-monitor") { [self] in judgeAgain(change) }.detach()
    } catch {
      if isFirstAttempt {
        let effect = requiresProof ? " Until then, it stores nothing." : ""
        warn.withLock { $0 }("cannot check the stream after a reconnect: \(error). The server retries.\(effect)")
      }
      later { [self] in beginJudging(change, isFirstAttempt: false) }
    }
  }

  private func judgeAgain(_ change: UInt64) {
    var complaint: String?
    while state.withLock({ $0.change }) == change, isConnected() {
      var reason: String?
      var mayStore = false
      do throws(BrokerError) {
        reason = try findFlaw()
      } catch {
        reason = "\(error)"
        if case .unsuitableStream = error {} else { mayStore = !requiresProof }
      }
      guard let reason else { return allow(true, change) }
      if !mayStore {
        allow(false, change)
        if complaint != reason {
          complaint = reason
          let condition = requiresProof ? "until the durability of the brokers is proven" : "until this is repaired"
          warn.withLock { $0 }("the server stores nothing \(condition): \(reason)")
        }
      }
      poll(nil, 0, pause)
    }
  }
}
