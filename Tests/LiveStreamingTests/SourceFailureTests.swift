// A source that fails: the server gets every byte that was read, and no claim that the stream has ended.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("The end of a stream whose source fails", .serialized)
struct SourceFailureTests {
  private let pattern = OffsetPattern(seed: 3)

  @Test(
    "its upload has every byte and stays incomplete, in one append or in several",
    arguments: [nil, 4_000] as [UInt64?])
  func leftIncomplete(_ size: UInt64?) throws {
    let server = try ResumableServer()
    let failure = LiveStreamError(.source, "reading the input: reset")
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server) { if let size { $0.rollOver.size = size } }
      try source.push(patternBytes(pattern, 0, 10_000))
      try source.fail(failure)
      source.stop()
      let summary = try stream.summary()
      #expect(summary.error == failure && summary.recording == .unfinished && summary.resumeData != nil)
      #expect(summary.progress.acknowledged == 10_000 && summary.progress.unsent == 0)
    }
    #expect(server.uploads.count == 1 && server.upload(0).matches(pattern, count: 10_000))
    #expect(!server.upload(0).isComplete && !server.of("PATCH").contains(where: \.completes))
  }

  @Test("the summary of a stream whose source fails before its first byte reports no recording")
  func firstByte() throws {
    let server = try StreamServer()
    let failure = LiveStreamError(.source, "reading the input: reset")
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url + "/s.bin") { $0.resumable = .auto }
      try source.fail(failure)
      source.stop()
      let summary = try stream.summary()
      #expect(summary.error == failure && summary.recording == nil)
    }
  }

  @Test("a reset socket is such a source, and the server's recording grows on under its temporary name")
  func socket() throws {
    let server = try StreamServer()
    var ends: [Int32] = [-1, -1]
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, type, 0, &ends) == 0 else { throw TestFailure("socketpair") }
    defer { close(ends[0]) }
    // A peer that is closed before it has read everything resets the connection.
    let (unread, bytes) = ([1] as [UInt8], patternBytes(pattern, 0, 10_000))
    let count = write(ends[0], unread, 1) + write(ends[1], bytes, bytes.count)
    close(ends[1])
    #expect(count == 10_001)
    try withSession { session throws in
      let source = try DescriptorSource(descriptor: ends[0], name: "the input")
      let stream = try RunningStream(source, session, server.url + "/s.bin") { $0.resumable = .auto }
      let summary = try stream.summary()
      let reason = SystemError(operation: "reading the input", code: ECONNRESET).description
      #expect(summary.error == LiveStreamError(.source, reason) && summary.recording == .unfinished)
      #expect(summary.progress.acknowledged == 10_000)
    }
    let names = server.directory.names
    let part = try #require(names.first { $0.hasSuffix(".part") }, "\(names)")
    let stored = try server.directory.contents(part)
    #expect(stored == patternBytes(pattern, 0, 10_000))
  }

  @Test("a plain request is completed, because a server may discard one that is cut off, and the summary states it")
  func plain() throws {
    let bodies = try EventLog<[UInt8]>()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      bodies.append(try connection.body())
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server.url)
      try source.push(patternBytes(pattern, 0, 1000))
      try source.fail(LiveStreamError(.source, "reset"))
      source.stop()
      let summary = try stream.summary()
      #expect(summary.error?.kind == .source && summary.recording == .complete)
    }
    #expect(bodies.all == [patternBytes(pattern, 0, 1000)])
  }

  @Test("the failure is an event of its own, so it is reported even if the stream ends for another reason")
  func reported() throws {
    let server = try ResumableServer { _, _ in .close }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      try source.push([1, 2, 3])
      for reason in ["reset", "closed"] { try source.fail(LiveStreamError(.source, reason)) }
      source.stop()
      try stream.waitForFailure()
      stream.streamer.cancel()
      let summary = try stream.summary()
      let reports = stream.events.all.compactMap { if case .source(let event) = $0 { event } else { nil } }
      #expect(summary.error?.kind == .cancelled)
      #expect(reports == [SourceEvent(kind: "source-failed", description: "the source failed: reset", offset: 3)])
    }
  }

  @Test("a stream whose source ends by itself has no such state")
  func ordinaryEnd() throws {
    let server = try ResumableServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, server)
      try source.push([1, 2, 3])
      stream.streamer.finish()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.recording == nil)
    }
    #expect(server.upload(0).isComplete)
  }
}
