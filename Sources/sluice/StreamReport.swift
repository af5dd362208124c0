// The reports of a stream in two forms: human-readable lines, and JSON Lines for programs.

internal import AudioCapture
internal import EventLoops
internal import JSONLines
internal import LiveStreaming
internal import ResumableUploads
internal import UploadClient

enum StreamReport {
  /// Whether a healthy stream reports this regularly, so that a later report replaces it.
  static func isRoutine(_ event: LiveStreamEvent) -> Bool {
    switch event {
    case .progress, .acknowledged, .accepted, .interimResponse: true
    case .response(let status, _): status < 300
    default: false
    }
  }

  // MARK: Human-readable text

  /// What the command does with the bytes.
  enum Action: String {
    case streaming, uploading
  }

  /// A line for an important event, or nil for others.
  static func line(
    _ event: LiveStreamEvent, url: @autoclosure () -> String, action: Action = .streaming
  ) -> String? {
    switch event {
    case .connecting, .connected, .progress, .interimResponse, .response, .accepted, .acknowledged, .missed: nil
    case .outage(let attempt), .attemptFailed(let attempt): line(attempt)
    case .upload(let notice): line(notice)
    case .streaming(let offset):
      offset == 0 ? "\(action) to \(url())" : "\(action) again at \(Units.text(bytes: offset))"
    case .discarding(let length):
      "the buffer is full: the oldest bytes are discarded, \(Units.text(bytes: length)) so far. For a longer outage, choose a larger --buffer."
    case .gap(let gap):
      "lost \(Units.text(bytes: gap.length)) at stream offset \(gap.offset): \(words(gap.cause))"
    case .missingAtServer(let count):
      "the server lacks \(Units.text(bytes: count)) that it had received. It does not report where they are missing."
    case .source(let event): event.description
    case .ended: nil
    }
  }

  private static func line(_ notice: UploadNotice) -> String? {
    switch notice {
    case .created, .steppedDown: nil
    case .notSupported, .newPart, .impossibleOffset: notice.description
    case .nextURL(let url, let offset, let unconfirmed):
      "continuing at \(url) from stream offset \(offset): another request to the previous URL would replace the bytes that the server may have stored"
        + (unconfirmed > 0 ? "; the server did not confirm \(Units.text(bytes: unconfirmed)), which may be lost" : "")
    case .serverWentBack(let start, let end):
      "the server has lost \(Units.text(bytes: start - min(end, start))) that it had acknowledged, beginning at stream offset \(end)"
    case .serverHasMore(let offset, let kept):
      "the server has stored all bytes of the spool, and \(Units.text(bytes: offset - min(kept, offset))) more that the earlier run had sent. They stay in the recording."
    case .digestMismatch(let offset):
      "the server's digest of the first \(Units.text(bytes: offset)) does not match the bytes that were sent. An intermediary may have changed bytes."
    }
  }

  /// The line for a single failed attempt.
  private static func line(_ attempt: FailedAttempt) -> String? {
    var outage = OutageLines(isLimited: true)
    return line(attempt, in: &outage)
  }

  /// The line for a failed attempt, or nil if the outage has enough lines.
  static func line(_ attempt: FailedAttempt, in outage: inout OutageLines, now: MonotonicInstant = .now) -> String? {
    let offset = Units.text(bytes: attempt.acknowledged)
    let perhapsLost =
      attempt.unconfirmed > 0
      ? "; the server did not report what it stored, and \(Units.text(bytes: attempt.unconfirmed)) may be lost" : ""
    let misdirected =
      attempt.locationOrigin.map {
        "; the server's Location leads to \($0). To stay at the host that you named, use --location keep"
      } ?? ""
    let beginning = attempt.isRepeated ? "another attempt failed" : "outage"
    return outage.line(
      "\(beginning) at \(offset): \(attempt.cause)\(misdirected)\(perhapsLost)", reason: attempt.reason,
      retryDelay: attempt.retryDelay, isNew: !attempt.isRepeated, now: now)
  }

  private static func words(_ cause: Gap.Cause) -> String {
    switch cause {
    case .bufferFull: "the buffer was full. For a longer outage, choose a larger --buffer."
    case .serverLost: "the server lost the bytes, and the buffer no longer contained them"
    }
  }

