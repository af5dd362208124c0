// The messages of a spool.

internal import EventLoops
internal import Glibc
internal import JSONLines
internal import LiveStreaming
internal import Spool
internal import SpooledStreams

enum SpoolReport {
  static func line(_ event: SpoolEvent) -> String {
    switch event {
    case .failing(let error):
      "cannot write to the spool (\(error)): the stream continues in memory, and Sluice retries the spool"
        + (remedy(error).map { ". \($0)" } ?? "")
    case .recovered: "the spool is writable again"
    case .removed(let path):
      "the spool's file \(path.shown) was removed. When this process ends, its bytes that the server has not received are lost."
    case .truncated(let path):
      "the spool's file \(path.shown) was truncated. Its bytes that the server has not received are lost. Sluice reports how many."
    case .withoutSharedMemory(let error):
      "\(error.description): the spool is written more often, because only data on disk survives the end of this process"
    case .damaged(let stretch, let damage) where damage.kind == .lostMemory:
      "the spool's \(stretch) may lack bytes (\(damage.kind.rawValue)): \(loss(damage))"
    case .damaged(let stretch, let damage):
      "the spool's \(stretch) is damaged at byte \(damage.fileOffset) (\(damage.kind.rawValue)): \(loss(damage))"
    case .unreadable(let error) where error.cause == .truncated:
      "\(error.path.shown) was truncated: the bytes of an earlier run that were only there are lost."
    case .unreadable(let error): "the spool has a file that cannot be used: \(error). The file is left unchanged."
    }
  }

  static func jsonLine(_ event: SpoolEvent, time now: String) -> String {
    var line: JSONLine
    switch event {
    case .failing(let error):
      line = JSONLine(event: "spool-failing")
      line.add("error", error.description)
    case .recovered: line = JSONLine(event: "spool-recovered")
    case .removed(let path):
      line = JSONLine(event: "spool-removed")
      line.add("path", path)
    case .truncated(let path):
      line = JSONLine(event: "spool-truncated")
      line.add("path", path)
    case .withoutSharedMemory(let error):
      line = JSONLine(event: "spool-without-memory")
      line.add("error", error.description)
    case .damaged(let stretch, let damage):
      line = JSONLine(event: "spool-damaged")
      line.add("stretch", stretch)
      line.add("kind", damage.kind.rawValue)
      line.add("offset", damage.lostPositions.lowerBound)
      line.add("length", damage.lostByteCount)
      line.add("mayLack", damage.kind.leavesDoubt)
    case .unreadable(let error):
      line = JSONLine(event: "spool-unreadable")
      line.add("path", error.path)
      line.add("error", error.description)
    }
    line.add("time", now)
    return line.line
  }

  private static func loss(_ damage: SpoolDamage) -> String {
    if !damage.lostPositions.isEmpty { return "\(damage.lostByteCount) bytes are lost." }
    if damage.kind.leavesDoubt {
      let doubt =
        damage.kind == .lostMemory
        ? "bytes from offset \(damage.lostPositions.lowerBound) on may be missing. The run that captured them was killed, and its data in /dev/shm was removed or changed."
        : "bytes may be lost."
      return "\(doubt) Sluice sends the others and keeps the file. "
        + "To examine it: sluice spool verify. To remove it: sluice spool remove --force."
    }
    return damage.kind == .truncated ? "Sluice reports which bytes are lost." : "nothing is lost."
  }

  /// The next step if the failure lasts; nil if only waiting helps.
  private static func remedy(_ error: SpoolError) -> String? {
    switch error.code {
    case ENOSPC, EDQUOT: "Free space for it."
    case EIO: "Check its disk."
    // A file that the server has removed or replaced stays stale for this process.
    case ESTALE: "Check its file server. If this lasts, restart this command, which then opens the file again."
    default: nil
    }
  }

  /// - Parameter buffer: the size of the stream's buffer in memory, in bytes; 0 if there is none.
  static func commandError(_ error: SpoolError, buffer: Int = 0) -> CommandError {
    switch error.cause {
    case .inUse(let process):
      let user = process.map { "process \($0)" } ?? "another process"
      return CommandError(
        .busy,
        "the spool \(error.path.shown) is in use by \(user). Stop it, or give this stream a name of its own with --stream-id."
      )
    case .invalidStreamName:
      return .usage("--stream-id: invalid name. Write 1 to 64 characters of A-Z a-z 0-9 . _ -, with no leading dot.")
    case .system(let failure) where failure.code == EFBIG:
      let option = SpoolOptions.isTooLarge(buffer: buffer) ? "--buffer" : "--spool-limit"
      return CommandError(
        .inputOutput,
        "the spool's file would be too large (\(error)): the file system, or a limit of this process, allows no file of this size. Choose a smaller \(option), or raise the limit with ulimit -f."
      )
    case .system(let failure):
      let remedy = SystemError.remedy(forLimit: failure.code) ?? "Check --spool."
      return CommandError(.inputOutput, "cannot use the spool: \(error). \(remedy)")
    case .foreignLock, .notARegularFile:
      return CommandError(
        .inputOutput, "cannot use the spool: \(error). Move it away, or choose another directory for the spool.")
    default:
      return CommandError(.inputOutput, "cannot use the spool: \(error). Check --spool.")
    }
  }

