// One download from its start to the exit of the process.

internal import Downloads
internal import EventLoops
internal import JSONLines
internal import LiveStreaming
internal import Synchronization
internal import UploadClient

/// Any thread, except for ``run(_:)``, which the main thread calls.
final class GetRun: Sendable {
  private struct State {
    var summary: DownloadSummary?
    /// A bar for the length that the server reported last.
    var bar: (length: UInt64, bar: TransferBar)?
    var outage: OutageLines
    /// The part that an earlier process has left.
    var left: DownloadResumeData?
    /// The part without bytes.
    var opened: DownloadResumeData?
  }

  private let url: String
  private let command: String
  private let progress: ProgressKind
  /// Nil for standard output.
  private let target: DownloadTarget?
  private let record: DownloadRecord?
  /// The source of the token, or nil without a token.
  private let tokenPlace: String?
  private let state: Mutex<State>

  init(
    _ values: CommandLineSyntax.Values, _ progress: ProgressKind, target: DownloadTarget?, record: DownloadRecord?
  ) {
    url = UploadRequest.withoutSecrets(values.operands[0])
    command = Get.command("--resume", values)
    tokenPlace = StreamOptions.tokenPlace(values)
    state = Mutex(State(outage: OutageLines(isLimited: values.has("give-up"))))
    (self.progress, self.target, self.record) = (progress, target, record)
  }

  func run(_ chosen: FileDownload.Configuration) throws(CommandError) -> ExitCode {
    var configuration = chosen
    state.withLock { $0.left = chosen.resumeData }
    switch progress {
    case .bar: configuration.progressInterval = .milliseconds(250)
    case .json: configuration.progressInterval = .seconds(1)
    case .none: break
    }
    do {
      // Comes before the first thread, so that no thread takes a signal from this one.
      let signals = try Signals()
      try Console.shared.beginQueueing()
      let done = Done(try EventCounter())
      let session = try UploadSession()
      let download = FileDownload(configuration)
      download.start(on: session) { [self] event in
        note(event)
        show(event)
        if case .ended(let summary) = event {
          state.withLock { $0.summary = summary }
          done.counter.signal()
        }
      }
      signals.wait(for: done.counter) { _ in
        download.cancel()
        return .ends
      }
      session.close()
      return end()
    } catch {
      throw CommandError(machine: error)
    }
  }

  private final class Done: Sendable {
    let counter: EventCounter
    init(_ counter: consuming EventCounter) { self.counter = counter }
  }

  private func end() -> ExitCode {
    guard let summary = state.withLock({ $0.summary }) else { return .done }
    guard let error = summary.error else { return .done }
    if let record, progress != .json, summary.resumeData == nil ? Self.isInterruption(error) : record.isKept {
      Console.shared.say(record.advice(resumingWith: command))
    }
    return ExitCode(error)
  }

  // MARK: The record

  /// Keeps the record in line with the reported events.
  private func note(_ event: DownloadEvent) {
    guard let record else { return }
    switch event {
    case .opened(let path, let inode, let birth):
      // From now on, a later process can recognize that the part belongs to this download.
      let data = DownloadResumeData(path: path, inode: inode, birth: birth, byteCount: 0, validator: "", length: nil)
      let left = state.withLock { state in
        state.opened = data
        return state.left
      }
      // The record describes the bytes of an earlier process.
      if left?.path != path || left?.inode != inode { write(data, to: record) }
    case .startedOver:
      // The part is about to lose its bytes, or to get others.
      if let data = state.withLock({ $0.opened }) { write(data, to: record) }
    case .resumable(let data): write(data, to: record)
    case .ended(let summary): noteEnd(summary, record)
    default: break
    }
  }

  private func noteEnd(_ summary: DownloadSummary, _ record: DownloadRecord) {
    if let data = summary.resumeData {
      // If the part was not opened, the record describes it as it is.
      guard state.withLock({ $0.opened != nil }) else { return }
      // The engine synced the part before it reported this. If an earlier state remains, it has the same part.
      guard let error = record.write(data, isSynchronized: true), !record.isKept else { return }
      Console.shared.say(
        "cannot write \(record.path.shellQuoted): \(error.reason). The download cannot be resumed. Delete \(data.path.shellQuoted) before you download the file again."
      )
    } else if let error = summary.error, Self.isInterruption(error) {
      record.reset()
    } else {
      record.remove()
    }
  }

  /// Whether the same download may succeed later: the user has stopped it, the disk was full, or a limit was too low.
  private static func isInterruption(_ error: DownloadError) -> Bool { error.kind == .cancelled || error.isShortage }

  private func write(_ data: DownloadResumeData, to record: DownloadRecord) {
    // The download can continue without the record, as long as this process runs. So the error is only reported.
    if let error = record.write(data, isSynchronized: false) { report(error, record) }
  }

  private func report(_ error: SystemError, _ record: DownloadRecord) {
    let remedy = SystemError.remedy(forLimit: error.code) ?? "Choose another path with --resume-file."
    Console.shared.say(
      "cannot write \(record.path.shellQuoted): \(error.reason). The download continues, but it cannot be resumed after an interruption. \(remedy)"
    )
  }

  // MARK: Reports

