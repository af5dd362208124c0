// Why a server could not be started, in words that say what to do.

internal import DiskFiles
public import HTTPServer
public import JetStream
internal import LogServing
internal import ResumableServing
internal import StreamServing
internal import StreamStore

/// Thrown when an ``UploadServer`` is made: nothing listens and nothing is locked after it.
public enum UploadServerError: Error, Equatable, Sendable, CustomStringConvertible {
  /// An address cannot be listened on.
  case listening(ListenError)
  /// The directory cannot be made or opened.
  case noDirectory(String, reason: String)
  /// The names of the files in the directory cannot be read.
  case unreadableDirectory(String, reason: String)
  /// No file can be made in the directory.
  case unwritableDirectory(String, reason: String)
  /// Another server stores into the directory.
  case directoryInUse(String)
  /// The directory is a collector's, whose next start would take back what a server stores.
  case collectedDirectory(String)
  /// The file of tokens cannot be read; `line` is counted from 1.
  case tokenFile(String, line: Int?, reason: String)
  /// The brokers cannot be reached, or the stream cannot be used.
  case brokers(BrokerError)
  /// The brokers do not sync what they acknowledge, or it is not proven that they do.
  case notDurable(String)
  /// The process lacks something that every server needs.
  case resources(String)

  /// What is wrong and what to do, in words.
  public var description: String {
    switch self {
    case .listening(let error): error.description
    case .noDirectory(let path, let reason):
      "cannot open the directory \"\(path)\": \(reason); make it first, or name another with --directory"
    case .unreadableDirectory(let path, let reason):
      "cannot list the directory \"\(path)\": \(reason). Change its permissions, or choose another directory."
    case .unwritableDirectory(let path, let reason):
      "cannot write into the directory \"\(path)\": \(reason); change its permissions, or name another with --directory"
    case .directoryInUse(let path):
      "another server stores into \"\(path)\": stop it, or name another with --directory"
    case .collectedDirectory(let path):
      "\"\(path)\" has recordings of sluice collect, which would take back what a server stores there: "
        + "name another with --directory"
    case .tokenFile(let path, let line, let reason):
      line.map {
        "line \($0) of the token file \"\(path)\": \(reason); write the SHA-256 of a token, as sha256sum does"
      }
        ?? "cannot read the token file \"\(path)\": \(reason)"
    case .brokers(let error): "cannot store uploads: \(error). \(error.remedy)"
    case .notDurable(let reason): "the durability of the brokers is not proven: \(reason)."
    case .resources(let reason): "the server cannot be started: \(reason)"
    }
  }
}

extension UploadServerError {
  init(_ error: DirectoryError, of path: String) {
    self =
      switch error {
      case .missing(let reason): .noDirectory(path, reason: reason)
      case .unreadable(let reason): .unreadableDirectory(path, reason: reason)
      case .unwritable(let reason): .unwritableDirectory(path, reason: reason)
      case .inUse: .directoryInUse(path)
      case .collected: .collectedDirectory(path)
      }
  }
}
