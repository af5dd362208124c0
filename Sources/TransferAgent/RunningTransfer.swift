// A running transfer of either kind.

internal import Downloads
internal import EventLoops
internal import LiveStreaming
internal import ResumableUploads

/// The events of a running transfer for the agent, from any thread.
enum TransferNews: Sendable {
  case created(ResumeData)
  case acknowledged(UInt64)
  /// The offset of the response's content in the complete file, and the file's length if the server states it.
  case receiving(offset: UInt64, size: UInt64?)
  /// Why it waits for its next attempt; nil when it no longer waits.
  case trouble(String?)
  case ended(TransferQueue.Ending)
}

/// A running transfer. Any thread.
enum RunningTransfer: Sendable {
  /// Its file is being examined.
  case opening
  case upload(LiveStreamer)
  case download(FileDownload)

  /// Ends it soon. A transfer whose file is still being examined has not begun: see `TransferAgent.begin`.
  func cancel() {
    switch self {
    case .opening: break
    case .upload(let streamer): streamer.cancel()
    case .download(let download): download.cancel()
    }
  }

  func retryNow() {
    switch self {
    case .opening: break
    case .upload(let streamer): streamer.retryNow()
    case .download(let download): download.retryNow()
    }
  }

  /// Calls `body` with the number of bytes done, while it runs.
  func withProgress(_ body: @escaping @Sendable (UInt64) -> Void) {
    switch self {
    case .opening: break
    case .upload(let streamer): streamer.withProgress { body($0.acknowledged) }
    case .download(let download): download.withProgress { body($0.written) }
    }
  }
}
