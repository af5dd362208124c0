// Ensures that nothing is acknowledged without the configured durability.

internal import EventLoops
internal import Glibc
internal import JetStream

/// Asks the witnesses of the brokers whether they sync before they acknowledge, at the start and after each reconnect.
/// Until that is proven, servers store nothing. Any thread.
final class StorageGuard: Sendable {
  /// The pause before another attempt, in milliseconds.
  private static let pause: Int32 = 2000

  private let witnesses: BrokerWitnesses
  private let brokers: @Sendable () throws(BrokerError) -> [String]
  private let isConnected: @Sendable () -> Bool
  private struct State {
    /// Counts lost and restored connections, because an earlier answer does not apply to a new connection.
    var change: UInt64 = 0
    var isProven = false
  }
  private let state = Lock(State())
  private let warn: Lock<@Sendable (String) -> Void>

  /// - Parameter brokers: asks which brokers have the stream, and waits for the answer.
  init(
    _ witnesses: BrokerWitnesses, isConnected: @escaping @Sendable () -> Bool,
    brokers: @escaping @Sendable () throws(BrokerError) -> [String]
  ) {
    (self.witnesses, self.isConnected, self.brokers) = (witnesses, isConnected, brokers)
    warn = Lock({ _ in })
  }

  /// Whether bytes that are acknowledged now are on the disks of the brokers.
  var isProven: Bool { state.withLock { $0.isProven } }

  /// Sets the receiver of messages about why nothing can be stored.
  func report(to warn: @escaping @Sendable (String) -> Void) { self.warn.withLock { $0 = warn } }

  private func findFlaw() throws(BrokerError) -> String? {
    let brokers = try brokers()
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
    state.withLock { if $0.change == change { $0.isProven = true } }
  }

  /// The connection to the brokers was lost or restored. Nothing is proven for the present brokers yet.
  func connectionChanged(isConnected: Bool) {
    let change = state.withLock { state in
      state.change += 1
      state.isProven = false
      return state.change
    }
    guard isConnected else { return }
    do throws(SystemError) {
      try NamedThread("sluice-monitor") { [self] in proveAgain(change) }.detach()
    } catch {
      warn.withLock { $0 }("the server stores nothing until the brokers reconnect: \(error)")
    }
  }

  private func proveAgain(_ change: UInt64) {
    var complaint: String?
    while state.withLock({ $0.change }) == change, isConnected() {
      var reason: String?
      do throws(BrokerError) {
        reason = try findFlaw()
      } catch {
        reason = "\(error)"
      }
      guard let reason else {
        // Not if the connection has changed meanwhile.
        return state.withLock { if $0.change == change { $0.isProven = true } }
      }
      if complaint != reason {
        complaint = reason
        warn.withLock { $0 }("the server stores nothing until the durability of the brokers is proven: \(reason)")
      }
      poll(nil, 0, Self.pause)
    }
  }
}
