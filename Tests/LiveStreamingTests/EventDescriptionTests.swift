import ResumableUploads
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The events of a stream as text")
struct EventDescriptionTests {
  private static let data = ResumeData(
    upload: "http://h/.uploads/secret", target: "http://h/take", base: 7, length: nil, streamID: nil, version: .newest)
  private static let attempt = {
    var attempt = FailedAttempt(
      cause: .response(503), reason: "busy", acknowledged: 4096, unconfirmed: 1,
      retryDelay: .nanoseconds(150_963_097))
    attempt.locationOrigin = "http://h:1"
    return attempt
  }()
  private static let progress = StreamProgress(
    elapsed: .milliseconds(1500), captured: 8192, sent: 8192, acknowledged: 4096, lost: 1, buffered: 4095,
    capacity: 8192, outageCount: 1, isConnected: true)

  private static let events: [(LiveStreamEvent, String)] = [
    (.connecting(offset: 7, attempt: 2), "connecting, attempt 2, at stream offset 7"),
    (.connected(isNew: true, after: .milliseconds(12)), "connected in 0.012 s"),
    (.connected(isNew: false, after: .zero), "connected in 0 s, on the connection of an earlier request"),
    (.streaming(offset: 7), "streaming from stream offset 7"),
    (.accepted(7), "this machine's TCP has accepted all bytes before stream offset 7"),
    (
      .interimResponse(HTTPResponse(status: 104, fields: ["Location": "/.uploads/secret"])),
      "the server sent the interim response 104"
    ),
    (.response(status: 201, after: .seconds(2)), "the server answered 201, 2 s after the end of the content"),
    (.response(status: 401, after: nil), "the server answered 401, before the end of the content"),
    (
      .outage(attempt),
      #"outage: the server answered 503: "busy", at stream offset 4096; the server's Location leads to http://h:1; 1 byte may be lost; next attempt in 0.151 s"#
    ),
    (
      .attemptFailed(FailedAttempt(cause: .overtaken, acknowledged: 7, retryDelay: .seconds(15))),
      "another attempt failed: the connection is slower than the source, at stream offset 7; next attempt in 15 s"
    ),
    (.discarding(2), "the buffer is full: the oldest bytes are discarded, 2 bytes so far"),
    (.gap(Gap(offset: 7, length: 1, cause: .bufferFull)), "1 byte lost at stream offset 7: the buffer was full"),
    (
      .missingAtServer(2), "the server lacks 2 bytes that it had received. It does not report where they are missing."
    ),
    (.upload(.created(data)), "the server has created an upload resource at stream offset 7"),
    (
      .upload(.newPart(offset: 9, previous: "http://h/.uploads/secret", reason: "expiry")),
      "the upload resource cannot be continued: it has expired. A new one continues at stream offset 9."
    ),
    (
      .upload(.nextURL("http://me:secret@h/b?key=secret", offset: 9, unconfirmed: 0)),
      "the stream continues at http://h/b?key=... from stream offset 9"
    ),
    (.upload(.steppedDown(version: 6)), "the server uses interop version 6 of resumable uploads"),
    (
      .upload(.serverWentBack(from: 9, to: 7)),
      "the server has lost 2 bytes that it had acknowledged, beginning at stream offset 7"
    ),
    (.acknowledged(7), "the server has acknowledged all bytes before stream offset 7"),
    (.source(SourceEvent(kind: "overrun", description: "3 frames lost", offset: 7)), "3 frames lost"),
    (.progress(progress), "8192 bytes captured in 1.5 s, 4096 acknowledged, 1 lost, 4095 unsent, 1 outage"),
    (.missed(3), "3 events not reported, because the observer was too slow"),
    (
      .ended(StreamSummary(progress: progress, gaps: 1, resent: 0, sourceLost: 2, response: HTTPResponse(status: 201))),
      "ended: 4096 bytes acknowledged in 1.5 s, 1 outage, 1 byte lost, 2 frames lost at the source; the server answered 201"
    ),
  ]

  @Test("each event is one line of plain words, without the URL of the upload resource")
  func lines() {
    for (event, line) in Self.events {
      #expect("\(event)" == line)
      #expect(!String(reflecting: event).contains("secret"), "\(String(reflecting: event))")
    }
  }

  @Test("every notice of an upload resource is one line, without names of Swift")
  func notices() {
    let notices: [UploadNotice] = [
      .created(Self.data), .notSupported("it answered 405"), .steppedDown(version: nil),
      .newPart(offset: 1, previous: nil, reason: "gone"), .nextURL("http://h/b", offset: 1, unconfirmed: 2),
      .serverWentBack(from: 2, to: 1), .impossibleOffset(3), .serverHasMore(offset: 3, kept: 1),
      .digestMismatch(offset: 3),
    ]
    let lines = [
      "the server has created an upload resource at stream offset 7",
      "the server does not support resumable uploads: it answered 405. The stream continues in one plain request.",
      "the server uses another version of resumable uploads",
      "the upload resource cannot be continued: the server no longer has it. A new one continues at stream offset 1.",
      "the stream continues at http://h/b from stream offset 1; the server did not confirm 2 bytes, which may be lost",
      "the server has lost 1 byte that it had acknowledged, beginning at stream offset 1",
      "the server reports offset 3, which is beyond the last byte that was sent. Sluice asks it again.",
      "the server has stored all bytes of the spool, and 2 bytes more that an earlier process had sent",
      "the server's digest of the first 3 bytes does not match the bytes that were sent. An intermediary may have changed bytes.",
    ]
    #expect(notices.map { "\($0)" } == lines)
    #expect("\(UploadNotice.nextURL("http://h/b", offset: 1, unconfirmed: 1))".contains("confirm 1 byte, which"))
    for notice in notices {
      #expect("\(notice)".hasPrefix("the ") && !"\(notice)".contains("offset:"), "\(notice)")
    }
  }

  @Test(
    "a duration has at most milliseconds",
    arguments: [
      (Duration.zero, "0 s"), (.nanoseconds(20_253_400_001), "20.253 s"), (.nanoseconds(499_999), "0 s"),
      (.microseconds(500), "0.001 s"), (.milliseconds(210), "0.21 s"), (.seconds(60), "60 s"),
      (.nanoseconds(999_999_999), "1 s"), (.milliseconds(-5), "0 s"),
    ] as [(Duration, String)])
  func durations(_ duration: Duration, _ text: String) { #expect(duration.inSeconds == text) }

  @Test("the receipt of an upload with one outage has the singular, and a short duration")
  func receipt() {
    let receipt = UploadReceipt(
      response: HTTPResponse(status: 201), byteCount: 1_048_576, resentByteCount: 0, outageCount: 1,
      duration: .nanoseconds(213_000_001), isResumable: true, verifiedDigest: .sha256)
    #expect(
      "\(receipt)" == "1048576 bytes uploaded in 0.213 s, 1 outage, verified by sha-256; the server answered 201")
  }
}
