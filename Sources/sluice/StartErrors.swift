// The errors of libraries at the start of a server or a collector, with the option that may help. The last part of each
// description is the remedy.

internal import HTTPServer
internal import LogCollecting
internal import UploadServer

extension ListenError {
  /// The problem and the remedy, for an address that this option gave.
  func message(option: String) -> String {
    switch remedy {
    case .otherAddress: description.naming("\(option) ADDRESS:PORT")
    case .allAddresses: description.naming("\(option) 0.0.0.0:PORT")
    case .higherPort: description.naming(option)
    case nil: description
    }
  }
}

extension UploadServerError {
  /// The problem and the remedy, with the option of `sluice serve`.
  var message: String {
    if case .listening(let error) = self { return error.message(option: "--listen") }
    return remedy == .otherDirectory ? description.naming("--directory") : description
  }
}

extension LogCollectorError {
  /// The problem and the remedy, with the option of `sluice collect`.
  var message: String {
    switch remedy {
    case .directory: description.naming("--directory")
    case .stream: description.naming("--store-stream")
    case nil: description
    }
  }
}

extension String {
  /// The last sentence with the option for it: `Choose another directory with --directory.`
  fileprivate func naming(_ option: String) -> String { dropLast() + " with \(option)." }
}