  static func lines(_ summary: StreamSummary, action: Action = .streaming) -> [String] {
    let progress = summary.progress
    var lines: [String] = []
    if let words = errorWords(summary) { lines.append("sluice: \(words)") }
    // Each captured byte is either acknowledged, lost or unsent.
    let (captured, acknowledged) = (Units.text(bytes: progress.captured), Units.text(bytes: progress.acknowledged))
    var parts = ["\(Units.clock(progress.elapsed)) elapsed"]
    switch action {
    case .streaming: parts += ["\(captured) captured", "\(acknowledged) acknowledged"]
    case .uploading: parts.append("\(acknowledged) of \(captured) acknowledged")
    }
    if progress.lost > 0 { parts.append("\(Units.text(bytes: progress.lost)) lost") }
    if progress.unsent > 0 { parts.append("\(Units.text(bytes: progress.unsent)) unsent") }
    parts.append(progress.outageCount == 1 ? "1 outage" : "\(progress.outageCount) outages")
    if summary.resent > 0 { parts.append("\(Units.text(bytes: summary.resent)) sent again") }
    if summary.verified != nil, summary.verified == progress.captured {
      let start = summary.verifiedFrom
      parts.append(
        start == 0 ? "verified by its digest" : "verified by its digest from stream offset \(start)")
    }
    lines.append(parts.joined(separator: ", "))
    if progress.lost > 0 {
      let gaps = summary.gaps > 0 ? " in \(summary.gaps) gap\(summary.gaps == 1 ? "" : "s")" : ""
      lines.append("\(progress.lost) bytes lost\(gaps)")
    }
    if summary.unconfirmed > 0 {
      lines.append(
        "\(summary.unconfirmed) acknowledged bytes may be lost: their request was interrupted or refused"
      )
    }
    if let missing = summary.missingAtServer, missing > 0 {
      lines.append("\(missing) bytes are missing in the server's recording")
    }
    if summary.notSynchronized > 0 {
      lines.append(
        "\(summary.notSynchronized) bytes were not synced to the disk of the spool. The next run finds only bytes that are in memory, and only if this machine does not restart. Check the disk."
      )
    }
    if summary.sourceLost > 0 {
      lines.append("\(words(summary.sourceLost, summary.sourceUnit)) lost before they reached the buffer")
    }
    if summary.sourceSkipped > 0 {
      lines.append("\(words(summary.sourceSkipped, summary.sourceUnit)) omitted, because the process did not run")
    }
    switch summary.recording {
    case .unfinished?:
      lines.append(
        "the recording stays unfinished at the server, because the source failed. sluice serve closes it as interrupted after its --finish-after."
      )
    case .complete?:
      lines.append(
        "the recording counts as complete at the server, although the source failed. Only some servers with resumable uploads can keep it unfinished."
      )
    case nil: break
    }
    if summary.error == nil, let name = summary.storedName { lines.append("stored as \(name.shellQuoted)") }
    return lines
  }

  /// The text of the error that ended a stream, with the options that help.
  private static func errorWords(_ summary: StreamSummary) -> String? {
    guard let error = summary.error else { return nil }
    // The server has confirmed the end of the stream, so waiting longer does not help.
    let isConfirmed = summary.missingAtServer ?? 0 > 0
    switch error.kind {
    case .insecureLocation:
      return error.description + ". Use --location keep to stay on the host that you named, over TLS."
    case .unfinished where !isConfirmed: return error.description + ". Choose a longer --finish-timeout to wait longer."
    default: break
    }
    if let remedy = error.machineError.flatMap({ SystemError.remedy(forLimit: $0.code) }) {
      return "\(error.description). \(remedy)"
    }
    guard let remedy = error.remedy else { return error.description }
    switch remedy {
    case .credentials: return error.description + ". Use --bearer-token-file or --netrc-file."
    case .proxyCredentials: return error.description + ". Use --proxy with user and password."
    default: break
    }
    let options =
      switch remedy {
      case .credentials, .proxyCredentials: ""
      case .certificateAuthority: "--ca-file FILE"
      case .method: "--method PUT"
      case .http1: "leave --http2 out, or start sluice serve with --proxied-interims 0"
      case .plainUpload: "--resumable auto"
      case .largerBuffer: "--buffer, --overflow"
      }
    return "\(error.description) (\(options))"
  }

  private static func words(_ count: UInt64, _ unit: SourceEvent.Unit) -> String {
    let name =
      switch unit {
      case .frames: "frame"
      case .beats: "heartbeat"
      }
    return "\(count) \(name)\(count == 1 ? "" : "s")"
  }

  // MARK: For programs

