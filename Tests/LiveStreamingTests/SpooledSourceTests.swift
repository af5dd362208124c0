// Streams of sources with a spool whose disk does not answer.

import EventLoops
import NetworkTesting
import Spool
import SpooledStreams
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("A source whose spool waits for its disk", .serialized)
struct SpooledSourceTests {
  private let directory: TemporaryDirectory
  private let spool: StreamSpool
  private let answers: EventLog<Bool>

  init() throws {
    directory = try TemporaryDirectory()
    spool = try StreamSpool(
      directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
    let answers = try EventLog<Bool>()
    self.answers = answers
    // The spool's thread does nothing else until then.
    spool.open("none") { _ in _ = try? answers.first("the disk's answer") { $0 } }
  }

  private func streamer(
    _ source: PushedSource, _ session: UploadSession, _ overflow: OverflowPolicy = .dropOldest
  ) throws -> LiveStreamer {
    let port = try freePort()
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://127.0.0.1:\(port)/"))
    configuration.buffer = .bytes(64 << 10)
    configuration.overflow = overflow
    return try LiveStreamer(source, configuration: configuration, session: session, spool: spool)
  }

  @Test("a full buffer keeps its bytes if the source is to wait or to stop", arguments: [OverflowPolicy.wait, .stop])
  func full(_ overflow: OverflowPolicy) throws {
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      let source = try PushedSource()
      let streamer = try streamer(source, session, overflow)
      streamer.start { events.append($0) }
      let count = try source.push([UInt8](repeating: 1, count: 200_000))
      #expect(count == 64 << 10)
      answers.append(true)
      streamer.cancel()
      try events.first("the end") { if case .ended = $0 { true } else { false } }
    }
  }

  @Test("a stream that starts while its session closes ends without the disk")
  func closing() throws {
    let events = try EventLog<LiveStreamEvent>()
    let session = try UploadSession()
    let streamer = try streamer(PushedSource(), session)
    // On the session's thread, so that the stream starts after the session was closed.
    session.loop.execute {
      streamer.start { events.append($0) }
      session.close()
    }
    let end = try events.first("the end") { if case .ended = $0 { true } else { false } }
    if case .ended(let summary) = end { #expect(summary.error?.kind == .cancelled) }
    answers.append(true)
  }

  private func summary(_ events: EventLog<LiveStreamEvent>) throws -> StreamSummary {
    try events.wait("the end") { events in
      if case .ended(let summary)? = events.last { summary } else { nil }
    }
  }

  /// Starts a stream whose first 5000 bytes were omitted, and waits until it has 1000 others and no server.
  private func start(_ session: UploadSession, _ events: EventLog<LiveStreamEvent>) throws -> LiveStreamer {
    let source = try PushedSource()
    let streamer = try streamer(source, session)
    streamer.start { events.append($0) }
    #expect(try source.pause(5000))
    try source.push([UInt8](repeating: 1, count: 1000))
    try events.first("an outage") { if case .outage = $0 { true } else { false } }
    return streamer
  }

  @Test(
    "a stream ends without the disk when its session closes, while it runs or while it waits for the disk",
    arguments: [false, true])
  func closingLater(_ isWaiting: Bool) throws {
    let events = try EventLog<LiveStreamEvent>()
    let session = try UploadSession()
    let streamer = try start(session, events)
    if isWaiting {
      streamer.cancel()
      let passed = try EventLog<Int>()
      for turn in 0..<3 {
        session.loop.execute { passed.append(turn) }
        try passed.first("the loop") { $0 == turn }
      }
      #expect(!events.all.contains { if case .ended = $0 { true } else { false } })
    }
    session.close()
    let summary = try summary(events)
    #expect(summary.error?.kind == .cancelled && summary.notSynchronized == 1000)
    answers.append(true)
  }

  @Test("a finished stream waits for the disk for at least a second, and reports the bytes that are not on the disk")
  func patience() throws {
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      let streamer = try start(session, events)
      let begun = MonotonicInstant.now
      streamer.finish(within: .milliseconds(50))
      let summary = try summary(events)
      #expect(summary.error?.kind == .unreachable && summary.notSynchronized == 1000)
      #expect(MonotonicInstant.now - begun >= .seconds(1))
      answers.append(true)
    }
  }

  @Test("a stream with a spool is released after its end")
  func released() throws {
    answers.append(true)
    let port = try freePort()
    try withSession { session throws in
      let events = try EventLog<LiveStreamEvent>()
      let configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://127.0.0.1:\(port)/"))
      func start() throws -> WeakReference<LiveStream> {
        let stream = LiveStream(
          try LiveSource(try PushedSource(), configuration, spool), configuration: configuration, session: session)
        session.loop.execute { stream.start { events.append($0) } }
        try events.first("an outage") { if case .outage = $0 { true } else { false } }
        return WeakReference(stream)
      }
      let reference = try start()
      session.loop.execute { reference.object?.cancel() }
      #expect(try summary(events).error?.kind == .cancelled)
      try waitUntil("the stream is released") { reference.object == nil }
    }
  }
}
