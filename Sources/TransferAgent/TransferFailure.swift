// Why a transfer cannot run, or not any more.

internal import EventLoops
internal import Glibc
internal import LiveStreaming

/// Why a transfer cannot run, or not any more.
package struct TransferFailure: Error, Equatable, Sendable {
  package var cause: String
  package var message: String
  /// Whether it may succeed later without anybody's doing.
  package var isTemporary = false

  package init(cause: String, message: String) { (self.cause, self.message) = (cause, message) }

  init(_ error: UploadFileError, path: String) {
    let reason =
      switch error {
      case .unreadable(let error): error.reason
      case .directory: "it is a directory"
      case .notRegular: "it is not a regular file"
      case .unknownSize: "its size is unknown"
      case .changed(let change): "it changed while it was read: \(change)"
      }
    if case .changed = error { cause = "fileChanged" } else { cause = "fileUnreadable" }
    message = "cannot upload \(path): \(reason)"
    if case .unreadable(let error) = error {
      // This machine's trouble, or that of a disk or a file server, and not the file's.
      isTemporary = Self.isTemporary(error)
    }
  }

  /// Whether the system may do later what it has refused: its trouble has nothing to do with this file.
  static func isTemporary(_ error: SystemError) -> Bool {
    [EMFILE, ENFILE, ENOMEM, ENOBUFS, EIO, ESTALE, EAGAIN, ETIMEDOUT].contains(error.code)
  }
}
