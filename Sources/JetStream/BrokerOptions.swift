// How to reach and authenticate with the brokers.

/// The brokers of one NATS system, and what they ask for.
public struct BrokerOptions: Sendable, Equatable {
  /// `nats://HOST:PORT` or `tls://HOST:PORT`, one for each broker that may be asked first. The others of a cluster are
  /// learned from these. Without a port it is 4222.
  public var servers: [String]
  /// What the broker's own lists call this client.
  public var name = "sluice"
  /// A token that the brokers ask for; nil for none.
  public var token: String?
  /// The path of a credentials file (`.creds`), as NATS's own tools take it: a JWT and its seed.
  public var credentialsFile: String?
  /// The path of a PEM file with the authorities that may sign a broker's certificate; nil for the system's.
  public var authorityFile: String?
  /// The path of a PEM file with the client's certificate, followed by those of intermediate authorities; nil for none.
  public var certificateFile: String?
  /// The path of a PEM file with the unencrypted private key of the certificate; nil if it is in ``certificateFile``.
  public var keyFile: String?
  /// How long one attempt to connect may take.
  public var connectTimeout = Duration.seconds(5)

  /// Creates the options for the brokers of these URLs, with the defaults for everything else.
  public init(servers: [String]) { self.servers = servers }

  /// Creates the options for the brokers of a comma-separated list: `nats://a:4222,b:4222`. nil if one of them is not a
  /// NATS URL.
  public init?(list: String) {
    let servers = list.split(separator: ",", omittingEmptySubsequences: false).map { entry in
      entry.contains("://") ? String(entry) : "nats://\(entry)"
    }
    for server in servers {
      let rest = ["nats://", "tls://"].first { server.hasPrefix($0) }.map { server.dropFirst($0.count) }
      guard let rest, let host = rest.split(separator: "@", omittingEmptySubsequences: false).last, !host.isEmpty,
        host.first != ":", !host.contains("/")
      else { return nil }
    }
    self.servers = servers
  }

  /// Whether a connection must be encrypted.
  var requiresTLS: Bool {
    authorityFile != nil || certificateFile != nil || servers.contains { $0.hasPrefix("tls://") }
  }
}
