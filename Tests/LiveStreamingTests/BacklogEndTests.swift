// Backlogs that are cancelled, or whose session closes, at different moments. Each ends once and keeps everything.

import EventLoops
import NetworkTesting
import PropertyTesting
import SpooledStreams
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The end of a backlog", .serialized)
struct BacklogEndTests: BacklogSuite {
  let pattern = OffsetPattern(seed: 9)
  let directory: TemporaryDirectory
  let server: StreamServer

  init() throws {
    directory = try TemporaryDirectory()
    server = try StreamServer()
  }

  @Test("a cancelled backlog ends after the stretch that is being sent, and keeps everything")
  func cancelledWhileSending() throws {
    let requests = try EventLog<Int>()
    let peer = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    for number in 0..<2 { try leave(number, count: 1000, for: peer.url) }
    try withSession { session throws in
      let configuration = LiveStreamConfiguration(request: UploadRequest(url: peer.url))
      let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
      let events = try EventLog<BacklogStreamer.Event>()
      streamer.start { events.append($0) }
      try requests.wait("a request") { $0.first }
      streamer.cancel()
      try events.first("the end of the backlog", where: Self.isEnd)
      #expect(Self.counts(events.all) == (1, 0, 2))
      guard case .stream(_, .ended(let summary))? = events.all.dropLast().last else {
        Issue.record("\(events.all)")
        return
      }
      #expect(summary.error?.kind == .cancelled)
    }
  }

  @Test("a cancellation while the disk opens a stretch ends the backlog once, and keeps everything for the next time")
  func cancelled() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    try withSession { session throws in
      #expect(Self.counts(try send(session, isCancelled: true)) == (0, 0, 2))
      #expect(Self.counts(try send(session)) == (2, 2, 0))
    }
  }

  @Test("a backlog ends when its session closes while a stretch is being sent, and keeps everything")
  func closedWhileSending() throws {
    let requests = try EventLog<Int>()
    let peer = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    for number in 0..<2 { try leave(number, count: 1000, for: peer.url) }
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: peer.url))
    let session = try UploadSession()
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    streamer.start { events.append($0) }
    try requests.wait("a request") { $0.first }
    session.close()
    try events.first("the end of the backlog", where: Self.isEnd)
    #expect(Self.counts(events.all) == (1, 0, 2))
  }

  @Test("a backlog ends when its session closes while the disk opens a stretch, and keeps everything")
  func closedWhileOpening() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    let events = try EventLog<BacklogStreamer.Event>()
    let begun = try EventLog<Bool>()
    let isOver = try EventCounter()
    do {
      let spool = try self.spool()
      let descriptor = isOver.descriptor
      // The spool's thread opens no stretch until the backlog has ended.
      spool.open("none") { _ in _ = waitUntilReadable(descriptor) }
      let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
      let session = try UploadSession()
      let streamer = BacklogStreamer(spool, configuration: configuration, session: session)
      streamer.start { events.append($0) }
      session.loop.execute { begun.append(true) }
      try begun.wait("the beginning") { $0.first }
      session.close()
    }
    try events.first("the end of the backlog", where: Self.isEnd)
    isOver.signal()
    #expect(Self.counts(events.all) == (0, 0, 2))
    try withSession { session throws in #expect(Self.counts(try send(session)) == (2, 2, 0)) }
  }

  @Test("a backlog that starts while its session closes ends without the disk, and keeps everything")
  func closing() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    let events = try EventLog<BacklogStreamer.Event>()
    let isOver = try EventCounter()
    let spool = try self.spool()
    let descriptor = isOver.descriptor
    spool.open("none") { _ in _ = waitUntilReadable(descriptor) }
    let session = try UploadSession()
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
    let streamer = BacklogStreamer(spool, configuration: configuration, session: session)
    // On the session's thread, so that the backlog starts after the session was closed.
    session.loop.execute {
      streamer.start { events.append($0) }
      session.close()
    }
    try events.first("the end of the backlog", where: Self.isEnd)
    isOver.signal()
    #expect(events.all.count == 1 && Self.counts(events.all) == (0, 0, 2))
  }

  @Test("a backlog in a closed session ends at once, and keeps everything")
  func closedSession() throws {
    for number in 0..<2 { try leave(number, count: 1000) }
    let session = try UploadSession()
    session.close()
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    streamer.start { events.append($0) }
    #expect(events.all.count == 1 && Self.counts(events.all) == (0, 0, 2))
  }
}
