// Why something could not be done with a spool.

public import EventLoops
internal import Glibc

/// What failed, on which file, and why.
public struct SpoolError: Error, Equatable, Sendable {
  /// What failed.
  public enum Cause: Equatable, Sendable {
    /// Another process uses the stream's folder; its id, if the lock file has it.
    case inUse(Int32?)
    /// A stream's name is 1 to 64 characters of `A–Z a–z 0–9 . _ -`, and does not begin with `.`.
    case invalidStreamName
    /// Another program has written the file that has the name of the folder's lock.
    case foreignLock
    /// A folder, a symbolic link, a FIFO or another special file has the name of a file of the spool.
    case notARegularFile
    /// The file does not begin like a spool file.
    case notASpool
    /// The file was written by a later Sluice: its version.
    case unsupportedVersion(UInt32)
    /// Another program truncated the file.
    case truncated
    /// Both headers are damaged, or missing.
    case damagedHeader
    /// There is no room in the ring for these bytes: older ones are neither released nor evicted.
    case full
    /// The bytes begin before the head, which is given, or beyond any position.
    case outOfOrder(head: UInt64)
    /// The stream has ended, or the process that captured it: no byte can be added.
    case sealed
    /// The file was opened for reading.
    case readOnly
    /// The stream's description is too long, or there are too many pauses, for a spool file.
    case tooLong
    /// A system call failed.
    case system(SystemError)
  }

  /// What failed.
  public var cause: Cause
  /// The file or folder.
  public var path: String

  /// Creates an error about the file or folder at `path`.
  public init(_ cause: Cause, path: String) {
    self.cause = cause
    self.path = path
  }

  /// The errno of a failed call, e.g. `ENOSPC`; nil for other causes.
  public var code: Int32? { if case .system(let error) = cause { error.code } else { nil } }

  /// Whether the disk, or the user's share of it, is full.
  package var isLackOfSpace: Bool { code == ENOSPC || code == EDQUOT }
}

extension SpoolError: CustomStringConvertible {
  /// One line of text to display, with the path.
  public var description: String {
    switch cause {
    case .inUse(let process):
      if let process { "\(path): in use by process \(process)" } else { "\(path): in use by another process" }
    case .invalidStreamName: "\(path): invalid stream name"
    case .foreignLock: "\(path): written by another program"
    case .notARegularFile: "\(path): not a regular file"
    case .notASpool: "\(path): not a spool file"
    case .unsupportedVersion(let version): "\(path): unsupported version \(version) of the spool format"
    case .truncated: "\(path): truncated"
    case .damagedHeader: "\(path): both headers are damaged"
    case .full: "\(path): the spool is full"
    case .outOfOrder(let head): "\(path): bytes out of order, the head is at \(head)"
    case .sealed: "\(path): the stretch has ended"
    case .readOnly: "\(path): opened for reading"
    case .tooLong: "\(path): too much text or too many pauses for the spool"
    case .system(let error): "\(path): \(error)"
    }
  }
}
