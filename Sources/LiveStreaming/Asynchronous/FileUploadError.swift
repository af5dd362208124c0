// Why the upload of a file ended before the server had all of it.

/// An upload of a file that is not complete.
public enum FileUploadError: Error, Sendable, CustomStringConvertible {
  /// The file cannot be read, or is not the file that it was. Nothing was sent.
  case file(UploadFileError)
  /// The upload was cancelled. The resume data is nil if the server cannot resume it.
  case cancelled(FileResumeData?)
  /// The upload failed for this reason. The resume data is nil if the server cannot resume it.
  case failed(LiveStreamError, FileResumeData?)

  /// What ``UploadClient/UploadSession/upload(resuming:configuration:)`` continues with; nil if there is nothing to
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
