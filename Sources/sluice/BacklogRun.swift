// Sends the data that earlier runs left in the spool, beside the stream of this run or before it.

internal import EventLoops
internal import LiveStreaming
internal import SpooledStreams
internal import Synchronization
internal import UploadClient

/// Used on the session's thread after `init`, and unchecked for that reason.
final class BacklogRun: @unchecked Sendable {
  private let options: SpoolOptions
  let spool: StreamSpool
  private var backlog: BacklogStreamer?
  private var whenDone: (() -> Void)?
  private var isCancelled = false
  private var isStreamOver = false
  private let outcome = BacklogOutcome()

  /// Opens the spool.
  ///
  /// - Parameter progress: how the events of the spool are shown.
  init(_ options: SpoolOptions, _ progress: ProgressKind) throws(CommandError) {
    self.options = options
    spool = try options.open(outcome, progress)
  }

  var exitCode: ExitCode { outcome.exitCode }

  /// Begins to send. Any thread may call it, before the stream starts.
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
      if isStreamOver, case .ended = event { outcome.close() }
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

  /// The last line of the stream follows.
  func streamEnds() {
    isStreamOver = true
    if backlog == nil { outcome.close() }
  }

  private func note(_ summary: StreamSummary) {
    outcome.note(ExitCode(spooled: summary, isCancelled: isCancelled))
  }

  /// Calls `body` when all data is sent.
  func whenDone(_ body: @escaping () -> Void) {
    if backlog == nil { body() } else { whenDone = body }
  }

  /// Stops. The next run sends the rest.
  func cancel() {
    isCancelled = true
    backlog?.cancel()
  }
}

/// The exit code that follows from the ends of the stretches of a backlog, and from their damage. Any thread may use
/// it.
final class BacklogOutcome: Sendable {
  private let code = Mutex(ExitCode.done)
  private let mayLackBytes = Mutex(false)
  private let isClosed = Mutex(false)

  /// Calls `body`, which prints an event of the spool, unless the stream's last line is next, or was printed.
  func report(_ body: () -> Void) { isClosed.withLock { if !$0 { body() } } }

  /// The last line follows. The spool may still try to use its disk.
  func close() { isClosed.withLock { $0 = true } }

  func note(_ new: ExitCode) { code.withLock { if $0 == .done { $0 = new } } }

  /// Bytes may be lost, although nothing shows which. Other codes state more.
  func noteDoubt() { mayLackBytes.withLock { $0 = true } }

  var exitCode: ExitCode {
    let code = code.withLock { $0 }
    return code == .done && mayLackBytes.withLock { $0 } ? .dataLost : code
  }
}

extension ExitCode {
  /// The exit code for a stream whose unsent data stays in a spool.
  ///
  /// - Parameter isCancelled: whether the command has cancelled the stream, because the next run sends the rest.
  init(spooled summary: StreamSummary, isCancelled: Bool = false) {
    // Some of the data is only in memory.
    if summary.notSynchronized > 0 {
      self = .inputOutput
      return
    }
    if isCancelled, summary.error?.kind == .cancelled {
      self = summary.hasLoss ? .dataLost : .done
      return
    }
    self = summary.error?.kind == .unfinished && !summary.hasLoss ? .unavailable : ExitCode(summary)
  }
}
