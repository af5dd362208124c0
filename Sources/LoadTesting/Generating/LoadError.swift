// The reasons why a load test does not start, with advice.

/// The reason why a load test was refused before its first connection.
public enum LoadError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The configuration does not permit this host.
  case notPermitted(host: String)
  /// The configuration is invalid, for this reason.
  case invalid(String)
  /// The file of the body, and the reason why it cannot be used.
  case unreadableBody(String, String)
  /// The test requires more connections from its start than ``LoadConfiguration/maximumConnectionCount`` allows.
  case tooManyConnections(needed: Int, limit: UInt64)
  /// This version of libcurl cannot put several streams on one HTTP/2 connection without TLS.
  case cannotShareConnections(library: String)
  /// The process is not permitted to open the required number of descriptors.
  case tooFewDescriptors(needed: Int, limit: Int)
  /// There are not enough local ports.
  case tooFewPorts(streams: Int, addresses: Int, portsOfEach: Int)
  /// The system refuses threads or descriptors, for this reason.
  case resources(String)

  /// The settings that may help.
  public enum Remedy: Equatable, Sendable {
    /// Add the host to ``LoadConfiguration/permittedHosts``, if you are permitted to load-test it.
    case permission(host: String)
    /// A higher ``LoadConfiguration/maximumConnectionCount``.
    case moreConnections
    /// URLs that begin with `https`, or a ``LoadConfiguration/streamsPerConnection`` of 1.
    case secureOrSeparateConnections
    /// Permit the process this number of descriptors, or divide the streams among several processes by
    /// ``LoadConfiguration/part``.
    case moreDescriptors(Int)
    /// This number of ``LoadConfiguration/localAddresses``.
    case moreAddresses(Int)
  }

  /// The setting that may help, for programs with their own names for it. Nil if there is none.
  public var remedy: Remedy? {
    switch self {
    case .notPermitted(let host): .permission(host: host)
    case .tooManyConnections: .moreConnections
    case .cannotShareConnections: .secureOrSeparateConnections
    case .tooFewDescriptors(let needed, _): .moreDescriptors(needed)
    case .tooFewPorts(let streams, _, let ports): .moreAddresses((streams + ports - 1) / max(1, ports))
    case .invalid, .unreadableBody, .resources: nil
    }
  }

  /// The problem without the remedy, in words.
  package var problem: String {
    switch self {
    case .notPermitted(let host): "\(host) is not this machine, and a load test can take a server down"
    case .invalid(let words): words
    case .unreadableBody(let path, let reason): "cannot use the body \"\(path)\": \(reason)"
    case .tooManyConnections(let needed, let limit):
      "the test requires \(needed) connections from the start, and \(limit) are allowed"
    case .cannotShareConnections(let library):
      "\(library) cannot put several streams on one HTTP/2 connection without TLS (8.0 can)"
    case .tooFewDescriptors(let needed, let limit):
      "the test requires \(needed) descriptors, and the process may open \(limit)"
    case .tooFewPorts(let streams, let addresses, let ports):
      "cannot open \(streams) connections from \(addresses) \(addresses == 1 ? "address" : "addresses") with \(ports) ports each"
    case .resources(let words): words
    }
  }

  /// The problem and the remedy, in words.
  public var description: String {
    switch remedy {
    case .permission: "\(problem). Permit the host if you are allowed to load-test it."
    case .moreConnections: "\(problem). Raise the limit, or use fewer streams."
    case .secureOrSeparateConnections: "\(problem). Use https://, or one stream per connection."
    case .moreDescriptors(let needed):
      "\(problem). Raise the limit to \(needed), or divide the streams among several processes."
    case .moreAddresses(let count):
      "\(problem). Name \(count) local addresses of this machine, or widen net.ipv4.ip_local_port_range."
    case nil: problem
    }
  }
}
