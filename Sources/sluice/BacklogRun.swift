// What earlier runs have left in the spool, sent beside the stream of this run or before it.

internal import EventLoops
internal import LiveStreaming
internal import SpooledStreams
internal import Synchronization
internal import UploadClient

/// Used on the session's thread, after `init`; unchecked for that reason.
final class BacklogRun: @unchecked Sendable {
  private let options: SpoolOptions
  let spool: StreamSpool
  private var backlog: BacklogStreamer?
  private var whenDone: (() -> Void)?
  private var isCancelled = false
  /// What the ends of its stretches are to the process's caller.
  private let code = Mutex(ExitCode.done)

  init(_ options: SpoolOptions, _ spool: StreamSpool) {
    self.options = options
    self.spool = spool
  }

  var exitCode: ExitCode { code.withLock { $0 } }

  /// Begins. Any thread, before the stream is started.
  ///
  /// - Parameter say: shows an event.
  func begin(
    beside streamer: LiveStreamer, _ configuration: LiveStreamConfiguration, _ session: UploadSession,
    say: @escaping @Sendable (BacklogStreamer.Event) -> Void
  ) {
    guard !spool.backlog.isEmpty else { return }
    if options.backlog == .first { streamer.suspend() }
    let backlog = BacklogStreamer(spool, configuration: configuration, session: session)
    session.loop.execute { self.backlog = backlog }
    backlog.start { [self] event in
      say(event)
      switch event {
      case .stream(_, .ended(let summary)): note(summary)
      case .ended:
        self.backlog = nil
        if options.backlog == .first { streamer.resume() }
        whenDone?()
      default: break
      }
    }
  }

  private func note(_ summary: StreamSummary) {
    let ending = summary.error?.kind == .cancelled && isCancelled ? .done : ExitCode(spooled: summary)
    code.withLock { if $0 == .done { $0 = ending } }
  }

  /// Calls `body` when nothing is left to be sent.
  func whenDone(_ body: @escaping () -> Void) {
    if backlog == nil { body() } else { whenDone = body }
  }

  /// What is left waits for the next run.
  func cancel() {
    isCancelled = true
    backlog?.cancel()
  }
}

extension ExitCode {
  /// What a stream's end means where a spool keeps what was not sent.
  init(spooled summary: StreamSummary) {
    // Only memory has some of it.
    if summary.notSynchronized > 0 {
      self = .inputOutput
      return
    }
    self = summary.error?.kind == .unfinished && !summary.hasLoss ? .unavailable : ExitCode(summary)
  }
}
