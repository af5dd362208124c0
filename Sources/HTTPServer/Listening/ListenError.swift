// The reason why a server cannot listen.

/// An error while a listener is created. Nothing listens after it.
public enum ListenError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The text is not an address. See ``ListenAddress/init(_:)``.
  case malformedAddress(String)
  /// The host of the address is unknown.
  case unknownHost(String, reason: String)
  /// Another socket listens at the address. `owner` names its process, if this process can see it.
  case portTaken(address: String, owner: String?)
  /// The address is not one of this machine.
  case notOurAddress(String)
  /// The port requires a privilege that this process does not have.
  case portNotPermitted(String)
  /// Listening failed for another reason.
  case cannotListen(address: String, reason: String)
  /// The process lacks something that every server requires.
  case resources(String)

  /// The problem and the remedy, in words.
  public var description: String { description(listenOption: "--listen") }

  /// The same for an address that another option gave.
  package func description(listenOption option: String) -> String {
    switch self {
    case .malformedAddress(let text):
      "cannot listen on \"\(text)\": invalid address. Write ADDRESS:PORT, [IPV6]:PORT, :PORT or unix:PATH."
    case .unknownHost(let host, let reason):
      "cannot listen on \"\(host)\": \(reason). Write an address of this machine, or 0.0.0.0 for all addresses."
    case .portTaken(let address, let owner):
      "cannot listen on \(address): the address is in use\(owner.map { " by \($0)" } ?? ""). Stop that server, or choose another address with \(option) ADDRESS:PORT."
    case .notOurAddress(let address):
      "cannot listen on \(address): not an address of this machine. See `ip address`, or listen on all addresses with \(option) 0.0.0.0:PORT."
    case .portNotPermitted(let address):
      "cannot listen on \(address): permission denied. Ports below 1024 require CAP_NET_BIND_SERVICE. Choose a higher port with \(option)."
    case .cannotListen(let address, let reason): "cannot listen on \(address): \(reason)"
    case .resources(let reason): "cannot start the server: \(reason)"
    }
  }
}
