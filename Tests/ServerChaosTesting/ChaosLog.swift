// The broker of a batch whose servers store into a log.

internal import BrokerTesting
internal import NetworkTesting

/// A real nats-server for the servers of one batch. It is killed when the object is released.
package final class ChaosLog: Sendable {
  /// Whether there is a broker that can sync before it acknowledges, and that keeps all acknowledged messages when its
  /// process is killed: NATS 2.10.23 or newer; `always` requires 2.14 (docs/scaling.md). Debian 12's broker is older.
  package static let hasRecentBroker = TestBroker.recentProgram != nil

  /// The name of the JetStream stream of all servers.
  package static let stream = "sluice"

  private let broker: TestBroker
  private let sync: String?
  /// The URL of its monitoring port, which proves that it syncs.
  let monitor: String

  init(_ setting: ServerSetting) throws {
    // Otherwise brokers sync every two minutes, and a broker that is killed loses nothing, because the page cache
    // survives.
    sync = setting.durability == "always" ? "always" : nil
    let port = try freePort()
    monitor = "http://127.0.0.1:\(port)"
    broker = try TestBroker("http: \"127.0.0.1:\(port)\"", sync: sync, program: TestBroker.recentProgram)
  }

  var url: String { broker.url }

  /// Kills the broker with SIGKILL, and returns when it has ended.
  func kill() throws { try broker.kill() }

  /// Starts it again with the same store, and returns when it is ready.
  func start() throws { try broker.start(sync: sync) }
}
