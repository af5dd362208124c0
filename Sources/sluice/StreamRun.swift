// One stream from its start to the exit of the process, as `mic`, `heartbeat` and `pipe` share it.

internal import AudioCapture
internal import Digests
internal import EventLoops
internal import HTTPServer
internal import LiveStreaming
internal import Spool
internal import SpooledStreams
internal import Synchronization
internal import UploadClient

/// The format of the progress.
enum ProgressKind: String {
  /// A line that changes in place.
  case bar
  /// JSON Lines on standard output.
  case json
  /// Only events, one line each.
  case none

  init(_ values: CommandLineSyntax.Values) throws(CommandError) {
    switch values["progress"] ?? "auto" {
    case "auto": self = Console.hasStatusLine ? .bar : .none
    case let text:
      guard let kind = ProgressKind(rawValue: text) else {
        throw .usage("--progress \(text.shown): unknown. Choose auto, bar, json or none.")
      }
      self = kind
    }
  }
}

struct StreamRun {
  let url: String
  let progress: ProgressKind
  /// The source's levels since the last call. Empty for a source without sound.
  var levels: @Sendable () -> [ChannelLevel] = { [] }
  /// The time after which the stream ends as if a signal had arrived. Nil for no limit.
  var duration: Duration?

  /// The values that the stream's thread leaves for the main thread.
  private final class Ending: Sendable {
    let done: EventCounter
    let summary = Mutex<StreamSummary?>(nil)
    init() throws(SystemError) { done = try EventCounter() }
  }

  /// Adapts the end of the stream for this command. All other code sees the adapted end.
  var conclude: @Sendable (StreamSummary) -> StreamSummary = { $0 }
  /// Receives every event before it is shown.
  var observe: @Sendable (LiveStreamEvent) -> Void = { _ in }
  /// The lines to print at the end, and the exit code.
  var report: @Sendable (StreamSummary) -> (lines: [String], code: ExitCode) = {
    (StreamReport.lines($0), ExitCode($0))
  }
  /// What the human-readable lines call it.
  var action = StreamReport.Action.streaming
  /// The status line.
  var statusLine: @Sendable (StreamProgress) -> String? = { _ in nil }
  /// Whether the first signal ends the stream at once, because lost data can be sent again.
  var endsAtOnce = false

  /// The longest time without an acknowledgement after the first signal. Nil for no limit.
  var finishTimeout: Duration?
  /// The digest that the user requested.
  var digest: DigestAlgorithm?

  /// The address for the stream's metrics, from `--metrics`. Nil for none.
  var metrics: String?

  /// The source of the token in words, or nil without a token.
  var tokenPlace: String?

  /// The signals, if they are already blocked. Nil to block them here.
  var signals: Signals?

  /// The place that keeps the stream until the server has it. Nil for memory only.
  var spool: SpoolOptions?

  /// Streams `source` until it ends or signals end it.
  func run(_ source: any StreamSource, _ chosen: LiveStreamConfiguration) throws(CommandError) -> ExitCode {
    guard let spool else {
      return try run(chosen) { (configuration, session) throws(SystemError) in
        try LiveStreamer(source, configuration: configuration, session: session)
      }
    }
    let backlog = try BacklogRun(spool, progress)
    return try run(chosen, backlog) { configuration, session in
      try LiveStreamer(source, configuration: configuration, session: session, spool: backlog.spool)
    }
  }

  /// Streams the source that `make` returns.
  func run(
    _ chosen: LiveStreamConfiguration, _ backlog: BacklogRun? = nil,
    _ make: (LiveStreamConfiguration, UploadSession) throws -> LiveStreamer
  ) throws(CommandError) -> ExitCode {
    var configuration = chosen
    let outage = Mutex(OutageLines(isLimited: chosen.retry.giveUpAfter != nil))
    let beginning = Mutex(StreamBeginning())
    switch progress {
    case .bar: configuration.progressInterval = .milliseconds(250)
    case .json: configuration.progressInterval = .seconds(1)
    // Figures are at most this old.
    case .none: configuration.progressInterval = metrics == nil ? nil : .seconds(1)
    }
    let figures = StreamRunFigures()
    let listener = try MetricsOption.listener(metrics) { $0(figures.page) }
    defer { listener?.stop() }
    do {
      // Comes before the first thread, so that no thread takes a signal from this one.
      let signals = if let taken = self.signals { taken } else { try Signals() }
      try Console.shared.beginQueueing()
      let ending = try Ending()
      try listener?.begin()
      let session = try UploadSession()
      let streamer = try make(configuration, session)
      if let spool { say(spool) }
      backlog?.begin(beside: streamer, configuration, session) { show($0) }
      streamer.start { event in
        let event =
          if case .ended(let summary) = event { LiveStreamEvent.ended(namingToken(conclude(summary))) } else { event }
        observe(event)
        // Reading the levels resets the peaks, so only progress events read them, once.
        let levels = if case .progress = event { self.levels() } else { [ChannelLevel]() }
        if listener != nil { figures.observe(event, levels) }
        if case .ended = event { backlog?.streamEnds() }
        show(event, levels, outage, beginning)
        if case .streaming = event { StartupPages.giveBack() }
        if case .ended(let summary) = event {
          ending.summary.withLock { $0 = summary }
          if let backlog {
            backlog.whenDone { ending.done.signal() }
          } else {
            ending.done.signal()
          }
        }
      }
      let manager = ServiceManager.current
      session.loop.execute { manager.watch(session.loop) }
      manager.isReady("streaming to \(UploadRequest.withoutSecrets(url))")
      if let duration {
        session.loop.execute { session.loop.schedule(after: duration) { streamer.finish() } }
      }
      signals.wait(for: ending.done) { count in
        manager.isStopping()
        session.loop.execute { manager.keepExtending(on: session.loop) }
        if count == 1, !endsAtOnce {
          if progress != .json { Console.shared.say(finishing) }
          streamer.finish(within: finishTimeout)
          session.loop.execute { backlog?.cancel() }
          return .finishes
        }
        session.loop.execute { backlog?.cancel() }
        streamer.cancel()
        return .ends
      }
      session.close()
      let code = ending.summary.withLock { summary -> ExitCode in
        guard let summary else { return .done }
        return backlog == nil ? report(summary).code : ExitCode(spooled: summary)
      }
      return code == .done ? backlog?.exitCode ?? .done : code
    } catch let error as CommandError {
      throw error
    } catch let error as SpoolError {
      throw SpoolReport.commandError(error, buffer: configuration.buffer.byteCount)
    } catch {
      throw CommandError(machine: error, size: action == .streaming ? "--buffer" : nil)
    }
  }

