// The reasons why a server cannot start, with advice.

internal import DiskFiles
public import HTTPServer
public import JetStream
internal import LogServing
internal import ResumableServing
internal import StreamServing
internal import StreamStore

/// An error while an ``UploadServer`` is created. Nothing listens and nothing is locked after it.
public enum UploadServerError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The server cannot listen on an address.
  case listening(ListenError)
  /// The directory cannot be created or opened.
  case noDirectory(String, reason: String)
  /// The files in the directory cannot be listed.
  case unreadableDirectory(String, reason: String)
  /// No file can be created in the directory.
  case unwritableDirectory(String, reason: String)
  /// Another server uses the directory.
  case directoryInUse(String)
  /// The directory belongs to a collector, whose next start would undo the writes of a server.
  case collectedDirectory(String)
  /// The token file cannot be read. `line` counts from 1.
  case tokenFile(String, line: Int?, reason: String)
  /// The brokers cannot be reached, or the stream cannot be used.
  case brokers(BrokerError)
  /// The brokers do not sync before they acknowledge, or this is not proven.
  case notDurable(String)
  /// The process lacks something that every server requires.
  case resources(String)

  /// The settings that may help.
  public enum Remedy: Equatable, Sendable {
    /// Another ``UploadServer/UploadServer/Storage/directory(_:)``.
    case otherDirectory
    /// Another address in ``UploadServer/UploadServer/Configuration/listen``.
    case address(ListenError.Remedy)
  }

  /// The setting that may help, for programs with their own names for it. It is the last part of ``description``. Nil
  /// if there is none.
  public var remedy: Remedy? {
    switch self {
    case .listening(let error): error.remedy.map { .address($0) }
    case .noDirectory, .unreadableDirectory, .unwritableDirectory, .directoryInUse, .collectedDirectory: .otherDirectory
    case .tokenFile, .brokers, .notDurable, .resources: nil
    }
  }

  /// The problem and the remedy, in words.
  public var description: String {
    switch self {
    case .listening(let error): error.description
    case .noDirectory(let path, let reason):
      "cannot open the directory \"\(path)\": \(reason). Create it, or choose another directory."
    case .unreadableDirectory(let path, let reason):
      "cannot list the directory \"\(path)\": \(reason). Change its permissions, or choose another directory."
    case .unwritableDirectory(let path, let reason):
      "cannot write into the directory \"\(path)\": \(reason). Change its permissions, or choose another directory."
    case .directoryInUse(let path):
      "cannot use \"\(path)\": another server uses it. Stop that server, or choose another directory."
    case .collectedDirectory(let path):
      "\"\(path)\" contains recordings of a collector, which would undo writes of a server. Choose another directory."
    case .tokenFile(let path, let line, let reason):
      line.map {
        "line \($0) of the token file \"\(path)\": \(reason). Write the SHA-256 of a token, as sha256sum prints it"
      }
        ?? "cannot read the token file \"\(path)\": \(reason)"
    case .brokers(let error): "cannot store uploads: \(error). \(error.remedy)"
    case .notDurable(let reason): "the durability of the brokers is not proven: \(reason)."
    case .resources(let reason): "cannot start the server: \(reason)"
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
