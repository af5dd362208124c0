// The upload of a file as a task.

internal import Glibc
internal import ResumableUploads
internal import UploadClient

/// A running upload of a file. It resumes after every interruption.
///
/// Create it with ``UploadClient/UploadSession/uploadTask(file:to:)``. The upload is cancelled when the last reference
/// to this object is dropped. All members may be used from any thread.
public final class FileUploadTask: Sendable {
  private let file: UploadFile
  /// The absolute path at the start. The working directory may change later.
  private let path: String
  let operation: StreamOperation

  init(_ file: UploadFile, _ operation: StreamOperation) {
    (self.file, self.operation) = (file, operation)
    path = Self.absolute(file.path)
  }

  deinit { operation.cancel() }

  /// The part of the file that the server has. It is updated ten times per second while it is observed, and once at the
  /// end. A slow observer gets the newest value. ``StreamProgress/captured`` is the size of the file.
  public var progress: Observations<StreamProgress> {
    Observations(
      broadcast: operation.progress, owner: self, observed: { [operation] in operation.progressIsObserved() })
  }

  /// All events up to ``LiveStreamEvent/ended(_:)``. See ``LiveStreamTask/events``.
  public var events: Observations<LiveStreamEvent> {
    Observations(broadcast: operation.events, owner: self, observed: {})
  }

  /// The server's confirmation that it has the whole file. Cancelling a task that awaits it cancels the upload.
  ///
  /// - Throws: ``FileUploadError``, with resume data if the server can resume the upload.
  public var value: UploadReceipt {
    get async throws(FileUploadError) { try receipt(await operation.summaryOrCancellation) }
  }

  /// Cancels the upload. ``value`` then throws ``FileUploadError/cancelled(_:)`` with the resume data.
  public func cancel() { operation.cancel() }

  /// Cancels the upload, and waits until it has ended.
  ///
  /// - Returns: the argument for ``UploadClient/UploadSession/upload(resuming:configuration:)``. Nil if the server
  ///   cannot resume the upload, or if the upload is complete.
  public func cancelProducingResumeData() async -> FileResumeData? {
    operation.cancel()
    return resumeData(await operation.summary)
  }

  /// Pauses sending until ``resume()``. The connection stays open as long as the server permits.
  public func suspend() { operation.suspend() }

  /// Continues after ``suspend()``.
  public func resume() { operation.resume() }

  private func resumeData(_ summary: StreamSummary) -> FileResumeData? {
    summary.resumeData.map { FileResumeData(path: path, version: "\(file.version)", upload: $0) }
  }

  private func receipt(_ summary: StreamSummary) throws(FileUploadError) -> UploadReceipt {
    let data = resumeData(summary)
    switch summary.error {
    case let error? where error.kind == .cancelled: throw .cancelled(data)
    case let error?: throw .failed(error, data)
    case nil: break
    }
    return UploadReceipt(
      response: summary.response ?? HTTPResponse(status: 200), byteCount: file.size, resentByteCount: summary.resent,
      outageCount: summary.progress.outageCount, duration: summary.progress.elapsed, isResumable: summary.isResumable,
      verifiedDigest: summary.verified == file.size ? summary.digest : nil)
  }

  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let directory = getcwd(nil, 0) else { return path }
    defer { free(directory) }
    return String(cString: directory) + "/" + path
  }
}
