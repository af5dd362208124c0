// The events of a download as a sequence, for a task.

internal import EventLoops
public import UploadClient

extension FileDownload {
  /// Begins, and gives its events; the sequence ends behind ``DownloadEvent/ended(_:)``. May be called once, in place of
  /// ``start(on:_:)``.
  ///
  /// At most 1,024 events wait for the task; the oldest go first. If the task that reads them is cancelled, or
  /// leaves the loop, so is the download.
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
