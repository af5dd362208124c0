// The reasons for which the upload of a file ends before it is complete.

internal import EventLoops
internal import Glibc
internal import UploadClient

/// The reason why the upload of a file is not complete.
public enum FileUploadError: Error, Sendable, CustomStringConvertible {
  /// The file cannot be read, is no longer the file of the resume data, or changed while it was read for its digest, or
  /// its digest cannot be computed. Nothing was sent. A change during the upload is ``failed(_:_:)`` of kind
  /// ``LiveStreamError/Kind/source``.
  case file(UploadFileError)
  /// The upload was cancelled. The resume data is nil if the server cannot resume the upload.
  case cancelled(FileResumeData?)
  /// The upload failed for this reason. The resume data is nil if the server cannot resume the upload, or has removed
  /// it because the file changed. If the system cannot open or read the file now, for example because too many files
  /// are open, the error is of kind ``LiveStreamError/Kind/source``, and the resume data remains valid.
  case failed(LiveStreamError, FileResumeData?)

  /// The argument for ``UploadClient/UploadSession/upload(resuming:configuration:)``. Nil if there is nothing to
  /// continue.
  public var resumeData: FileResumeData? {
    switch self {
    case .file: nil
    case .cancelled(let data), .failed(_, let data): data
    }
  }

  /// The reason, for a log.
  public var description: String {
    switch self {
    // Both name the file: see ``init(_:at:)``.
    case .file(.unreadable(let error)): printable("cannot \(error)")
    case .file(.changed(let words)): printable(words)
    case .file(let error): "cannot upload the file: \(error)"
    case .cancelled: "the upload was cancelled"
    case .failed(let error, _): error.description
    }
  }
}

extension FileUploadError {
  /// The error of the file at this path. It names the file if the error has words of its own.
  ///
  /// - Parameter data: the resume data of an upload that was to be continued. A later attempt may still continue it if
  ///   only this machine or a file server prevents reading the file now.
  init(_ error: UploadFileError, at path: String, resuming data: FileResumeData? = nil) {
    self =
      switch error {
      case .unreadable(let failure) where failure.isTemporary:
        .failed(LiveStreamError(.source, "cannot upload \(path): \(failure.reason). \(Self.remedy(failure))"), data)
      // Without the system call, whose name means nothing to a user.
      case .unreadable(let failure):
        .file(.unreadable(SystemError(operation: "upload \(path)", code: failure.code)))
      case .changed(let change):
        .file(.changed("cannot upload \(path): it changed while it was read: \(change). Upload it again."))
      case .directory, .notRegular, .unknownSize: .file(error)
      }
  }

  private static func remedy(_ error: SystemError) -> String {
    switch error.code {
    case EMFILE, ENFILE: "Close other files, or raise the limit of open files, and try again."
    default: "Try again later."
    }
  }

  /// The error of a file that is not the one whose upload was interrupted.
  static func changedSince(_ path: String) -> FileUploadError {
    .file(
      .changed("cannot resume the upload of \(path): the file has changed since. Upload it again from the start."))
  }
}
