// The reasons why a load test does not start, with advice.

/// The reason why a load test was refused before its first connection.
public enum LoadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The configuration does not permit this host.
  case notPermitted(host: String)
  /// The configuration is invalid, for this reason.
  case invalid(String)
  /// The file of the body, and the reason why it cannot be used.
  case unreadableBody(String, String)
  /// The process may not open the required number of descriptors.
  case tooFewDescriptors(needed: Int, limit: Int)
  /// There are not enough local ports.
  case tooFewPorts(streams: Int, addresses: Int, portsOfEach: Int)
  /// The system refuses threads or descriptors, for this reason.
  case resources(String)

  /// The problem and the remedy, in words.
  public var description: String {
    switch self {
    case .notPermitted(let host):
      "\(host) is not this machine, and a load test can take a server down. If you may load it, add --i-may-load-this \(host)."
    case .invalid(let words): words
    case .unreadableBody(let path, let reason): "cannot use the body \"\(path)\": \(reason)"
    case .tooFewDescriptors(let needed, let limit):
      "the test requires \(needed) descriptors, and the process may open \(limit). Raise the limit with `ulimit -n \(needed)` (as root, or LimitNOFILE= in systemd), or divide the streams with --part."
    case .tooFewPorts(let streams, let addresses, let ports):
      "cannot open \(streams) connections from \(addresses) \(addresses == 1 ? "address" : "addresses") with \(ports) ports each. Name \((streams + ports - 1) / max(1, ports)) addresses of this machine with --local-address, or widen net.ipv4.ip_local_port_range."
    case .resources(let words): words
    }
  }
}
