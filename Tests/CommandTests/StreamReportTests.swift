import EventLoops
import FoundationEssentials
import Glibc
import Metrics
import PropertyTesting
import ResumableUploads
import Testing
import UploadClient

@testable import AudioCapture
@testable import LiveStreaming
@testable import sluice

@Suite("The output of a stream")
struct StreamReportTests {
  private struct Parsed: Decodable {
    var event: String
    var time: String
    var offset: UInt64?
    var captured: UInt64?
    var cause: String?
    var error: String?
    var peaks: [Double?]?
    var retrySeconds: Double?

    enum CodingKeys: String, CodingKey {
      case event, time, offset, captured, cause, error
      case peaks = "peak_db"
      case retrySeconds = "retry_seconds"
    }
  }

  private func progress(_ random: inout SplitMix64) -> StreamProgress {
    func number() -> UInt64 { random.next() >> UInt64.random(in: 0...63, using: &random) }
    return StreamProgress(
      elapsed: .seconds(Int64.random(in: 0...10_000_000, using: &random)), captured: number(), sent: number(),
      acknowledged: number(), lost: random.chance(50) ? 0 : number(),
      buffered: Int.random(in: 0...1 << 40, using: &random), capacity: 1 << 40,
      outageCount: Int.random(in: 0...100_000, using: &random), isConnected: random.chance(50))
  }

  @Test("an outage at the host of a Location names that host, and the option that avoids it")
  func locationOrigin() {
    var attempt = FailedAttempt(cause: .unreachable("nobody"), acknowledged: 0, retryDelay: .seconds(1))
    attempt.locationOrigin = "http://h:1"
    let line = StreamReport.line(.outage(attempt), url: "http://h/x") ?? ""
    #expect(line.contains("leads to http://h:1.") && line.contains("--location keep"), "\(line)")
    let json = StreamReport.jsonLine(.outage(attempt), levels: [], time: "t")
    #expect(json.contains(#""location_origin":"http://h:1""#), "\(json)")
  }

  @Test("a file is uploaded, and other sources stream")
  func action() {
    #expect(StreamReport.line(.streaming(offset: 0), url: "u") == "streaming to u")
    #expect(StreamReport.line(.streaming(offset: 0), url: "u", action: .uploading) == "uploading to u")
    let later = StreamReport.line(.streaming(offset: 1000), url: "u", action: .uploading)
    #expect(later?.hasPrefix("uploading again at ") == true)
  }

  @Test("a stream is reported when the server has created its upload resource, and not again with its first byte")
  func beginning() {
    let data = ResumeData(
      upload: "http://h/1", target: "http://h/", base: 0, length: nil, streamID: nil, version: .newest)
    let outage = LiveStreamEvent.outage(FailedAttempt(cause: .overtaken, acknowledged: 0, retryDelay: .zero))
    let created = LiveStreamEvent.upload(.created(data))
    let first = LiveStreamEvent.streaming(offset: 0)
    func lines(_ events: [LiveStreamEvent]) -> [String] {
      var beginning = StreamBeginning()
      return events.compactMap { beginning.shown($0) }.compactMap { event in
        if case .outage = event { "outage" } else { StreamReport.line(event, url: "u") }
      }
    }
    #expect(lines([created]) == ["streaming to u"])
    #expect(lines([created, first]) == ["streaming to u"])
    // A plain stream.
    #expect(lines([first]) == ["streaming to u"])
    // The next line reports that it is connected again.
    #expect(lines([created, outage, first]) == ["streaming to u", "outage", "streaming to u"])
    #expect(lines([created, first, outage, first]) == ["streaming to u", "outage", "streaming to u"])
    // The next part.
    #expect(lines([first, created, .streaming(offset: 7)]) == ["streaming to u", "streaming again at 7 B"])
  }

