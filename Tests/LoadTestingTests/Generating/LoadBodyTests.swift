// The bytes on the server are those that the load test reports as sent.

import EventLoops
import LiveStreaming
import LoadReports
import NetworkTesting
import PropertyTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("The data of a load test on the server", .serialized)
struct LoadBodyTests {
  @Test(
    "each kind of body arrives unchanged, at a server with resumable uploads and at a plain one",
    arguments: [true, false])
  func bodies(resumable: Bool) throws {
    let file = try TemporaryDirectory()
    // Not a divisor of a message's size, and longer than a message.
    let path = try file.write("body", (0..<1237).map { UInt8(truncatingIfNeeded: $0 &* 31) })
    for kind in [LoadProfile.Body.pattern, .random, .zeros, .file(path)] {
      let server = try StreamServer()
      let report = try loadTest(server.url) {
        $0.streams = 2
        $0.seed = 7
        $0.duration = .milliseconds(500)
        $0.resumable = resumable ? .always : .never
        $0.profile.body = kind
      }.run()
      server.stop()
      #expect(report.totals.streams.finished == 2 && report.totals.errorCount == 0, "\(kind)")
      let body = try BodyBytes(kind, seed: 7)
      let stored = try StoredLoad.all(in: server.directory.path)
      #expect(stored.map(\.index).sorted() == [0, 1], "\(kind)")
      for stream in stored {
        #expect(stream.bytes.count == 5 * 500 && stream.holes.isEmpty, "\(kind)")
        let difference = stream.firstDifference { offset, maximum in
          var piece: [UInt8] = []
          _ = body.read(stream: stream.index, at: UInt64(offset), maximum: maximum) { span in
            piece = span.withUnsafeBytes { Array($0) }
            return span.byteCount
          }
          return piece[...]
        }
        #expect(difference == nil, "\(kind)")
        if kind == .pattern { #expect(stream.firstDifference() == nil) }
      }
    }
  }

  @Test("bulk is sent at full speed: the acknowledged bytes are stored, and at most the due bytes")
  func bulk() throws {
    let server = try StreamServer()
    let test = try loadTest(server.url) {
      $0.streams = 2
      $0.profile = .bulk
      // At the pace of a microphone, this would take a minute.
      $0.duration = .seconds(60)
      $0.maximumByteCount = 10_000_000
    }
    let report = try test.run()
    server.stop()
    #expect(test.endReason == .byteLimit(10_000_000))
    #expect(report.totals.bytes.sent >= 10_000_000)
    // Stopped in the middle, so the files keep the names of unfinished ones.
    let stored = try StoredLoad.all(in: server.directory.path)
    #expect(!stored.isEmpty && stored.allSatisfy { !$0.isFinished && $0.firstDifference() == nil })
    let count = UInt64(stored.reduce(0) { $0 + $1.bytes.count })
    // Whole messages are sent, and the server may have stored a part of one.
    #expect(count >= report.totals.bytes.acknowledged && count <= report.totals.bytes.offered)
  }

  @Test(
    "streams follow each other in their slots, each from its own beginning, after its length and its think time",
    arguments: [true, false])
  func generations(paced: Bool) throws {
    let server = try StreamServer()
    let report = try loadTest(server.url) {
      $0.streams = 3
      $0.duration = .seconds(2)
      if paced { $0.profile.chunk = 200_000_000 } else { $0.profile.size = .unpaced(5000) }
      $0.profile.streamLength = .fixed(390_000_000)
      $0.profile.thinkTime = .fixed(10_000_000)
    }.run()
    server.stop()
    let stored = try StoredLoad.all(in: server.directory.path)
    #expect(
      UInt64(stored.count) == report.totals.streams.started
        && report.totals.streams.finished == report.totals.streams.started)
    for place in 0..<3 {
      let ofPlace = stored.filter { $0.index == place }.sorted { $0.generation < $1.generation }
      #expect(ofPlace.map(\.generation) == Array(0..<ofPlace.count))
      // At least 0.4 seconds between two streams, though the last message of each is due after 0.2.
      #expect((2...5).contains(ofPlace.count), "\(ofPlace.count)")
      #expect(!paced || ofPlace.dropLast().allSatisfy { $0.bytes.count == 2 * 500 })
      #expect(ofPlace.allSatisfy { $0.firstDifference() == nil && $0.holes.isEmpty && $0.isFinished })
    }
    #expect(UInt64(stored.reduce(0) { $0 + $1.bytes.count }) == report.totals.bytes.offered)
  }

  @Test("the memory of an ended stream is freed while the run continues")
  func freed() throws {
    let server = try StreamServer()
    var configuration = LoadConfiguration(request: UploadRequest(url: server.url))
    configuration.duration = .seconds(60)
    configuration.profile.streamLength = .fixed(1_500_000_000)
    configuration.profile.thinkTime = .fixed(60_000_000_000)
    let plan = LoadRunPlan(
      configuration, bytes: try BodyBytes(.pattern, seed: 0), localAddresses: [], clock: RunClock(origin: .now)
    ) { _ in }
    let isIdle = try EventCounter()
    let seconds = try EventLog<LoadTotals>()
    let watched = Lock(Watched())
    let loop = try LoadLoop(
      plan,
      report: { second in
        // On the loop's thread, which owns the streams.
        watched.withLock { if $0.stream == nil { $0.stream = $0.loop?.streams.values.first } }
        seconds.append(second.totals)
      }, idle: { isIdle.signal() })
    watched.withLock { $0.loop = loop }
    loop.eventLoop.execute { loop.begin([0]) }
    try seconds.first("its beginning") { $0.streams.started == 1 }
    #expect(watched.withLock { $0.stream != nil })
    try seconds.first("its end") { $0.streams.finished == 1 }
    #expect(watched.withLock { $0.stream == nil })
    loop.eventLoop.execute { loop.stop(isDue: true) }
    #expect(waitUntilReadable(isIdle.descriptor))
    loop.session.close()
  }

  private struct Watched {
    weak var loop: LoadLoop?
    weak var stream: (any PacedStream)?
  }
}
