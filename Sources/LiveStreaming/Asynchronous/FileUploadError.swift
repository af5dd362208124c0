// The reasons for which the upload of a file ends before it is complete.

/// The reason why the upload of a file is not complete.
public enum FileUploadError: Error, Sendable, CustomStringConvertible {
  /// The file cannot be read, is no longer the one of the resume data, or changed while it was read for its digest.
  /// Nothing was sent. A change during the upload is ``failed(_:_:)`` of kind ``LiveStreamError/Kind/source``.
  case file(UploadFileError)
  /// The upload was cancelled. The resume data is nil if the server cannot resume the upload.
  case cancelled(FileResumeData?)
  /// The upload failed for this reason. The resume data is nil if the server cannot resume the upload, or has removed
  /// it because the file changed.
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
    case .file(let error): "cannot upload the file: \(error)"
    case .cancelled: "the upload was cancelled"
    case .failed(let error, _): error.description
    }
  }
}
