// Why a server cannot listen.

/// Thrown when a listener is made: nothing listens after it.
public enum ListenError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The text is not an address. See ``ListenAddress/init(_:)``.
  case malformedAddress(String)
  /// The host of the address is not known.
  case unknownHost(String, reason: String)
  /// Another socket listens there. `owner` names its process, if this process can see it.
  case portTaken(address: String, owner: String?)
  /// The address is not one of this machine.
  case notOurAddress(String)
  /// The port requires a privilege that this process does not have.
  case portNotPermitted(String)
  /// Listening failed for another reason.
  case cannotListen(address: String, reason: String)
  /// The process lacks something that every server requires.
  case resources(String)

  /// What is wrong and what to do, in words.
  public var description: String { description(listenOption: "--listen") }

  /// The same for an address that another option gave.
  package func description(listenOption option: String) -> String {
    switch self {
    case .malformedAddress(let text):
      "\"\(text)\" is no address to listen on: give ADDRESS:PORT, [IPV6]:PORT, :PORT or unix:PATH"
    case .unknownHost(let host, let reason):
      "the host \"\(host)\" to listen on is not known (\(reason)): give an address of this machine, or 0.0.0.0 for all"
    case .portTaken(let address, let owner):
      "\(address) is taken\(owner.map { " by \($0)" } ?? ""): stop that server, or choose another with \(option) ADDRESS:PORT"
    case .notOurAddress(let address):
      "\(address) is not an address of this machine: see `ip address`, or listen on all with \(option) 0.0.0.0:PORT"
    case .portNotPermitted(let address):
      "no permission to listen on \(address): ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one with \(option)"
    case .cannotListen(let address, let reason): "cannot listen on \(address): \(reason)"
    case .resources(let reason): "the server cannot be started: \(reason)"
    }
  }
}
