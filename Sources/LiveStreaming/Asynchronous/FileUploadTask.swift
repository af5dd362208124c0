// The upload of a file as a task.

internal import Glibc
internal import ResumableUploads
internal import UploadClient

/// A running upload of a file. It resumes after every interruption.
///
/// Create it with ``UploadClient/UploadSession/uploadTask(file:to:)``. The upload is cancelled when the last reference
/// to this object is dropped. All members may be used from any thread.
public final class FileUploadTask: Sendable {
  /// Not the file, because its descriptors must not stay open after the upload has ended.
  private let byteCount: UInt64
  private let resumption: Resumption
  let operation: StreamOperation

  init(_ file: UploadFile, _ configuration: LiveStreamConfiguration, _ session: UploadSession) {
    let resumption = Resumption(file, configuration.resumeData)
    (byteCount, self.resumption) = (file.size, resumption)
    operation = StreamOperation(LiveStreamer(file, configuration: configuration, session: session), session) { event in
      resumption.note(event)
    }
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

  /// The resume data to store, so that another process can continue after a crash of this one. The first value comes
  /// when the server has created the upload. The last one is nil if the upload is complete or cannot be resumed. Keep
  /// only the newest value. A slow observer gets only that one.
  public var resumeData: Observations<FileResumeData?> {
    Observations(broadcast: resumption.broadcast, owner: self, observed: {})
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
    return resumption.data(await operation.summary.resumeData)
  }

  /// Pauses sending until ``resume()``. The connection stays open as long as the server permits.
  public func suspend() { operation.suspend() }

  /// Continues after ``suspend()``.
  public func resume() { operation.resume() }

  private func receipt(_ summary: StreamSummary) throws(FileUploadError) -> UploadReceipt {
    let data = resumption.data(summary.resumeData)
    switch summary.error {
    case let error? where error.kind == .cancelled: throw .cancelled(data)
    case let error?: throw .failed(error, data)
    case nil: break
    }
    return UploadReceipt(
      response: summary.response ?? HTTPResponse(status: 200), byteCount: byteCount, resentByteCount: summary.resent,
      outageCount: summary.progress.outageCount, duration: summary.progress.elapsed, isResumable: summary.isResumable,
      verifiedDigest: summary.verified == byteCount ? summary.digest : nil)
  }
}

/// The resume data of an upload while it runs.
private final class Resumption: Sendable {
  let broadcast = EventBroadcast<FileResumeData?>(.newest)
  /// The absolute path at the start. The working directory may change later.
  private let path: String
  private let version: String

  /// - Parameter upload: the upload that continues.
  init(_ file: UploadFile, _ upload: ResumeData?) {
    path = Self.absolute(file.path)
    version = "\(file.version)"
    if let data = data(upload) { broadcast.publish(data) }
  }

  func note(_ event: LiveStreamEvent) {
    switch event {
    case .upload(.created(let upload)): broadcast.publish(data(upload))
    case .ended(let summary): broadcast.publish(data(summary.resumeData), isLast: true)
    default: break
    }
  }

  func data(_ upload: ResumeData?) -> FileResumeData? {
    upload.map { FileResumeData(path: path, version: version, upload: $0) }
  }

  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let directory = getcwd(nil, 0) else { return path }
    defer { free(directory) }
    return String(cString: directory) + "/" + path
  }
}
