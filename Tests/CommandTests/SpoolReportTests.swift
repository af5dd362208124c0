// The messages and the exit code of a backlog.

import EventLoops
import Glibc
import Spool
import SpooledStreams
import Testing

@testable import LiveStreaming
@testable import sluice

@Suite("The output of a backlog")
struct SpoolReportTests {
  @Test(
    "a stretch that its process removes meanwhile is no error",
    arguments: [SpoolCommand.Action.list, .show, .verify])
  func removedMeanwhile(action: SpoolCommand.Action) {
    let path = "/nowhere/cam/1795403376004-57f93922e6ee4bd9.spool"
    let entry = SpoolEntry(directory: "/nowhere", stream: "cam", path: path)
    #expect(SpoolCommand.examine([entry], action, StretchReport(isJSON: true)) == .done)
  }

  @Test("each loss is reported with what the stream itself reports, as human-readable text and for programs")
  func losses() {
    let events: [(LiveStreamEvent, text: String, json: String)] = [
      (
        .gap(Gap(offset: 7, length: 9, cause: .serverLost)), "lost 9 B at stream offset 7",
        #""event":"backlog-gap","stretch":"s","offset":7,"length":9,"cause":"serverLost","time":"t""#
      ),
      (.discarding(11), "11 B so far", #""event":"backlog-discarding","stretch":"s","length":11,"time":"t""#),
      (
        .missingAtServer(13), "the server lacks 13 B",
        #""event":"backlog-missing-at-server","stretch":"s","length":13,"time":"t""#
      ),
    ]
    for (event, text, json) in events {
      let report = BacklogStreamer.Event.stream(stretch: "s", event)
      let line = SpoolReport.line(report) ?? ""
      #expect(line.hasPrefix("backlog: ") && line.contains(text), "\(line)")
      #expect(SpoolReport.jsonLine(report, time: "t")?.contains(json) == true, "\(json)")
    }
  }

  @Test(
    "the report of a stretch that was sent states what the server has if its source failed, even if bytes are lost",
    arguments: [.unfinished, .complete, nil] as [RecordingState?], [0, 9] as [UInt64])
  func failedSource(_ recording: RecordingState?, lost: UInt64) {
    let progress = StreamProgress(
      elapsed: .seconds(1), captured: 4096, sent: 4096, acknowledged: 4096 - lost, lost: lost, buffered: 0,
      capacity: 4096, outageCount: 0, isConnected: false)
    var summary = StreamSummary(progress: progress, gaps: 0, resent: 0, sourceLost: 0, error: nil)
    summary.recording = recording
    let line = SpoolReport.line(BacklogStreamer.Event.stream(stretch: "s", .ended(summary))) ?? ""
    let result = lost == 0 ? "this part of the backlog was sent" : "the backlog was sent, but 9 B are lost"
    let state =
      switch recording {
      case .unfinished?: ". Its recording stays unfinished at the server, because its source failed."
      case .complete?: ". Its recording counts as complete at the server, although its source failed."
      case nil: ""
      }
    #expect(line == result + state)
  }

  @Test(
    "the report of a spool that fails names the next step",
    arguments: [(ENOSPC, "Free space"), (EIO, "Check its disk."), (ESTALE, "restart this command")])
  func failing(code: Int32, step: String) {
    let error = SpoolError(.system(SystemError(operation: "pwritev", code: code)), path: "/spool/s/1.spool")
    let line = SpoolReport.line(SpoolEvent.failing(error))
    #expect(line.contains("\(error)") && line.contains("Sluice retries the spool. ") && line.contains(step), "\(line)")
  }

  @Test("the report of damage says that nothing is lost only if this is certain", arguments: SpoolDamage.Kind.allCases)
  func damage(kind: SpoolDamage.Kind) {
    func line(_ lost: Range<UInt64>) -> String {
      SpoolReport.line(SpoolEvent.damaged(stretch: "1.spool", SpoolDamage(kind, fileOffset: 4096, lostPositions: lost)))
    }
    #expect(line(5..<7).hasSuffix("(\(kind.rawValue)): 2 bytes are lost."), "\(line(5..<7))")
    let words =
      switch kind {
      case .newestCheckpoint, .allCheckpoints: "bytes may be lost. Sluice sends the others and keeps the file."
      case .lostMemory: "bytes from offset 0 on may be missing. The run that captured them was killed"
      case .truncated: "Sluice reports which bytes are lost."
      default: "nothing is lost."
      }
    #expect(line(0..<0).contains("(\(kind.rawValue)): \(words)"), "\(line(0..<0))")
  }

  @Test("each event of the spool itself is one line for programs")
  func eventsForPrograms() {
    let system = SystemError(operation: "pwritev", code: ENOSPC)
    let error = SpoolError(.system(system), path: "/spool/s/1.spool")
    let torn = SpoolDamage(.torn, fileOffset: 4096, lostPositions: 5..<7)
    let doubt = SpoolDamage(.lostMemory, fileOffset: 4096, lostPositions: 9..<9)
    let far = SpoolDamage(.torn, fileOffset: 4096, lostPositions: 0..<UInt64.max)
    let events: [(SpoolEvent, String)] = [
      (.failing(error), #""spool-failing","error":"\#(error)""#), (.recovered, #""spool-recovered""#),
      (.removed("/a"), #""spool-removed","path":"/a""#), (.truncated("/a"), #""spool-truncated","path":"/a""#),
      (.withoutSharedMemory(system), #""spool-without-memory","error":"\#(system.description)""#),
      (
        .damaged(stretch: "s", torn),
        #""spool-damaged","stretch":"s","kind":"torn","offset":5,"length":2,"mayLack":false"#
      ),
      (
        .damaged(stretch: "s", far),
        #""spool-damaged","stretch":"s","kind":"torn","offset":0,"length":18446744073709551615,"mayLack":false"#
      ),
      (
        .damaged(stretch: "s", doubt),
        #""spool-damaged","stretch":"s","kind":"lostMemory","offset":9,"length":0,"mayLack":true"#
      ),
      (.unreadable(error), #""spool-unreadable","path":"/spool/s/1.spool","error":"\#(error)""#),
    ]
    for (event, members) in events {
      let line = SpoolReport.jsonLine(event, time: "t")
      #expect(line.contains(#""event":\#(members),"time":"t"}"#), "\(line)")
      #expect(!SpoolReport.line(event).isEmpty)
    }
  }

  @Test("no line of the spool follows the last line")
  func lastLine() {
    let outcome = BacklogOutcome()
    var lines: [Int] = []
    outcome.report { lines.append(1) }
    outcome.close()
    outcome.report { lines.append(2) }
    #expect(lines == [1])
  }

  @Test("an exit code of 0 becomes 4 if bytes may be lost, and other codes stay")
  func doubt() {
    for code in [ExitCode.done, .unavailable] {
      let outcome = BacklogOutcome()
      outcome.noteDoubt()
      outcome.note(code)
      #expect(outcome.exitCode == (code == .done ? .dataLost : code))
    }
  }

  @Test(
    "the report of a stretch that cannot be sent names its file, the reason, and the next step",
    arguments: [
      (SpoolError.Cause.damagedHeader, "both headers are damaged", "sluice spool verify /spool/s/1.spool"),
      (.unsupportedVersion(9), "unsupported version 9", "with a later version of Sluice"),
      (.system(SystemError(operation: "openat", code: EACCES)), "Permission denied", "Permit the user"),
      (.system(SystemError(operation: "openat", code: EIO)), "Input/output error", "Check its disk. Run"),
      (nil, "no valid description", "sluice spool show /spool/s/1.spool"),
    ] as [(SpoolError.Cause?, String, String)])
  func unreadable(_ cause: SpoolError.Cause?, _ reason: String, _ step: String) {
    let path = "/spool/s/1.spool"
    let obstacle: BacklogStreamer.Obstacle =
      if let cause { .spool(SpoolError(cause, path: path)) } else { .noDestination(path: path) }
    let event = BacklogStreamer.Event.unreadable(stretch: "1.spool", obstacle)
    let line = SpoolReport.line(event) ?? ""
    #expect(line.contains(path) && line.contains(reason) && line.contains(step), "\(line)")
    let json = SpoolReport.jsonLine(event, time: "t") ?? ""
    #expect(json.contains(#""stretch":"1.spool","error":""#) && json.contains(reason), "\(json)")
  }

  @Test("a stretch that the command cancels exits with 0, unless bytes are lost or only in memory")
  func cancelled() {
    let progress = StreamProgress(
      elapsed: .seconds(1), captured: 100, sent: 50, acknowledged: 50, lost: 0, buffered: 0, capacity: 100,
      outageCount: 0, isConnected: false)
    var kept = StreamSummary(
      progress: progress, gaps: 0, resent: 0, sourceLost: 0, error: LiveStreamError(.cancelled, ""))
    #expect(ExitCode(spooled: kept, isCancelled: true) == .done)
    #expect(ExitCode(spooled: kept) == .interrupted)
    let losses: [(inout StreamSummary) -> Void] = [
      { $0.progress.lost = 1 }, { $0.missingAtServer = 1 }, { $0.unconfirmed = 1 },
    ]
    for change in losses {
      var summary = kept
      change(&summary)
      #expect(ExitCode(spooled: summary, isCancelled: true) == .dataLost)
    }
    (kept.progress.lost, kept.notSynchronized) = (1, 1)
    #expect(ExitCode(spooled: kept, isCancelled: true) == .inputOutput)
    kept = StreamSummary(progress: progress, gaps: 0, resent: 0, sourceLost: 0, error: .init(.unreachable, ""))
    #expect(ExitCode(spooled: kept, isCancelled: true) == .unavailable)
  }
}
