// The events of a download as a sequence for a task.

internal import EventLoops
public import UploadClient

extension FileDownload {
  /// Starts the download, and returns its events. The sequence ends after ``DownloadEvent/ended(_:)``. Call it once,
  /// instead of ``start(on:_:)``.
  ///
  /// At most 1,024 events wait for the task, and the oldest are dropped first. If the reading task is cancelled, or
  /// leaves the loop, the download is cancelled.
  public func events(on session: UploadSession) -> AsyncStream<DownloadEvent> {
    let (stream, input) = AsyncStream.makeStream(of: DownloadEvent.self, bufferingPolicy: .bufferingNewest(1024))
    input.onTermination = { [self] reason in if case .cancelled = reason { cancel() } }
    start(on: session) { event in
      input.yield(event)
      if case .ended = event { input.finish() }
    }
    return stream
  }
}
