// Stretches that end while their process continues: what stays of them, and what the spool does afterwards.

import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import SpooledStreams
import StreamBuffers
import Testing

@Suite("A spool that continues after the end of a stretch")
struct ContinuedSpoolTests {
  private let rig: SpoolOnMachine

  init() throws { rig = try SpoolOnMachine(Seed(7)) }

  private func begin(_ spool: StreamSpool) throws -> SpooledBuffer {
    try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
  }

  /// Leaves a stretch of this many bytes like a killed process.
  ///
  /// - Parameter isInMemory: whether the disk had no space for any of it.
  private func leave(_ total: UInt64, isInMemory: Bool = false) throws {
    if isInMemory { rig.machine.failWrites(with: ENOSPC) }
    let spool = try rig.open(logsEvents: false)
    let buffer = try begin(spool)
    var ends = try buffer.ends()
    try ends.producer.capture(upTo: total)
    // The disk has space again.
    rig.machine.kill()
    withExtendedLifetime(spool) {}
  }

  /// Reads the whole stretch, which nobody has read so far, and ends it as delivered. Nothing remains.
  private func deliver(_ total: UInt64, _ spool: StreamSpool) throws {
    let backlog = try #require(try spool.opened(spool.backlog.first), "\(rig.events.all)")
    #expect(backlog.kept == 0..<total)
    try backlog.readAll(0..<total)
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0)
    #expect(try rig.stretches() == [] && SpoolDirectory.inMemory(spool.backlog) == [])
  }

  @Test(
    "a stretch that ends while the disk refuses its bytes leaves them in memory, and reports their number",
    arguments: [false, true])
  func refusedAtEnd(isOfEarlierProcess: Bool) throws {
    let total: UInt64 = 5000
    if isOfEarlierProcess {
      try leave(total, isInMemory: true)
      rig.machine.failWrites(with: ENOSPC)
      let spool = try rig.open()
      let backlog = try #require(try spool.opened(spool.backlog.first))
      #expect(try spool.finish(backlog.stretch, isDelivered: false) == total)
    } else {
      let spool = try rig.open()
      let buffer = try begin(spool)
      rig.machine.failWrites(with: ENOSPC)
      var ends = try buffer.ends()
      try ends.producer.capture(upTo: total)
      ends.producer.finish()
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == total)
    }
    rig.machine.kill()
    try deliver(total, try rig.open())
  }

  @Test(
    "a stretch that was not delivered is opened again by the same process, even if it had no file at first",
    arguments: [false, true])
  func openedAgain(isInMemory: Bool) throws {
    let total: UInt64 = 20_000
    try leave(total, isInMemory: isInMemory)
    let spool = try rig.open()
    for _ in 0..<2 {
      let backlog = try #require(try spool.opened(spool.backlog.first), "\(rig.events.all)")
      #expect(backlog.kept == 0..<total)
      #expect(try spool.finish(backlog.stretch, isDelivered: false) == 0)
    }
    try deliver(total, spool)
    #expect(rig.events.all.isEmpty, "\(rig.events.all)")
  }

  @Test("the texts of an earlier stretch are on the disk after each interval, also after the end of a stream")
  func intervals() throws {
    try leave(20_000)
    let spool = try rig.open()
    let backlog = try #require(try spool.opened(spool.backlog.first))
    let buffer = try begin(spool)
    var ends = try buffer.ends()
    try ends.producer.capture(upTo: 5000)
    ends.consumer.release(upTo: 5000)
    // No commit follows for it.
    buffer.stretch.noteWithRelease("delivered")
    #expect(try spool.finish(buffer.stretch, isDelivered: true) == 0)
    let path = try #require(try rig.stretches().first)
    for round in 1...3 {
      backlog.stretch.noteWithRelease("\(round)")
      backlog.stretch.release(upTo: UInt64(1000 * round))
      try SpoolDirectory.wait(for: "text \(round)") {
        let file = try? rig.file(path)
        return file?.checkpoint.state == "\(round)"
      }
    }
    #expect(rig.events.all.isEmpty, "\(rig.events.all)")
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0 && rig.stretches() == [])
  }

  @Test("at the limit, the oldest bytes of all stretches make room, and no others")
  func limit() throws {
    try leave(200_000)
    let spool = try rig.open(limit: 300_000)
    try SpoolDirectory.wait(for: "what memory had") { try SpoolDirectory.inMemory(spool.backlog).isEmpty }
    let buffer = try begin(spool)
    var ends = try buffer.ends()
    try ends.producer.capture(upTo: 250_000)
    try SpoolDirectory.wait(for: "the bytes on the disk") { buffer.stretch.notSynchronized(upTo: 250_000) == 0 }
    let earlier = try #require(try spool.opened(spool.backlog.first)).stretch
    #expect((150_000...155_000).contains(earlier.oldest) && buffer.stretch.oldest == 0, "\(earlier.oldest)")
    try ends.producer.capture(upTo: 400_000)
    try SpoolDirectory.wait(for: "the other bytes on the disk") { buffer.stretch.notSynchronized(upTo: 400_000) == 0 }
    #expect(earlier.oldest == 200_000 && (100_000...105_000).contains(buffer.stretch.oldest))
    #expect(rig.events.all.isEmpty, "\(rig.events.all)")
    for stretch in [earlier, buffer.stretch] { #expect(try spool.finish(stretch, isDelivered: true) == 0) }
    #expect(try rig.stretches() == [])
  }

  // MARK: On a real disk

  @Test("a delivered stretch whose file another program has removed leaves nothing in memory, which is no failure")
  func removedByOthers() throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open()
    let buffer = try begin(spool)
    var ends = try buffer.ends()
    try ends.producer.capture(upTo: 5000)
    let path = try #require(try directory.stretches().last)
    let name = try #require(path.split(separator: "/").last.map { String($0) })
    try #require(try SpoolDirectory.inMemory([name]).count == 1)
    #expect(unlink(path) == 0)
    ends.consumer.release(upTo: 5000)
    #expect(try spool.finish(buffer.stretch, isDelivered: true) == 0)
    #expect(try SpoolDirectory.inMemory([name]) == [])
    #expect(directory.events.allSatisfy { $0 == .removed(path) }, "\(directory.events)")
  }

  @Test("a stretch with nothing to send is removed by the next process, although no stream asks for it")
  func nothingToSend() throws {
    let directory = try SpoolDirectory()
    do {
      let spool = try directory.open()
      let buffer = try begin(spool)
      var ends = try buffer.ends()
      try ends.producer.capture(upTo: 5000)
      ends.producer.finish()
      ends.consumer.release(upTo: 5000)
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == 0)
    }
    #expect(try directory.stretches().count == 1)
    let spool = try directory.open()
    try SpoolDirectory.wait(for: "its removal") { try directory.stretches().isEmpty }
    #expect(directory.events.isEmpty, "\(directory.events)")
    withExtendedLifetime(spool) {}
  }
}