  @Test("every event is a line of JSON with its kind and its time, whatever text of a server or a device it contains")
  func json() throws {
    var random = SplitMix64(state: 1)
    let nasty = "\"}\n{\u{1B}[2J\u{0}\\ größe 🎙"
    let summary = StreamSummary(
      progress: progress(&random), gaps: 1, resent: 2, sourceLost: 3, response: HTTPResponse(status: 201),
      missingAtServer: 4,
      error: LiveStreamError(.refused, nasty))
    let events: [(String, LiveStreamEvent)] = [
      ("connecting", .connecting(offset: 7, attempt: 1)), ("streaming", .streaming(offset: 7)),
      ("interim-response", .interimResponse(HTTPResponse(status: 104))),
      ("outage", .outage(FailedAttempt(cause: .other(nasty), acknowledged: 1, retryDelay: .milliseconds(1500)))),
      ("gap", .gap(Gap(offset: 7, length: 9, cause: .serverLost))),
      ("overrun", .source(SourceEvent(kind: "overrun", description: nasty, offset: 7, lost: 1))),
      ("progress", .progress(progress(&random))), ("ended", .ended(summary)),
    ]
    for (kind, event) in events {
      let line = StreamReport.jsonLine(
        event, levels: [ChannelLevel(peak: -.infinity, rms: -3)], time: WallClock.now.iso8601)
      let parsed = try JSONDecoder().decode(Parsed.self, from: Data(line.utf8))
      #expect(parsed.event == kind && !line.contains("\n"))
      // RFC 3339.
      #expect(parsed.time.wholeMatch(of: try Regex(#"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"#)) != nil)
      switch kind {
      case "outage": #expect(parsed.cause == nasty && parsed.retrySeconds == 1.5)
      case "ended": #expect(parsed.error == LiveStreamError(.refused, nasty).description)
      case "progress": #expect(parsed.peaks == [nil])
      case "streaming", "gap", "overrun": #expect(parsed.offset == 7)
      default: break
      }
    }
  }

  @Test("the summary reports all losses, with their positions")
  func summary() {
    var random = SplitMix64(state: 1)
    var progress = progress(&random)
    (progress.captured, progress.acknowledged, progress.lost, progress.outageCount) = (5_000, 4_000, 123, 1)
    let lines = StreamReport.lines(
      StreamSummary(
        progress: progress, gaps: 1, resent: 2_000, sourceLost: 480, missingAtServer: 77,
        error: LiveStreamError(.refused, "why")))
    #expect(lines.first == "sluice: why")
    let all = lines.joined(separator: "\n")
    for part in [
      "5.00 kB captured", "4.00 kB acknowledged", "123 B lost", "877 B unsent", "1 outage", "2.00 kB sent again",
      "123 bytes lost in 1 gap", "77 bytes are missing", "480 frames",
    ] {
      #expect(all.contains(part), "\(part)")
    }
  }

