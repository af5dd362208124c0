// Bytes that the buffer in memory drops before the disk of the spool takes them. Each is reported as lost, once, from
// the moment at which it is lost to the report of the next run.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import SpooledStreams
import Testing
import UploadClient

@testable import LiveStreaming

@Suite("Bytes that a spool loses before its disk takes them", .serialized)
struct SpoolLossTests {
  /// Why the disk does not take them.
  enum Disk: CaseIterable, Sendable {
    case fullAtStart, fullLater
    /// The source is faster. The disk takes the last bytes.
    case slow
  }

  /// How the stream ends, which has no server until then.
  enum End: CaseIterable, Sendable { case cancelled, sourceEnds, serverReturns }

  private static let buffer = 64 << 10
  /// What the disk takes first.
  private static let before = 50_000
  private static let count = 400_000

  private let directory: TemporaryDirectory
  private let server: StreamServer
  private let machine: SpoolMachine

  init() throws {
    directory = try TemporaryDirectory()
    server = try StreamServer()
    machine = try SpoolMachine(Seed(31).generator, folder: directory.path)
  }

  private func spool() throws -> StreamSpool {
    var settings = SpoolSettings(limit: 1 << 30)
    settings.syncInterval = .milliseconds(10)
    return try StreamSpool(
      directory: directory.path, stream: "cam", settings: settings, disk: machine.start(), report: { _ in })
  }

  /// The file of the stretch, as another process sees it; nil if it has none.
  private func file() throws -> SpoolFile? {
    guard let path = try SpoolFolder.stretches(in: "\(directory.path)/cam", disk: machine.start()).first else {
      return nil
    }
    return try? SpoolFile.open(path, access: .readOnly, disk: machine.start())
  }

  /// What sluice spool verify finds: the bytes that are lost, and those that are kept.
  private func verified() throws -> (lost: UInt64, kept: UInt64) {
    if let file = try self.file() {
      let (found, remains) = (try file.verify(), file.remainsInMemory)
      return (
        found.lostByteCount + (remains?.lostByteCount ?? 0), found.intactByteCount + (remains?.byteCount ?? 0)
      )
    }
    let stretch = try #require(StretchInMemory.all(at: SpoolFolder.resolved(directory.path)).first)
    guard case .remains(let remains) = stretch.content() else { throw TestFailure("\(stretch.content())") }
    return (remains.lostByteCount, remains.byteCount)
  }

  private func progresses(_ events: [LiveStreamEvent]) -> [StreamProgress] {
    events.compactMap { if case .progress(let progress) = $0 { progress } else { nil } }
  }

  /// Sends what is left, like the next run. Returns the number of bytes that it reports as lost.
  private func drain(_ session: UploadSession) throws -> UInt64 {
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: server.url))
    let streamer = BacklogStreamer(try spool(), configuration: configuration, session: session)
    let events = try EventLog<BacklogStreamer.Event>()
    streamer.start { events.append($0) }
    let end = try events.first("the end of the backlog") { if case .ended = $0 { true } else { false } }
    if case .ended(let delivered, let kept) = end { #expect(delivered == 1 && kept == 0, "\(events.all)") }
    return events.all.reduce(0) { sum, event in
      if case .stream(_, .gap(let gap)) = event { sum + gap.length } else { sum }
    }
  }

  @Test(
    "each is reported once: while it happens, at the end, by verify, and by the next run",
    arguments: Disk.allCases, End.allCases)
  func losses(disk: Disk, end: End) throws {
    try withSession { session throws in
      let spool = try self.spool()
      let answers = try EventLog<Bool>()
      // The spool's thread does nothing else until then.
      if disk == .slow { spool.open("none") { _ in _ = try? answers.first("the disk's answer") { $0 } } }
      if disk == .fullAtStart { machine.failWrites(with: ENOSPC) }
      var configuration = LiveStreamConfiguration(request: UploadRequest(url: "\(server.url)/x.bin"))
      (configuration.buffer, configuration.overflow) = (.bytes(Self.buffer), .dropOldest)
      configuration.progressInterval = .milliseconds(5)
      let source = try PushedSource()
      let streamer = try LiveStreamer(source, configuration: configuration, session: session, spool: spool)
      let events = try EventLog<LiveStreamEvent>()
      // Without requests, there is no server.
      streamer.suspend()
      streamer.start { events.append($0) }
      var captured = Self.count
      if disk == .fullLater {
        captured += Self.before
        try source.push([UInt8](repeating: 1, count: Self.before))
        try waitUntil("the disk has the first bytes") { try file()?.checkpoint.head == UInt64(Self.before) }
        machine.failWrites(with: ENOSPC)
      }
      try source.push([UInt8](repeating: 2, count: Self.count))
      // All but the newest ones.
      let lost = UInt64(Self.count - Self.buffer)
      try events.wait("the loss") { events in progresses(events).last?.lost == lost ? true : nil }
      let discarding = events.all.compactMap { if case .discarding(let count) = $0 { count } else { nil } }
      #expect(discarding.count == 1 && discarding.allSatisfy { $0 > 0 && $0 <= lost }, "\(discarding)")
      if disk == .slow {
        answers.append(true)
        try waitUntil("the disk has the last bytes") { try file()?.checkpoint.head == UInt64(captured) }
      }

      switch end {
      case .cancelled: streamer.cancel()
      case .sourceEnds: streamer.finish(within: .milliseconds(50))
      case .serverReturns:
        streamer.resume()
        streamer.finish()
      }
      let summary = try events.wait("the end") { events in
        if case .ended(let summary)? = events.last { summary } else { nil }
      }
      let now = summary.progress
      #expect(now.captured == UInt64(captured) && now.lost == lost && summary.gaps == 1 && summary.hasLoss, "\(now)")
      let gaps = events.all.compactMap { if case .gap(let gap) = $0 { gap } else { nil } }
      let start = UInt64(captured - Self.count)
      #expect(gaps == [Gap(offset: start, length: lost, cause: .bufferFull)])
      // Nothing that is lost comes back, and nothing counts twice.
      var before: UInt64 = 0
      for progress in progresses(events.all) + [now] {
        #expect(progress.acknowledged + progress.lost + progress.unsent == progress.captured, "\(progress)")
        #expect(progress.lost >= before && progress.lost <= lost, "\(progress)")
        before = progress.lost
      }
      if end == .serverReturns {
        #expect(summary.error == nil && now.acknowledged == UInt64(captured) - lost && now.unsent == 0, "\(summary)")
        #expect(try file() == nil)
      } else {
        #expect(now.acknowledged == 0 && now.unsent == UInt64(captured) - lost, "\(summary)")
        // Only the bytes in memory are not on the disk.
        #expect(summary.notSynchronized == (disk == .slow ? 0 : UInt64(Self.buffer)))
        // The process ends.
        machine.kill()
        let found = try verified()
        #expect(found.lost == lost && found.kept == now.unsent, "\(found)")
        #expect(try drain(session) == lost)
      }
      withExtendedLifetime(spool) {}
    }
  }
}
