// The errors of a collector, at its start and at its end, with their remedies.

internal import DiskFiles
package import EventLoops
internal import Glibc
package import JetStream
internal import LogServing
internal import StreamStore

/// An error of a ``LogCollector``, from its initializer or from its run.
package enum LogCollectorError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The directory cannot be created or opened.
  case noDirectory(String, reason: String)
  /// The names of the files in the directory cannot be read.
  case unreadableDirectory(String, reason: String)
  /// No file can be created in the directory.
  case unwritableDirectory(String, reason: String)
  /// Another collector or server stores into the directory.
  case directoryInUse(String)
  /// The directory has recordings of another stream or partition, or of an earlier stream of that name.
  case otherSource(String, found: String, wanted: String)
  /// The checkpoint of an earlier collector cannot be read.
  case damagedCheckpoint(String, reason: String)
  /// The brokers have no stream of that name.
  case noStream(String)
  /// The brokers cannot be reached, or the stream cannot be used.
  case brokers(BrokerError)
  /// The disk refused an operation that a checkpoint requires.
  case disk(SystemError)
  /// The process lacks a resource that every collector requires.
  case resources(String)

  /// The setting that may help, which is the last part of ``description``.
  package enum Remedy {
    case directory
    case stream
  }

  package var remedy: Remedy? {
    switch self {
    case .noDirectory, .unreadableDirectory, .unwritableDirectory, .directoryInUse, .otherSource, .damagedCheckpoint:
      .directory
    case .noStream: .stream
    case .brokers, .disk, .resources: nil
    }
  }

  package var description: String {
    switch self {
    case .noDirectory(let path, let reason):
      "cannot open the directory \"\(path)\": \(reason). Create it, or choose another directory."
    case .unreadableDirectory(let path, let reason):
      "cannot list the directory \"\(path)\": \(reason). Change its permissions, or choose another directory."
    case .unwritableDirectory(let path, let reason):
      "cannot write into the directory \"\(path)\": \(reason). Change its permissions, or choose another directory."
    case .directoryInUse(let path):
      "cannot use \"\(path)\": another collector or server uses it. Stop that process, or choose another directory."
    case .otherSource(let path, let found, let wanted):
      "\"\(path)\" contains recordings of \(found), not of \(wanted). Choose an empty directory."
    case .damagedCheckpoint(let path, let reason):
      "cannot read \"\(path)/\(CheckpointFile.name)\", the checkpoint of an earlier collector: \(reason). "
        + "Restore that file, or choose an empty directory."
    case .noStream(let name):
      "the brokers have no JetStream stream \"\(name)\". Start a server that stores into it first, or name another stream."
    case .brokers(let error): "cannot collect: \(error). \(error.remedy)"
    case .disk(let error):
      "\(error). Nothing is lost, because the log contains the missing bytes. "
        + (error.code == EFBIG
          ? "Raise the limit of file sizes, or use a file system that allows larger files"
          : "Free space or repair the disk")
        + ", and start again."
    case .resources(let reason): "\(reason). Raise the limits of the process."
    }
  }

  init(_ error: DirectoryError, of path: String) {
    self =
      switch error {
      case .missing(let reason): .noDirectory(path, reason: reason)
      case .unreadable(let reason): .unreadableDirectory(path, reason: reason)
      case .unwritable(let reason): .unwritableDirectory(path, reason: reason)
      case .inUse, .collected: .directoryInUse(path)
      }
  }
}