  @Test("the summary of every subcommand ends with the name under which the server stored the stream")
  func storedName() {
    var random = SplitMix64(state: 1)
    var response = HTTPResponse(status: 201, fields: ["Content-Type": "application/json"])
    response.body = Array(#"{"name":"it's mine.txt"}"#.utf8)
    var summary = StreamSummary(progress: progress(&random), gaps: 0, resent: 0, sourceLost: 0, response: response)
    for action in [StreamReport.Action.streaming, .uploading] {
      #expect(StreamReport.lines(summary, action: action).last == #"stored as 'it'\''s mine.txt'"#)
    }
    summary.response = HTTPResponse(status: 201)
    #expect(!StreamReport.lines(summary).contains { $0.hasPrefix("stored as") })
    summary.response = response
    summary.error = LiveStreamError(.cancelled, "why")
    #expect(!StreamReport.lines(summary).contains { $0.hasPrefix("stored as") })
  }

  @Test("the summary states which bytes the digest covers")
  func verified() {
    var random = SplitMix64(state: 1)
    var progress = progress(&random)
    progress.captured = 5_000
    var summary = StreamSummary(progress: progress, gaps: 0, resent: 0, sourceLost: 0)
    summary.verified = 5_000
    func text() -> String { StreamReport.lines(summary).joined(separator: "\n") + "\n" }
    func json() -> String { StreamReport.jsonLine(.ended(summary), levels: [], time: "") }
    #expect(text().contains(", verified by its digest\n") && !json().contains("verified_from"))
    summary.verifiedFrom = 4_000
    #expect(text().contains(", verified by its digest from stream offset 4000\n"))
    #expect(json().contains(#""verified":5000,"verified_from":4000"#))
    summary.verified = 4_500
    #expect(!text().contains("verified"))
  }

  @Test("a stream that ends without an error but with any loss exits with 4; an error keeps its code")
  func exitCodes() {
    var random = SplitMix64(state: 1)
    var whole = progress(&random)
    whole.lost = 0
    var part = whole
    part.lost = 1
    let cases: [(ExitCode, StreamSummary)] = [
      (.done, StreamSummary(progress: whole, gaps: 0, resent: 9, sourceLost: 0, missingAtServer: 0)),
      (.done, StreamSummary(progress: whole, gaps: 0, resent: 0, sourceLost: 0, sourceSkipped: 1)),
      (.dataLost, StreamSummary(progress: part, gaps: 1, resent: 0, sourceLost: 0)),
      (.dataLost, StreamSummary(progress: whole, gaps: 0, resent: 0, sourceLost: 1)),
      (.dataLost, StreamSummary(progress: whole, gaps: 0, resent: 0, sourceLost: 0, unconfirmed: 1)),
      (.dataLost, StreamSummary(progress: whole, gaps: 0, resent: 0, sourceLost: 0, missingAtServer: 1)),
      (.unavailable, StreamSummary(progress: part, gaps: 1, resent: 0, sourceLost: 1, error: .init(.unreachable, ""))),
    ]
    for (code, summary) in cases { #expect(ExitCode(summary) == code) }
  }

  @Test("an unfinished stream exits with 4 if bytes are missing, and with 69 if only the final response is")
  func unfinishedExitCodes() {
    var random = SplitMix64(state: 2)
    var whole = progress(&random)
    (whole.lost, whole.captured, whole.acknowledged) = (0, 100, 100)
    var part = whole
    part.acknowledged = 99
    let cases: [(ExitCode, StreamProgress, LiveStreamError.Kind)] = [
      (.unavailable, whole, .unfinished), (.dataLost, part, .unfinished),
      // With --give-up, the error that ended the stream has its own exit code.
      (.unavailable, whole, .unreachable), (.unavailable, part, .unreachable),
    ]
    for (code, progress, kind) in cases {
      let summary = StreamSummary(progress: progress, gaps: 0, resent: 0, sourceLost: 0, error: .init(kind, ""))
      #expect(ExitCode(summary) == code)
    }
    let page = ExitCode.page.split(whereSeparator: \.isWhitespace).joined(separator: " ")
    #expect(page.contains("an error that ends a stream has its own code"))
    #expect(page.contains("could not be reached or stopped answering"))
  }

  @Test("a stream that ends for lack of descriptors names the limit and exits with 74")
  func shortage() {
    var random = SplitMix64(state: 4)
    var error = LiveStreamError(.unreachable, "gave up")
    error.machineError = SystemError(operation: "cannot open a socket", code: EMFILE)
    let summary = StreamSummary(progress: progress(&random), gaps: 0, resent: 0, sourceLost: 0, error: error)
    #expect(ExitCode(summary) == .inputOutput)
    #expect(StreamReport.lines(summary).first == "sluice: gave up. Raise the limit of open files with ulimit -n.")
  }

  @Test(
    "the last line about a source that failed states what the server has",
    arguments: [.unfinished, .complete, nil] as [RecordingState?])
  func failedSource(_ recording: RecordingState?) {
    var random = SplitMix64(state: 5)
    var summary = StreamSummary(
      progress: progress(&random), gaps: 0, resent: 0, sourceLost: 0, error: .init(.source, "reset"))
    summary.recording = recording
    #expect(ExitCode(summary) == .inputOutput)
    let last = StreamReport.lines(summary).last ?? ""
    #expect(last.contains("the recording stays unfinished at the server") == (recording == .unfinished))
    #expect(last.contains("the recording counts as complete at the server") == (recording == .complete))
    let json = StreamReport.jsonLine(.ended(summary), levels: [], time: "t")
    #expect(json.contains(#""recording":"\#(recording?.rawValue ?? "")""#) == (recording != nil), "\(json)")
  }

  @Test("heartbeats are not counted as frames")
  func units() {
    var random = SplitMix64(state: 1)
    var summary = StreamSummary(progress: progress(&random), gaps: 0, resent: 0, sourceLost: 3)
    summary.sourceUnit = .beats
    summary.sourceSkipped = 1
    let lines = StreamReport.lines(summary)
    #expect(lines.contains("3 heartbeats lost before they reached the buffer"))
    #expect(lines.contains("1 heartbeat omitted, because the process did not run"))
    let event = SourceEvent(kind: "late", description: "", offset: 0, lost: 3, unit: .beats)
    for line in [
      StreamReport.jsonLine(.ended(summary), levels: [], time: ""),
      StreamReport.jsonLine(.source(event), levels: [], time: ""),
    ] {
      #expect(!line.contains("frames") && line.contains("lost_beats\":3"))
    }
  }

  @Test("events of a healthy source do not count as trouble")
  func sourceEvents() {
    let figures = StreamRunFigures()
    figures.observe(.source(SourceEvent(kind: "capture", description: "", offset: 0, isTrouble: false)), [])
    #expect(figures.page.text.contains("sluice_stream_source_events_total 0\n"))
    figures.observe(.source(SourceEvent(kind: "overrun", description: "", offset: 0, lost: 7)), [])
    #expect(figures.page.text.contains("sluice_stream_source_events_total 1\n"))
    #expect(figures.page.text.contains("sluice_stream_lost_frames_total 7\n"))
  }

  @Test("the metrics have the level, the time left in the buffer, and the time since the last acknowledgement")
  func alerts() throws {
    let figures = StreamRunFigures()
    var progress = StreamProgress(
      elapsed: .seconds(10), captured: 1_000, sent: 1_000, acknowledged: 500, lost: 0, buffered: 500, capacity: 3_500,
      outageCount: 0, isConnected: true)
    figures.observe(
      .progress(progress), [ChannelLevel(peak: -3, rms: -12), ChannelLevel(peak: -.infinity, rms: -.infinity)])
    func figure(_ name: String) throws -> Double {
      let line = try #require(figures.page.text.split(separator: "\n").first { $0.hasPrefix(name + " ") })
      return try #require(Double(line.dropFirst(name.count + 1)))
    }
    #expect(try figure("sluice_stream_buffer_seconds_left") == 30)
    #expect(try figure("sluice_microphone_rms_dbfs{channel=\"1\"}") == -12)
    #expect(figures.page.text.contains("sluice_microphone_peak_dbfs{channel=\"2\"} -Inf\n"))
    // Only a new acknowledgement resets the time.
    let before = try figure("sluice_stream_seconds_since_acknowledgement")
    progress.elapsed = .seconds(11)
    figures.observe(.progress(progress), [])
    let later = try figure("sluice_stream_seconds_since_acknowledgement")
    #expect(before >= 0 && later > before)
    #expect(!figures.page.text.contains("sluice_microphone"))
    progress.acknowledged = 501
    for event in [LiveStreamEvent.progress(progress), .acknowledged(502)] {
      let before = MonotonicInstant.now
      figures.observe(event, [])
      #expect(try figure("sluice_stream_seconds_since_acknowledgement") <= (MonotonicInstant.now - before).seconds)
    }
  }
}
