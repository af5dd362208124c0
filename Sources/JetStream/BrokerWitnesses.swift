// The sources of information about the brokers' configuration.

/// Monitoring ports, and the system account. Either is enough if it covers all brokers. Each one that is set must
/// answer.
public struct BrokerWitnesses: Sendable, Equatable {
  /// The monitoring port of each broker.
  public var monitors: [BrokerMonitor]
  /// The brokers, with the credentials of a user of the system account; nil for none.
  public var systemAccount: BrokerOptions?
  /// The path of a PEM file with the authorities that may sign a monitoring port's certificate; nil for the system's.
  public var authorityFile: String?

  /// Creates a set of witnesses, which is empty by default.
  public init(monitors: [BrokerMonitor] = [], systemAccount: BrokerOptions? = nil, authorityFile: String? = nil) {
    (self.monitors, self.systemAccount, self.authorityFile) = (monitors, systemAccount, authorityFile)
  }

  /// Whether there are none.
  public var isEmpty: Bool { monitors.isEmpty && systemAccount == nil }

  /// The combined answers of all sources. Waits for them. Do not call it on the thread of a loop.
  ///
  /// - Parameter brokers: the names or identifiers of the brokers to query through the system account.
  package func facts(about brokers: [String]) throws(BrokerError) -> [BrokerFacts] {
    var facts: [BrokerFacts] = []
    for monitor in monitors { facts.append(try monitor.ask(authorityFile: authorityFile)) }
    if let systemAccount { facts += try SystemAccount.ask(systemAccount, about: brokers) }
    return facts
  }
}