  // MARK: The backlog

  static func line(_ event: BacklogStreamer.Event) -> String? {
    switch event {
    case .begins(_, let byteCount, let created):
      "sending \(Units.text(bytes: byteCount)) that were captured since \(time(created))"
    case .stream(_, .ended(let summary)):
      if let error = summary.error {
        "the backlog was sent only in part: \(error.description). \(Units.text(bytes: summary.progress.unsent)) stay in the spool."
      } else if summary.progress.lost > 0 {
        "the backlog was sent, but \(Units.text(bytes: summary.progress.lost)) are lost\(words(summary.recording))"
      } else {
        "this part of the backlog was sent\(words(summary.recording))"
      }
    case .stream(_, let event):
      switch event {
      case .outage, .gap, .discarding, .missingAtServer, .upload(.serverHasMore):
        StreamReport.line(event, url: "").map { "backlog: \($0)" }
      default: nil
      }
    case .unreadable(_, let obstacle):
      "cannot send a part of the backlog: \(obstacle). It stays in the spool. \(remedy(obstacle))"
    case .ended: nil
    }
  }

  /// The state of the recording as a sentence of its own. Empty if the source did not fail.
  private static func words(_ recording: RecordingState?) -> String {
    switch recording {
    case .unfinished?: ". Its recording stays unfinished at the server, because its source failed."
    case .complete?: ". Its recording counts as complete at the server, although its source failed."
    case nil: ""
    }
  }

  static func jsonLine(_ event: BacklogStreamer.Event, time now: String) -> String? {
    var line: JSONLine
    switch event {
    case .begins(let stretch, let byteCount, let created):
      line = JSONLine(event: "backlog-begins")
      line.add("stretch", stretch)
      line.add("length", byteCount)
      line.add("created", time(created))
    case .stream(let stretch, .ended(let summary)):
      line = JSONLine(event: "backlog-ends")
      line.add("stretch", stretch)
      line.add("acknowledged", summary.progress.acknowledged)
      line.add("lost", summary.progress.lost)
      line.add("unsent", summary.progress.unsent)
      line.add("recording", summary.recording?.rawValue)
      line.add("error", summary.error?.description)
    case .stream(let stretch, .discarding(let length)):
      line = JSONLine(event: "backlog-discarding")
      line.add("stretch", stretch)
      line.add("length", length)
    case .stream(let stretch, .gap(let gap)):
      line = JSONLine(event: "backlog-gap")
      line.add("stretch", stretch)
      line.add("offset", gap.offset)
      line.add("length", gap.length)
      line.add("cause", gap.cause.rawValue)
    case .stream(let stretch, .missingAtServer(let count)):
      line = JSONLine(event: "backlog-missing-at-server")
      line.add("stretch", stretch)
      line.add("length", count)
    case .stream(let stretch, .upload(.serverHasMore(let offset, let kept))):
      line = JSONLine(event: "backlog-server-has-more")
      line.add("stretch", stretch)
      line.add("offset", offset)
      line.add("kept", kept)
    case .stream: return nil
    case .unreadable(let stretch, let obstacle):
      line = JSONLine(event: "backlog-unreadable")
      line.add("stretch", stretch)
      line.add("error", obstacle.description)
    case .ended(let delivered, let kept):
      line = JSONLine(event: "backlog-done")
      line.add("delivered", delivered)
      line.add("kept", kept)
    }
    line.add("time", now)
    return line.line
  }

  /// The next step.
  private static func remedy(_ obstacle: BacklogStreamer.Obstacle) -> String {
    switch obstacle {
    case .noDestination(let path): "To examine it: sluice spool show \(path.shellOperand)"
    case .inUse: "Wait for that stream to end."
    case .spool(let error):
      switch error.cause {
      case .unsupportedVersion: "Send it with a later version of Sluice."
      case .notARegularFile: "Move it away."
      case .system(let failure) where [EACCES, EPERM].contains(failure.code):
        "Permit the user to read and write it, and run the command again."
      case .system: (remedy(error).map { "\($0) " } ?? "") + "Run the command again."
      default: "To examine it: sluice spool verify \(error.path.shellOperand)"
      }
    }
  }

  private static func time(_ milliseconds: Int64) -> String {
    let (seconds, rest) = milliseconds.quotientAndRemainder(dividingBy: 1000)
    return WallClock(seconds: seconds, milliseconds: Int(max(0, rest))).iso8601
  }
}
