// What a broker says of itself: who it is, and when its disk has what it acknowledges.

/// What a broker says of itself.
package struct BrokerFacts: Sendable, Equatable {
  /// Its `server_name`.
  package var name: String
  /// Its `server_id`, which is another one each time it starts.
  package var identifier: String
  package var version: String
  /// Whether it says that it syncs each message before it acknowledges it. Versions that do not say it may do it.
  package var syncsAlways: Bool
  /// How often it syncs otherwise; nil if it does not say.
  package var syncInterval: Duration?

  /// Versions before this one can lose acknowledged messages when their process is killed (nats-server #7564, Jepsen's
  /// analysis of NATS 2.12.1).
  package static let leastVersion = "2.10.23"

  package init(name: String, identifier: String, version: String, syncsAlways: Bool, syncInterval: Duration?) {
    self.identifier = identifier
    (self.name, self.version, self.syncsAlways, self.syncInterval) = (name, version, syncsAlways, syncInterval)
  }

  /// - Parameter reply: what is at `/varz`, or what the system account hears.
  init(_ reply: APIReply) throws(BrokerError) {
    guard let name = reply.text("server_name"), let identifier = reply.text("server_id"),
      let version = reply.text("version")
    else {
      throw .invalidReply("it does not say who the broker is")
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
