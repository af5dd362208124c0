// The events of a stream as text: one short line each, for a log. The URL of an upload resource may be the only
// credential that the server requires, so no line contains it, unless the server's own text repeats it.

internal import EventLoops
internal import ResumableUploads
internal import UploadClient

extension LiveStreamEvent: CustomStringConvertible {
  /// One line, such as `connecting, attempt 2, at stream offset 4096`. It does not contain the URL of the upload
  /// resource.
  public var description: String {
    switch self {
    case .connecting(let offset, let attempt): "connecting, attempt \(attempt), at stream offset \(offset)"
    case .connected(let isNew, let delay):
      "connected in \(delay.inSeconds)\(isNew ? "" : ", on the connection of an earlier request")"
    case .streaming(let offset): "streaming from stream offset \(offset)"
    case .accepted(let offset): "this machine's TCP has accepted all bytes before stream offset \(offset)"
    case .interimResponse(let response): "the server sent the interim response \(response.status)"
    case .response(let status, let delay):
      "the server answered \(status), "
        + (delay.map { "\($0.inSeconds) after the end of the content" } ?? "before the end of the content")
    case .outage(let attempt): "outage: \(attempt)"
    case .attemptFailed(let attempt): "another attempt failed: \(attempt)"
    case .discarding(let length):
      "the buffer is full: the oldest bytes are discarded, \(counted(length, "byte")) so far"
    case .gap(let gap): gap.description
    case .missingAtServer(let count):
      "the server lacks \(counted(count, "byte")) that it had received. It does not report where they are missing."
    case .upload(let notice): notice.description
    case .acknowledged(let offset): "the server has acknowledged all bytes before stream offset \(offset)"
    case .source(let event): event.description
    case .progress(let progress): progress.description
    case .missed(let count): "\(counted(count, "event")) not reported, because the observer was too slow"
    case .ended(let summary): "ended: \(summary)"
    }
  }
}

extension UploadNotice: CustomStringConvertible {
  /// One line without the URL of the upload resource.
  public var description: String {
    switch self {
    case .created(let data): "the server has created an upload resource at stream offset \(data.base)"
    case .notSupported(let reason):
      "the server does not support resumable uploads: \(reason). The stream continues in one plain request."
    case .steppedDown(let version):
      "the server uses \(version.map { "interop version \($0)" } ?? "another version") of resumable uploads"
    case .newPart(let offset, _, let reason):
      "the upload resource cannot be continued: \(Self.words(partEnd: reason)). A new one continues at stream offset \(offset)."
    case .nextURL(let url, let offset, let unconfirmed):
      "the stream continues at \(UploadRequest.withoutSecrets(url)) from stream offset \(offset)"
        + (unconfirmed > 0 ? "; the server did not confirm \(counted(unconfirmed, "byte")), which may be lost" : "")
    case .serverWentBack(let start, let end):
      "the server has lost \(counted(start - min(end, start), "byte")) that it had acknowledged, beginning at stream offset \(end)"
    case .impossibleOffset(let offset):
      "the server reports offset \(offset), which is beyond the last byte that was sent. Sluice asks it again."
    case .serverHasMore(let offset, let kept):
      "the server has stored all bytes of the spool, and \(counted(offset - min(kept, offset), "byte")) more that an earlier process had sent"
    case .digestMismatch(let offset):
      "the server's digest of the first \(counted(offset, "byte")) does not match the bytes that were sent. An intermediary may have changed bytes."
    }
  }

  private static func words(partEnd reason: String) -> String {
    switch PartEnd(rawValue: reason) {
    case .gone: "the server no longer has it"
    case .unproven: "it never answered as an upload resource"
    case .gap: "bytes that it lacks are no longer in the buffer"
    case .pause: "nothing was captured for longer than the buffer lasts"
    case .expiry: "it has expired"
    case .size: "it has reached its maximum size"
    case .serverWentBack: "it has lost bytes"
    case .impossibleOffset: "it reports bytes that were never sent"
    case .completed: "the server reports it as complete"
    case nil: reason
    }
  }
}

extension FailedAttempt: CustomStringConvertible {
  /// One line: `the server answered 503: "busy", at stream offset 4096; next attempt in 0.151 s`.
  public var description: String {
    "\(cause)\(reason.map { ": \"\($0)\"" } ?? ""), at stream offset \(acknowledged)"
      + (locationOrigin.map { "; the server's Location leads to \($0)" } ?? "")
      + (unconfirmed > 0 ? "; \(counted(unconfirmed, "byte")) may be lost" : "")
      + "; next attempt in \(retryDelay.inSeconds)"
  }
}

extension Gap: CustomStringConvertible {
  /// One line: `100 bytes lost at stream offset 4096: the buffer was full`.
  public var description: String {
    let reason =
      switch cause {
      case .bufferFull: "the buffer was full"
      case .serverLost: "the server lost the bytes, and the buffer no longer contained them"
      }
    return "\(counted(length, "byte")) lost at stream offset \(offset): \(reason)"
  }
}

extension SourceEvent: CustomStringConvertible {}

extension StreamProgress: CustomStringConvertible {
  /// One line: `8192 bytes captured in 1.5 s, 4096 acknowledged, 0 lost, 4096 unsent, 0 outages`.
  public var description: String {
    "\(counted(captured, "byte")) captured in \(elapsed.inSeconds), \(acknowledged) acknowledged, \(lost) lost, "
      + "\(unsent) unsent, \(counted(outageCount, "outage"))"
  }
}

// MARK: Parts of a line

/// `1 byte`, `2 bytes`.
func counted(_ count: some BinaryInteger, _ noun: String) -> String { "\(count) \(noun)\(count == 1 ? "" : "s")" }

extension Duration {
  /// `20.253 s`, `0.5 s`, `60 s`: rounded to milliseconds. A negative duration counts as 0.
  var inSeconds: String {
    let milliseconds = max(0, nanoseconds).addingSaturated(500_000) / 1_000_000
    // Three digits after a leading 1.
    var fraction = String(1000 + milliseconds % 1000).dropFirst()
    while fraction.last == "0" { fraction.removeLast() }
    return "\(milliseconds / 1000)\(fraction.isEmpty ? "" : ".\(fraction)") s"
  }
}