  /// Distinguishes a token that the server does not accept from a missing one.
  private func namingToken(_ summary: StreamSummary) -> StreamSummary {
    guard let error = summary.error, error.remedy == .credentials, let tokenPlace else { return summary }
    var named = summary
    named.error = LiveStreamError(
      error.kind, "\(error.description). The server does not accept the token in \(tokenPlace). Check the token.")
    return named
  }

  private var finishing: String {
    let limit = finishTimeout.map { ", for at most \(Units.text($0)) without an acknowledgement" } ?? ""
    return "finishing: waiting for the server to acknowledge the buffered bytes\(limit). A second signal stops at once."
  }

  private func say(_ spool: SpoolOptions) {
    guard progress != .json else { return }
    let reason = spool.limitReason.map { ", \($0)" } ?? ""
    Console.shared.say(
      "keeping at most \(Units.text(bytes: spool.settings.limit)) in the spool \(spool.directory.shown)\(reason)")
  }

  private func show(_ event: BacklogStreamer.Event) {
    if progress == .json {
      if let line = SpoolReport.jsonLine(event, time: WallClock.now.iso8601) {
        Console.shared.put(line, isRoutine: false)
      }
    } else if let line = SpoolReport.line(event) {
      Console.shared.say(line)
    }
  }

  private func show(
    _ event: LiveStreamEvent, _ levels: [ChannelLevel], _ outage: borrowing Mutex<OutageLines>,
    _ beginning: borrowing Mutex<StreamBeginning>
  ) {
    let console = Console.shared
    if progress == .json {
      let line = StreamReport.jsonLine(event, levels: levels, time: WallClock.now.iso8601)
      return console.put(line, isRoutine: StreamReport.isRoutine(event))
    }
    guard let event = beginning.withLock({ $0.shown(event) }) else { return }
    switch event {
    case .outage(let attempt), .attemptFailed(let attempt):
      if let line = outage.withLock({ StreamReport.line(attempt, in: &$0) }) { console.say(line) }
    case .progress(let now):
      // The timer runs only for the figures.
      guard progress == .bar else { return }
      console.show(status: statusLine(now) ?? StatusLine.text(now, levels: levels, width: Console.width))
    case .ended(let summary):
      console.keepStatus()
      for line in report(summary).lines { console.say(line) }
      let kept = summary.progress.unsent - min(summary.progress.unsent, summary.notSynchronized)
      if let spool, summary.error != nil, kept > 0 {
        console.say(
          "\(Units.text(bytes: kept)) stay in the spool \(spool.directory.shown). The next run with the same URL sends them, or sluice spool drain does."
        )
      }
      if let digest, summary.error == nil, summary.verified == nil {
        console.say("the upload is not verified: the server sent no \(digest.name) digest")
      }
    default:
      if let line = StreamReport.line(event, url: UploadRequest.withoutSecrets(url), action: action) {
        console.say(line)
      }
    }
  }
}

extension StreamRun {
  /// A run with the options that `heartbeat` and `pipe` share.
  init(_ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration) throws(CommandError) {
    let duration = try values["duration"].map { (text) throws(CommandError) in
      try Units.duration(text, of: "duration", atLeast: .milliseconds(1))
    }
    try self.init(
      url: configuration.request.url, progress: ProgressKind(values), duration: duration,
      finishTimeout: StreamOptions.finishTimeout(values), digest: StreamOptions.digest(values),
      metrics: values["metrics"], tokenPlace: StreamOptions.tokenPlace(values),
      spool: SpoolOptions(values, configuration))
  }
}
