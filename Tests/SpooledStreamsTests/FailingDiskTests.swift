// A spool on a disk that temporarily refuses writes: its reports, and its final content.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import SpooledStreams
import StreamBuffers
import Testing

@Suite("A spool on a disk that temporarily refuses writes")
struct FailingDiskTests {
  @Test("each outage of the disk is reported once, with its end, and loses no byte", arguments: [ENOSPC, EIO])
  func outages(code: Int32) throws {
    let seed = Seed(UInt64(code))
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(seed.generator, folder: directory.path)
    let events = try EventLog<SpoolEvent>()
    var settings = SpoolSettings(limit: 1 << 20)
    settings.syncInterval = .milliseconds(10)
    func open() throws -> StreamSpool {
      try StreamSpool(directory: directory.path, stream: "s", settings: settings, disk: machine.start()) {
        events.append($0)
      }
    }
    let spool = try open()
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    func capture(_ count: Int) {
      let head = ends.producer.head
      _ = ends.producer.write(minimum: count, maximum: count) { span in
        span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: head) }
        return count
      }
    }
    for round in 1...3 {
      machine.failWrites(with: code)
      capture(5000)
      try SpoolDirectory.wait(for: "failure \(round)") { events.all.count >= 2 * round - 1 }
      // The disk is tried repeatedly meanwhile.
      capture(5000)
      machine.failWrites(with: nil)
      try SpoolDirectory.wait(for: "recovery \(round)") { events.all.count >= 2 * round }
      try SpoolDirectory.wait(for: "everything on the disk") {
        buffer.stretch.notSynchronized(upTo: ends.producer.head) == 0
      }
    }
    for (number, event) in events.all.enumerated() {
      if case .failing(let error) = event {
        #expect(number % 2 == 0 && error.code == code)
      } else {
        #expect(number % 2 == 1 && event == .recovered)
      }
    }
    #expect(events.all.count == 6)
    machine.cutPower()
    let next = try open()
    let backlog = try #require(try next.opened(next.backlog.first))
    #expect(backlog.kept == 0..<30_000)
    guard let found = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    var consumer = found.consumer
    var cursor: UInt64 = 0
    while cursor < 30_000 { try #require(try SpooledStretchTests.read(&consumer, &cursor, 8192, seed) == 0) }
    #expect(try next.finish(backlog.stretch, isDelivered: true) == 0)
    withExtendedLifetime(spool) {}
  }
}