  private func show(_ event: DownloadEvent) {
    if progress == .json {
      let isRoutine = if case .progress = event { true } else { false }
      return Console.shared.put(Self.jsonLine(event, time: WallClock.now.iso8601), isRoutine: isRoutine)
    }
    switch event {
    case .opened, .connecting, .resumable: break
    case .receiving(let offset, _):
      Console.shared.say(
        offset == 0 ? "downloading \(url)" : "downloading \(url), continuing at \(Units.text(bytes: offset))")
    case .startedOver(let reason, let discarded):
      Console.shared.say("starting over, \(Units.text(bytes: discarded)) discarded: \(reason)")
    case .outage(let attempt), .attemptFailed(let attempt):
      let line = state.withLock { StreamReport.line(attempt, in: &$0.outage) }
      if let line { Console.shared.say(line) }
    case .progress(let progress): Console.shared.show(status: line(progress))
    case .ended(let summary):
      Console.shared.keepStatus()
      for line in lines(summary) { Console.shared.say(line) }
    }
  }

  private func line(_ progress: DownloadProgress) -> String {
    guard let length = progress.length else {
      let tail = progress.isConnected ? "" : "  not connected"
      return "\(Units.text(bytes: progress.written))  \(Units.clock(progress.elapsed))\(tail)"
    }
    let bar = state.withLock { state in
      if let known = state.bar, known.length == length { return known.bar }
      let bar = TransferBar(total: length)
      state.bar = (length, bar)
      return bar
    }
    return bar.line(
      progress.written, after: progress.elapsed, isConnected: progress.isConnected, outageCount: progress.outageCount,
      width: Console.width)
  }

  private func lines(_ summary: DownloadSummary) -> [String] {
    let progress = summary.progress
    var lines: [String] = []
    if let error = summary.error { lines.append("sluice: \(error.description)\(advice(error, summary))") }
    var parts = ["\(Units.clock(progress.elapsed)) elapsed", "\(Units.text(bytes: progress.written)) downloaded"]
    if summary.resumedFrom > 0 { parts.append("\(Units.text(bytes: summary.resumedFrom)) of them earlier") }
    parts.append(progress.outageCount == 1 ? "1 outage" : "\(progress.outageCount) outages")
    if let name = summary.verified { parts.append("verified by its \(name) digest") }
    lines.append(parts.joined(separator: ", "))
    if summary.error == nil, let target { lines.append("stored as \(target.path.shellQuoted)") }
    return lines
  }

  /// Names the limit or the options that help.
  private func advice(_ error: DownloadError, _ summary: DownloadSummary) -> String {
    if let remedy = error.systemError.flatMap({ SystemError.remedy(forLimit: $0.code) }) {
      return ". \(remedy)"
    }
    switch error.remedy {
    case .credentials where tokenPlace != nil:
      return ". The server does not accept the token in \(tokenPlace ?? ""). Check the token."
    case .credentials: return ". Use --bearer-token-file or --netrc."
    case .proxyCredentials: return ". Use --proxy with user and password."
    case .certificateAuthority: return ". Use --ca-file."
    case .http1: return ". Use --http1."
    case .method, .plainUpload, .largerBuffer, nil:
      return summary.response?.reason == FileDownload.receivesOnly ? ". Start sluice serve with --allow-download." : ""
    }
  }

  private static func jsonLine(_ event: DownloadEvent, time: String) -> String {
    func line(_ name: String, _ fill: (inout JSONLine) -> Void) -> String {
      var line = JSONLine(event: name)
      fill(&line)
      line.add("time", time)
      return line.line
    }
    func add(_ progress: DownloadProgress, to line: inout JSONLine) {
      line.add("written", progress.written)
      line.add("length", progress.length)
      line.add("elapsed_seconds", thousandths: progress.elapsed.seconds)
      line.add("connected", progress.isConnected)
      line.add("outages", progress.outageCount)
    }
    switch event {
    case .opened(let path, _, _): return line("opened") { $0.add("part", path) }
    case .connecting(let offset, let attempt):
      return line("connecting") {
        $0.add("offset", offset)
        $0.add("attempt", attempt)
      }
    case .receiving(let offset, let length):
      return line("receiving") {
        $0.add("offset", offset)
        $0.add("length", length)
      }
    case .startedOver(let reason, let discarded):
      return line("started-over") {
        $0.add("reason", reason.rawValue)
        $0.add("discarded", discarded)
      }
    case .resumable: return line("resumable") { _ in }
    case .outage(let attempt), .attemptFailed(let attempt):
      return line(attempt.isRepeated ? "attempt-failed" : "outage") {
        $0.add("cause", attempt.cause.description)
        $0.add("reason", attempt.reason)
        $0.add("written", attempt.acknowledged)
        $0.add("retry_seconds", thousandths: attempt.retryDelay.seconds)
      }
    case .progress(let progress): return line("progress") { add(progress, to: &$0) }
    case .ended(let summary):
      return line("ended") {
        add(summary.progress, to: &$0)
        $0.add("resumed_from", summary.resumedFrom)
        $0.add("verified", summary.verified)
        $0.add("resumable", summary.resumeData != nil)
        $0.add("error", summary.error?.description)
      }
    }
  }
}
