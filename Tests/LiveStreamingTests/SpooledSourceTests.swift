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
}
