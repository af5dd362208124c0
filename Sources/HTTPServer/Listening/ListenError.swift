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

  /// A different address that may be possible.
  public enum Remedy: String, CaseIterable, Sendable {
    /// Another address or port.
    case otherAddress
    /// `0.0.0.0` or `[::]`.
    case allAddresses
    /// A port above 1023.
    case higherPort
  }

  /// The change of the address that may help, for programs with their own names for it. It is the last part of
  /// ``description``. Nil if there is none.
  public var remedy: Remedy? {
    switch self {
    case .portTaken: .otherAddress
    case .notOurAddress: .allAddresses
    case .portNotPermitted: .higherPort
    case .malformedAddress, .unknownHost, .cannotListen, .resources: nil
    }
  }

  /// The problem and the remedy, in words.
  public var description: String {
    switch self {
    case .malformedAddress(let text):
      "cannot listen on \"\(text)\": invalid address. Write ADDRESS:PORT, [IPV6]:PORT, :PORT or unix:PATH."
    case .unknownHost(let host, let reason):
      "cannot listen on \"\(host)\": \(reason). Write an address of this machine, or 0.0.0.0 for all addresses."
    case .portTaken(let address, let owner):
      "cannot listen on \(address): the address is in use\(owner.map { " by \($0)" } ?? ""). Stop that server, or choose another address."
    case .notOurAddress(let address):
      "cannot listen on \(address): not an address of this machine. See `ip address`, or listen on all addresses."
    case .portNotPermitted(let address):
      "cannot listen on \(address): permission denied. Ports below 1024 require CAP_NET_BIND_SERVICE. Choose a higher port."
    case .cannotListen(let address, let reason): "cannot listen on \(address): \(reason)"
    case .resources(let reason): "cannot start the server: \(reason)"
    }
  }
}
