// Why a transfer cannot run, or cannot continue.

internal import EventLoops
internal import LiveStreaming

/// Why a transfer cannot run, or cannot continue.
package struct TransferFailure: Error, Equatable, Sendable {
  package var cause: String
  package var message: String
  /// Whether it may succeed later by itself.
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
      isTemporary = error.isTemporary
    }
  }
}
