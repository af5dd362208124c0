// Why a server could not be started, in words that say what to do.

internal import Glibc

/// Thrown when an ``UploadServer`` is made: nothing listens and nothing is locked after it.
public enum UploadServerError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The text is no address; see ``ListenAddress/init(_:)``.
  case malformedAddress(String)
  /// The host of the address is not known.
  case unknownHost(String, reason: String)
  /// Another socket listens there; `owner` names the process where it can be found out.
  case portTaken(address: String, owner: String?)
  /// The address is not one of this machine.
  case notOurAddress(String)
  /// The port needs a privilege that this process does not have.
  case portNotPermitted(String)
  /// Listening failed for another reason.
  case cannotListen(address: String, reason: String)
  /// The directory cannot be made or opened.
  case noDirectory(String, reason: String)
  /// The names of the files in the directory cannot be read.
  case unreadableDirectory(String, reason: String)
  /// No file can be made in the directory.
  case unwritableDirectory(String, reason: String)
  /// Another server stores into the directory.
  case directoryInUse(String)
  /// The file of tokens cannot be read; `line` is counted from 1.
  case tokenFile(String, line: Int?, reason: String)
  /// The process lacks something that every server needs.
  case resources(String)

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
    case .noDirectory(let path, let reason):
      "cannot open the directory \"\(path)\": \(reason); make it first, or name another with --directory"
    case .unreadableDirectory(let path, let reason):
      "cannot list the directory \"\(path)\": \(reason). Change its permissions, or choose another directory."
    case .unwritableDirectory(let path, let reason):
      "cannot write into the directory \"\(path)\": \(reason); change its permissions, or name another with --directory"
    case .directoryInUse(let path):
      "another server stores into \"\(path)\": stop it, or name another with --directory"
    case .tokenFile(let path, let line, let reason):
      line.map {
        "line \($0) of the token file \"\(path)\": \(reason); write the SHA-256 of a token, as sha256sum does"
      }
        ?? "cannot read the token file \"\(path)\": \(reason)"
    case .resources(let reason): "the server cannot be started: \(reason)"
    }
  }
}
