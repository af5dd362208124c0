// What the agent runs, whatever its kind.

internal import Downloads
internal import EventLoops
internal import LiveStreaming
internal import ResumableUploads

/// What the agent hears of a transfer that runs, on whatever thread.
enum TransferNews: Sendable {
  case created(ResumeData)
  case acknowledged(UInt64)
  /// The offset of the response's content in the complete file, and the file's length if the server states it.
  case receiving(offset: UInt64, size: UInt64?)
  /// Why it waits for its next attempt; nil when it does no more.
  case trouble(String?)
  case ended(TransferQueue.Ending)
}

/// A transfer that runs. Any thread.
enum RunningTransfer: Sendable {
  /// Its file is being looked at.
  case opening
  case upload(LiveStreamer)
  case download(FileDownload)

  /// Ends it soon. One whose file is being looked at has not begun: see `TransferAgent.begin`.
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

  /// Calls `body` with how much is done, in bytes, while it runs.
  func withProgress(_ body: @escaping @Sendable (UInt64) -> Void) {
    switch self {
    case .opening: break
    case .upload(let streamer): streamer.withProgress { body($0.acknowledged) }
    case .download(let download): download.withProgress { body($0.written) }
    }
  }
}