  static func jsonLine(_ event: LiveStreamEvent, levels: [ChannelLevel], time: String) -> String {
    var line: JSONLine
    switch event {
    case .connecting(let offset, let attempt):
      line = JSONLine(event: "connecting")
      line.add("offset", offset)
      line.add("attempt", attempt)
    case .connected(let isNew, let delay):
      line = JSONLine(event: "connected")
      line.add("new", isNew)
      line.add("seconds", thousandths: delay.seconds)
    case .streaming(let offset):
      line = JSONLine(event: "streaming")
      line.add("offset", offset)
    case .accepted(let offset):
      line = JSONLine(event: "accepted")
      line.add("offset", offset)
    case .interimResponse(let response):
      line = JSONLine(event: "interim-response")
      line.add("status", response.status)
    case .response(let status, let delay):
      line = JSONLine(event: "response")
      line.add("status", status)
      if let delay { line.add("seconds", thousandths: delay.seconds) }
    case .outage(let attempt), .attemptFailed(let attempt):
      line = JSONLine(event: attempt.isRepeated ? "attempt-failed" : "outage")
      line.add("cause", attempt.cause.description)
      line.add("reason", attempt.reason)
      line.add("acknowledged", attempt.acknowledged)
      line.add("location_origin", attempt.locationOrigin)
      if attempt.unconfirmed > 0 { line.add("unconfirmed", attempt.unconfirmed) }
      line.add("retry_seconds", thousandths: attempt.retryDelay.seconds)
    case .discarding(let length):
      line = JSONLine(event: "discarding")
      line.add("length", length)
    case .gap(let gap):
      line = JSONLine(event: "gap")
      line.add("offset", gap.offset)
      line.add("length", gap.length)
      line.add("cause", gap.cause.rawValue)
    case .missingAtServer(let count):
      line = JSONLine(event: "missing-at-server")
      line.add("length", count)
    case .upload(let notice): line = jsonLine(notice)
    case .missed(let count):
      line = JSONLine(event: "missed")
      line.add("count", count)
    case .acknowledged(let offset):
      line = JSONLine(event: "acknowledged")
      line.add("offset", offset)
    case .source(let event):
      line = JSONLine(event: event.kind)
      line.add("description", event.description)
      line.add("offset", event.offset)
      line.add("lost_\(event.unit)", event.lost)
      if event.skipped > 0 { line.add("skipped_\(event.unit)", event.skipped) }
      line.add("filled_bytes", event.filled)
      if event.length > 0 { line.add("length", event.length) }
    case .progress(let progress):
      line = JSONLine(event: "progress")
      add(progress, to: &line)
      if !levels.isEmpty {
        line.add("peak_db", thousandths: levels.map(\.peak))
        line.add("rms_db", thousandths: levels.map(\.rms))
      }
    case .ended(let summary):
      line = JSONLine(event: "ended")
      add(summary.progress, to: &line)
      line.add("gaps", summary.gaps)
      line.add("resent", summary.resent)
      line.add("source_lost_\(summary.sourceUnit)", summary.sourceLost)
      if summary.sourceSkipped > 0 { line.add("source_skipped_\(summary.sourceUnit)", summary.sourceSkipped) }
      if summary.unconfirmed > 0 { line.add("unconfirmed", summary.unconfirmed) }
      if summary.notSynchronized > 0 { line.add("not_synchronized", summary.notSynchronized) }
      line.add("status", summary.response?.status)
      if summary.error == nil {
        line.add("stored_as", summary.storedName)
        let words = summary.response.map(Put.words(of:)) ?? []
        if !words.isEmpty { line.add("response", words.joined(separator: "\n")) }
      }
      line.add("resumable", summary.isResumable)
      if summary.verified == nil, summary.digest != nil {
        line.add("verified", false)
      } else {
        line.add("verified", summary.verified)
        if summary.verifiedFrom > 0 { line.add("verified_from", summary.verifiedFrom) }
      }
      line.add("missing_at_server", summary.missingAtServer)
      line.add("recording", summary.recording?.rawValue)
      line.add("error", errorWords(summary))
    }
    line.add("time", time)
    return line.line
  }

  private static func jsonLine(_ notice: UploadNotice) -> JSONLine {
    var line: JSONLine
    switch notice {
    case .created(let data):
      line = JSONLine(event: "upload-created")
      line.add("base", data.base)
      line.add("version", data.version)
    case .notSupported(let reason):
      line = JSONLine(event: "not-resumable")
      line.add("reason", reason)
    case .steppedDown(let version):
      line = JSONLine(event: "stepped-down")
      line.add("version", version)
    case .newPart(let offset, _, let reason):
      line = JSONLine(event: "new-part")
      line.add("offset", offset)
      line.add("reason", reason)
    case .nextURL(let url, let offset, let unconfirmed):
      line = JSONLine(event: "next-url")
      line.add("url", url)
      line.add("offset", offset)
      line.add("unconfirmed", unconfirmed)
    case .serverWentBack(let start, let end):
      line = JSONLine(event: "server-went-back")
      line.add("acknowledged", start)
      line.add("offset", end)
    case .impossibleOffset(let offset):
      line = JSONLine(event: "impossible-offset")
      line.add("offset", offset)
    case .serverHasMore(let offset, let kept):
      line = JSONLine(event: "server-has-more")
      line.add("offset", offset)
      line.add("kept", kept)
    case .digestMismatch(let offset):
      line = JSONLine(event: "digest-mismatch")
      line.add("offset", offset)
    }
    return line
  }

  private static func add(_ progress: StreamProgress, to line: inout JSONLine) {
    line.add("elapsed_seconds", thousandths: progress.elapsed.seconds)
    line.add("captured", progress.captured)
    line.add("sent", progress.sent)
    line.add("acknowledged", progress.acknowledged)
    line.add("buffered", progress.buffered)
    line.add("capacity", progress.capacity)
    line.add("outages", progress.outageCount)
    line.add("lost", progress.lost)
    line.add("unsent", progress.unsent)
    line.add("connected", progress.isConnected)
  }
}
