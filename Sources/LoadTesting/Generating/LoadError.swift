// Why a load test does not begin, and what to do.

/// A load test that was refused before its first connection.
public enum LoadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// Nobody has said that this host may be loaded.
  case notPermitted(host: String)
  /// The configuration is invalid; why, in words.
  case invalid(String)
  /// The file of the body, and why it cannot be used.
  case unreadableBody(String, String)
  /// The process may not have as many descriptors as it needs.
  case tooFewDescriptors(needed: Int, limit: Int)
  /// There are not enough ports to connect from.
  case tooFewPorts(streams: Int, addresses: Int, portsOfEach: Int)
  /// The system refuses threads or descriptors; why, in words.
  case resources(String)

  /// What is wrong and what to do, in words.
  public var description: String {
    switch self {
    case .notPermitted(let host):
      "\(host) is not this machine: a load test can take a server down. If it is yours to load, say so: --i-may-load-this \(host)"
    case .invalid(let words): words
    case .unreadableBody(let path, let reason): "the body \"\(path)\" cannot be used: \(reason)"
    case .tooFewDescriptors(let needed, let limit):
      "this takes \(needed) descriptors, and the process may have \(limit): raise the limit with `ulimit -n \(needed)` (as root, or LimitNOFILE= in systemd), or share the streams out with --part"
    case .tooFewPorts(let streams, let addresses, let ports):
      "\(streams) connections cannot be made from \(addresses) \(addresses == 1 ? "address" : "addresses") with \(ports) ports each: give \((streams + ports - 1) / max(1, ports)) addresses of this machine with --local-address, or widen net.ipv4.ip_local_port_range"
    case .resources(let words): words
    }
  }
}
