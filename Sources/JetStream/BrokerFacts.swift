// A broker's information about itself: its identity, and when its disk has acknowledged messages.

/// A broker's information about itself.
package struct BrokerFacts: Sendable, Equatable {
  /// Its `server_name`.
  package var name: String
  /// Its `server_id`, which changes at each start.
  package var identifier: String
  package var version: String
  /// Whether it reports that it syncs each message before the acknowledgement. Older versions may sync without
  /// reporting it.
  package var syncsAlways: Bool
  /// How often it syncs otherwise; nil if it does not report that.
  package var syncInterval: Duration?

  /// Earlier versions can lose acknowledged messages when their process is killed (nats-server #7564, Jepsen's analysis
  /// of NATS 2.12.1).
  package static let leastVersion = "2.10.23"

  package init(name: String, identifier: String, version: String, syncsAlways: Bool, syncInterval: Duration?) {
    self.identifier = identifier
    (self.name, self.version, self.syncsAlways, self.syncInterval) = (name, version, syncsAlways, syncInterval)
  }

  /// - Parameter reply: the object at `/varz`, or the system account's answer.
  init(_ reply: APIReply) throws(BrokerError) {
    guard let name = reply.text("server_name"), let identifier = reply.text("server_id"),
      let version = reply.text("version")
    else {
      throw .invalidReply("it does not name the broker")
    }
    let settings = reply["jetstream"]?["config"]
    self.init(
      name: name, identifier: identifier, version: version, syncsAlways: settings?.flag("sync_always") ?? false,
      syncInterval: settings?.integer("sync_interval").flatMap { $0 > 0 ? .nanoseconds($0) : nil })
  }

  /// Whether that is its name or its identifier.
  package func isCalled(_ broker: String) -> Bool { broker == name || broker == identifier }

  /// Whether the version is older than ``leastVersion``.
  package var isOutdated: Bool {
    func numbers(_ text: String) -> [Int] {
      text.prefix { $0 != "-" }.split(separator: ".").map { Int($0) ?? 0 }
    }
    return numbers(version).lexicographicallyPrecedes(numbers(Self.leastVersion))
  }
}
