// A source that pauses for longer than the buffer lasts. The bytes captured before and after are stored at their
// offsets.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing
import UploadClient
import UploadServer

@testable import LiveStreaming

@Suite("A pause that is longer than the buffer", .serialized)
struct PauseTests {
  private let pattern = OffsetPattern()
  /// Far more than the buffer.
  private let length = 1_000_000

  private func stream(
    _ source: PushedSource, _ session: UploadSession, _ url: String, _ use: LiveStreamConfiguration.ResumableUse
  ) throws -> RunningStream {
    try RunningStream(source, session, "\(url)/p") {
      $0.streamID = "p"
      $0.resumable = use
      $0.buffer = .bytes(200_000)
      $0.rollOver.after = .milliseconds(50)
    }
  }

  private func check(_ server: StreamServer, _ runs: [Range<Int>]) throws {
    try server.events.first("the stream's end") { $0.kind == .ended }
    let stored = try server.directory.contents("p-p.bin")
    try #require(stored.count == runs.last?.upperBound)
    for run in runs { #expect(run.allSatisfy { stored[$0] == pattern[UInt64($0)] }, "\(run)") }
    for (before, after) in zip(runs, runs.dropFirst()) {
      #expect(stored[before.upperBound..<after.lowerBound].allSatisfy { $0 == 0 })
    }
  }

  private func push(_ source: PushedSource, _ range: Range<Int>) throws {
    let count = try source.push(patternBytes(pattern, range.lowerBound, range.count))
    #expect(count == range.count)
  }

  @Test(
    "the stream continues at the later offset without a loss or an outage, several times",
    arguments: [LiveStreamConfiguration.ResumableUse.auto, .never])
  func connected(_ use: LiveStreamConfiguration.ResumableUse) throws {
    let server = try StreamServer()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try stream(source, session, server.url, use)
      var runs: [Range<Int>] = []
      var offset = 0
      for round in 0..<3 {
        let run = offset..<offset + 50_000 + round
        try push(source, run)
        // The last pause but one occurs while the bytes before it are still in flight.
        if round != 1, use != .never { try stream.waitUntilAcknowledged(UInt64(run.upperBound)) }
        runs.append(run)
        offset = run.upperBound + length
        if round < 2 { #expect(try source.pause(UInt64(length))) }
      }
      source.stop()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.lost == 0 && summary.gaps == 0)
      #expect(stream.failures().isEmpty)
      #expect(summary.progress.captured == UInt64(runs[2].upperBound))
      #expect(summary.progress.acknowledged == UInt64(runs[2].upperBound))
      if use != .never {
        let reasons = stream.events.all.compactMap { event -> String? in
          if case .upload(.newPart(_, _, let reason)) = event { reason } else { nil }
        }
        #expect(reasons == ["pause", "pause"])
      }
      try check(server, runs)
    }
  }

  @Test("a plain request is not ended before all bytes in front of the pause are delivered")
  func undelivered() throws {
    let first = 20_000
    let gate = try EventLog<Bool>()
    let starts = try EventLog<String>()
    let counts = try EventLog<Int>()
    let server = try ScriptedServer(receiveBuffer: 4096) { connection, number in
      let head = try connection.head()
      starts.append(head["Stream-Offset"] ?? "")
      if number == 0 { try gate.first("the test's word") { $0 } }
      let body = try connection.body()
      counts.append(body.count)
      try connection.respond("200 OK")
    }
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try RunningStream(source, session, "\(server.url)/p") {
        $0.buffer = .bytes(200_000)
        $0.request.socket.sendBuffer = 4096
        $0.request.limits.unacknowledged = .seconds(600)
      }
      try push(source, 0..<first)
      #expect(try source.pause(UInt64(length)))
      try starts.first("the request") { $0 == "0" }
      // Not a synchronization: three times longer than the delivery must take.
      poll(nil, 0, 3000)
      #expect(starts.all == ["0"] && stream.failures().isEmpty)
      gate.append(true)
      try push(source, first + length..<first + length + 100)
      try starts.first("the next request") { $0 == "\(first + length)" }
      source.stop()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.lost == 0 && summary.gaps == 0 && counts.all.last == 100)
    }
  }

  @Test(
    "earlier data survives an outage that ends after the pause",
    arguments: [LiveStreamConfiguration.ResumableUse.always, .never])
  func outage(_ use: LiveStreamConfiguration.ResumableUse) throws {
    let port = try freePort()
    try withSession { session throws in
      let source = try PushedSource()
      let stream = try stream(source, session, "http://127.0.0.1:\(port)", use)
      try push(source, 0..<100_000)
      #expect(try source.pause(UInt64(length)))
      let second = 100_000 + length..<150_000 + length
      try push(source, second)
      try stream.waitForFailure(2)
      let server = try StreamServer(listen: "127.0.0.1:\(port)")
      source.stop()
      let summary = try stream.summary()
      #expect(summary.error == nil && summary.progress.lost == 0 && summary.gaps == 0)
      try check(server, [0..<100_000, second])
    }
  }

  @Test("losses in a row on both sides of a pause double the free space each time, and omitted silence is not a loss")
  func lossesInARow() throws {
    // The source produces more than the buffer's capacity while each upload resource is created.
    let (starts, answers) = (try EventLog<Int>(), try EventLog<Int>())
    let server = try ResumableServer { request, _ in
      guard request.method == "POST" else { return .proper }
      starts.append(Int(request.head.offset))
      try answers.wait("the test's word") { $0.count > request.number ? () : nil }
      return .proper
    }
    try withSession { session throws in
      let source = try PushedSource()
      let capacity = 1 << 18
      let stream = try RunningStream(source, session, "\(server.url)/p") {
        $0.resumable = .always
        $0.buffer = .bytes(capacity)
        $0.memory = .kept
      }
      func start(_ number: Int) throws -> Int {
        try starts.wait("creation \(number)") { $0.count > number ? $0[number] : nil }
      }
      var (newest, lost, last, room) = (0, 0, try start(0), capacity / 8)
      for round in 0..<3 {
        try push(source, newest..<newest + 50_000)
        newest += 50_000
        if round != 1 {
          #expect(try source.pause(UInt64(length)))
          newest += length
        }
        try push(source, newest..<newest + capacity + 1000)
        newest += capacity + 1000
        answers.append(round)
        let next = try start(round + 1)
        #expect(next - (newest - capacity) == room, "round \(round)")
        lost += next - last - (round != 1 ? length : 0)
        (last, room) = (next, 2 * room)
      }
      // A loss is reported with the upload behind it.
      answers.append(3)
      try stream.events.wait("the last loss") { _ in stream.gaps().count == 5 ? true : nil }
      stream.streamer.cancel()
      let summary = try stream.summary()
      #expect(Int(summary.progress.lost) == lost && summary.gaps == 5)
    }
  }
}
