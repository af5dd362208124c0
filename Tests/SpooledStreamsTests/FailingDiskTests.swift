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

@Suite("A spool on a disk that temporarily refuses writes or reads")
struct FailingDiskTests {
  @Test("each outage of the disk is reported once, with its end, and loses no byte", arguments: [ENOSPC, EIO, ESTALE])
  func outages(code: Int32) throws {
    let seed = Seed(UInt64(code))
    let rig = try SpoolOnMachine(seed)
    let spool = try rig.open()
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    for round in 1...3 {
      rig.machine.failWrites(with: code)
      ends.producer.capture(5000)
      try SpoolDirectory.wait(for: "failure \(round)") { rig.events.all.count >= 2 * round - 1 }
      // The disk is tried repeatedly meanwhile.
      ends.producer.capture(5000)
      rig.machine.failWrites(with: nil)
      try SpoolDirectory.wait(for: "recovery \(round)") { rig.events.all.count >= 2 * round }
      try SpoolDirectory.wait(for: "everything on the disk") {
        buffer.stretch.notSynchronized(upTo: ends.producer.head) == 0
      }
    }
    for (number, event) in rig.events.all.enumerated() {
      if case .failing(let error) = event {
        #expect(number % 2 == 0 && error.code == code)
      } else {
        #expect(number % 2 == 1 && event == .recovered)
      }
    }
    #expect(rig.events.all.count == 6)
    rig.machine.cutPower()
    let next = try rig.open()
    let backlog = try #require(try next.opened(next.backlog.first))
    #expect(backlog.kept == 0..<30_000)
    try backlog.readAll(0..<30_000, seed)
    #expect(try next.finish(backlog.stretch, isDelivered: true) == 0)
    withExtendedLifetime(spool) {}
  }

  @Test(
    "bytes that a full disk refuses for a long time cost no byte on the disk, and the limit applies to the others",
    arguments: Seed.several(4))
  func longOutages(seed: Seed) throws {
    var random = seed.generator
    let rig = try SpoolOnMachine(seed)
    let limit: UInt64 = 1 << 20
    let spool = try rig.open(limit: limit)
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .dropOldest)
    var ends = try buffer.ends()
    /// What the disk accepted before each outage, oldest first.
    var accepted: [Range<UInt64>] = []
    for _ in 0..<5 {
      let start = ends.producer.head
      for _ in 0..<Int.random(in: 1...8, using: &random) {
        ends.producer.capture(random.size(upTo: 40_000))
        try SpoolDirectory.wait(for: "bytes on the disk", seed) {
          buffer.stretch.notSynchronized(upTo: ends.producer.head) == 0
        }
      }
      accepted.append(start..<ends.producer.head)
      rig.machine.failWrites(with: ENOSPC)
      // More than the limit, and never at once more than the buffer holds.
      for _ in 0..<Int.random(in: 20...60, using: &random) { ends.producer.capture(60_000) }
      let before = rig.machine.writeCount
      try SpoolDirectory.wait(for: "attempts on the full disk", seed) { rig.machine.writeCount >= before + 3 }
      rig.machine.failWrites(with: nil)
      try SpoolDirectory.wait(for: "the end of the outage", seed) {
        buffer.stretch.notSynchronized(upTo: ends.producer.head) == 0
      }
    }
    let head = ends.producer.head
    if random.chance(50) {
      rig.machine.cutPower()
    } else {
      rig.machine.kill()
    }
    let next = try rig.open(limit: limit)
    let backlog = try #require(try next.opened(next.backlog.first), "\(seed)")
    var consumer = try backlog.consumer()
    var (cursor, gaps) = (backlog.kept.lowerBound, [0..<backlog.kept.lowerBound])
    while cursor < head {
      let lost = try SpooledStretchTests.read(&consumer, &cursor, 8192, seed)
      if lost > 0 { gaps.append(cursor - lost..<cursor) }
    }
    // The newest bytes up to the limit, but for the step in which a spool makes room.
    var rest = limit - (128 << 10)
    for range in accepted.reversed() {
      // The end of the outage after it was still in the buffer.
      rest -= min(rest, 64 << 10)
      let kept = range.upperBound - min(rest, UInt64(range.count))..<range.upperBound
      #expect(!gaps.contains { $0.overlaps(kept) }, "\(seed): \(kept) of \(accepted), \(gaps)")
      rest -= UInt64(kept.count)
    }
    try next.finish(backlog.stretch, isDelivered: true)
    withExtendedLifetime(spool) {}
  }

  @Test("after a stream has ended on a full disk, the spool does not claim that the disk has space again")
  func ended() throws {
    let rig = try SpoolOnMachine(Seed(10))
    let spool = try rig.open()
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    rig.machine.failWrites(with: ENOSPC)
    ends.producer.capture(5000)
    ends.producer.finish()
    #expect(try spool.finish(buffer.stretch, isDelivered: false) == 5000)
    let began = MonotonicInstant.now
    try SpoolDirectory.wait(for: "many intervals") { .now - began > .milliseconds(300) }
    #expect(rig.codes == [ENOSPC], "\(rig.events.all)")
    rig.machine.kill()
    let next = try rig.open()
    try SpoolDirectory.wait(for: "what memory had") { try SpoolDirectory.inMemory(next.backlog).isEmpty }
  }

  @Test("a delivered stretch leaves nothing in memory, even if the disk refuses to sync its removal")
  func unsyncedRemoval() throws {
    let rig = try SpoolOnMachine(Seed(5))
    let spool = try rig.open(syncInterval: .seconds(1))
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    let names = try rig.names()
    try #require(try SpoolDirectory.inMemory(names).count == 1)
    rig.machine.failFolderSyncs(with: EIO)
    try spool.finish(buffer.stretch, isDelivered: true)
    #expect(try rig.stretches() == [])
    #expect(try SpoolDirectory.inMemory(names) == [])
    #expect(rig.codes == [EIO], "\(rig.events.all)")
  }

  @Test("a refused sync of complete blocks is reported, and the next one tries again")
  func unsyncedBlocks() throws {
    let rig = try SpoolOnMachine(Seed(7))
    // Shortly before the interval ends, the beginning of the next block makes the spool sync those before it.
    let spool = try rig.open(syncInterval: .milliseconds(400))
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    // A steady stream has a new block every few milliseconds.
    func capture() { _ = ends.producer.write(minimum: 512, maximum: 512) { _ in 512 } }
    for round in 1...2 {
      rig.machine.failNextSync(with: EIO)
      try SpoolDirectory.wait(for: "failure \(round)") {
        capture()
        return rig.events.all.count >= 2 * round - 1
      }
      try SpoolDirectory.wait(for: "recovery \(round)") { rig.events.all.count >= 2 * round }
    }
    #expect(rig.codes == [EIO, nil, EIO, nil] && rig.events.all.last == .recovered, "\(rig.events.all)")
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test("whichever write the disk refuses at the end of a stream without the server, the failure is reported")
  func refusedEnd() throws {
    var accepted = 0
    while true {
      let rig = try SpoolOnMachine(Seed(8))
      // No interval ends meanwhile.
      let spool = try rig.open(syncInterval: .seconds(3600))
      let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
      var ends = try buffer.ends()
      _ = ends.producer.write(minimum: 2 * 4064, maximum: 2 * 4064) { _ in 2 * 4064 }
      let path = try #require(try rig.stretches().first)
      try SpoolDirectory.wait(for: "both blocks in the file") { try rig.file(path).head == 2 * 4064 }
      let before = rig.machine.writeCount
      rig.machine.failWrites(with: EIO, after: accepted)
      ends.producer.finish()
      try spool.finish(buffer.stretch, isDelivered: false)
      let isRefused = rig.machine.writeCount - before > accepted
      #expect(rig.codes == (isRefused ? [EIO] : []), "after \(accepted) writes: \(rig.events.all)")
      rig.machine.kill()
      let next = try rig.open(syncInterval: .seconds(3600))
      try SpoolDirectory.wait(for: "what memory had") { try SpoolDirectory.inMemory(next.backlog).isEmpty }
      guard isRefused else { break }
      accepted += 1
    }
    // A checkpoint, and the record that nothing is in memory any more.
    #expect(accepted >= 2)
  }

  @Test("whichever write the disk refuses while the next process settles a stretch, it is reported and tried again")
  func refusedSettling() throws {
    var accepted = 0
    while true {
      let rig = try SpoolOnMachine(Seed(9))
      try left(10_000, rig)
      rig.machine.failWrites(with: ENOSPC, after: accepted)
      let spool = try rig.open()
      func isSettled() throws -> Bool { try SpoolDirectory.inMemory(spool.backlog).isEmpty }
      try SpoolDirectory.wait(for: "an end or a failure after \(accepted) writes") {
        try isSettled() || !rig.events.all.isEmpty
      }
      if rig.events.all.isEmpty { break }
      #expect(rig.codes == [ENOSPC], "after \(accepted) writes: \(rig.events.all)")
      rig.machine.failWrites(with: nil)
      try SpoolDirectory.wait(for: "the end after \(accepted) writes") { try isSettled() }
      try SpoolDirectory.wait(for: "the recovery after \(accepted) writes") { rig.events.all.last == .recovered }
      accepted += 1
    }
    // At least the lock, the newest checkpoint again, the next one, and the record that nothing is in memory any more.
    #expect(accepted >= 4)
  }

  /// A spool in which a killed process has left this number of bytes.
  private func left(_ count: Int, _ rig: SpoolOnMachine) throws {
    let spool = try rig.open(limit: 8 << 20, syncInterval: .seconds(1), logsEvents: false)
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    try ends.producer.capture(upTo: UInt64(count))
    ends.producer.finish()
    try SpoolDirectory.wait(for: "everything on the disk") { buffer.stretch.notSynchronized(upTo: UInt64(count)) == 0 }
    rig.machine.cutPower()
    withExtendedLifetime(spool) {}
  }

  @Test("what a killed process left in memory is written once the disk accepts it, although no stream asks for it")
  func settledLater() throws {
    let rig = try SpoolOnMachine(Seed(6))
    do {
      let spool = try rig.open()
      let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
      rig.machine.failWrites(with: ENOSPC)
      var ends = try buffer.ends()
      ends.producer.capture(5000)
      rig.machine.kill()
      withExtendedLifetime(spool) {}
    }
    rig.machine.failWrites(with: ENOSPC)
    let count = rig.events.all.count
    let spool = try rig.open()
    try SpoolDirectory.wait(for: "a refused attempt") { rig.events.all.count > count }
    try #require(try SpoolDirectory.inMemory(spool.backlog).count == 1)
    rig.machine.failWrites(with: nil)
    try SpoolDirectory.wait(for: "everything on the disk") { try SpoolDirectory.inMemory(spool.backlog).isEmpty }
    for path in try rig.stretches() { #expect(try rig.file(path).head == 5000) }
  }

  @Test(
    "a stretch that cannot be opened for a while is examined and sent later",
    arguments: [EMFILE, ENFILE, ENOMEM, EAGAIN, ESTALE, EIO])
  func opens(code: Int32) throws {
    let seed = Seed(UInt64(code))
    let rig = try SpoolOnMachine(seed)
    try left(50_000, rig)
    // The first one is the lock.
    rig.machine.failOpens(with: code, after: 1)
    let spool = try rig.open(limit: 8 << 20)
    try rig.events.wait("the first attempt") { $0.first }
    let found = try EventLog<SpooledBacklog?>()
    spool.open(try #require(spool.backlog.first)) { stretch in
      if case .backlog(let backlog) = stretch { found.append(backlog) } else { found.append(nil) }
    }
    let before = rig.machine.openCount
    try SpoolDirectory.wait(for: "more attempts", seed) { rig.machine.openCount >= before + 10 }
    #expect(found.all.isEmpty)
    rig.machine.failOpens(with: nil)
    let backlog = try #require(try found.wait("the stretch") { $0.first })
    #expect(backlog.kept == 0..<50_000)
    try backlog.readAll(0..<50_000, seed)
    try SpoolDirectory.wait(for: "the end of the failure", seed) { rig.events.all.last == .recovered }
    #expect(rig.codes == [code, nil], "\(rig.events.all)")
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0)
    #expect(try rig.stretches() == [])
  }

  @Test("a disk that cannot read for a while loses no byte of a backlog, whenever that is", arguments: Seed.several(6))
  func reads(seed: Seed) throws {
    var random = seed.generator
    let rig = try SpoolOnMachine(seed)
    let count = Int.random(in: 100_000...3_000_000, using: &random)
    try left(count, rig)
    // The age of data that cannot be read is unknown.
    let spool = try rig.open(limit: 8 << 20) { $0.retention = .seconds(3600) }
    let backlog = try #require(try spool.opened(spool.backlog.first))
    var consumer = try backlog.consumer()
    var cursor: UInt64 = 0
    let code = [EIO, ENOMEM].randomElement(using: &random) ?? EIO
    while cursor < count {
      rig.machine.failReads(with: code)
      let before = rig.machine.readCount
      // Bytes that were loaded before can still be read. Then the disk is tried several times, including by the check
      // of ages.
      try SpoolDirectory.wait(for: "more attempts", seed) {
        switch consumer.read(at: cursor, maximum: 8192, { $0.byteCount }) {
        case .bytes(let read): cursor += UInt64(read)
        case .empty: break
        case .overwritten(let oldest): throw SpooledStretchTests.Failure(reason: "\(oldest) after \(cursor), \(seed)")
        }
        return cursor == count || rig.machine.readCount >= before + 10
      }
      rig.machine.failReads(with: nil)
      guard cursor < count else { break }
      try #require(try SpooledStretchTests.read(&consumer, &cursor, 8192, seed) == 0)
    }
    #expect(consumer.isFinished && consumer.head == UInt64(count))
    #expect(rig.events.all.allSatisfy { if case .failing = $0 { true } else { $0 == .recovered } }, "\(rig.events.all)")
    try SpoolDirectory.wait(for: "the end of the outage", seed) { rig.events.all.last == .recovered }
    try spool.finish(backlog.stretch, isDelivered: true)
  }

  @Test("bytes that a working disk cannot read for too long count as lost, and bytes of a disk that is gone do not")
  func badSectors() throws {
    let rig = try SpoolOnMachine(Seed(3))
    try left(500_000, rig)
    let spool = try rig.open(limit: 8 << 20, syncInterval: .milliseconds(5)) {
      $0.readingPatience = .milliseconds(100)
    }
    let backlog = try #require(try spool.opened(spool.backlog.first))
    let consumer = try backlog.consumer()
    rig.machine.failReads(with: EIO, andWrites: true)
    let (began, before) = (MonotonicInstant.now, rig.machine.readCount)
    try SpoolDirectory.wait(for: "attempts for longer than the patience") {
      guard case .empty = consumer.read(at: 0, maximum: 8192, { $0.byteCount }) else { return false }
      return rig.machine.readCount > before + 20 && .now - began > .milliseconds(300)
    }
    rig.machine.failReads(with: EIO)
    var cursor: UInt64 = 0
    try SpoolDirectory.wait(for: "the end") {
      switch consumer.read(at: cursor, maximum: 8192, { $0.byteCount }) {
      case .bytes(let count): cursor += UInt64(count)
      case .overwritten(let oldest): cursor = oldest
      case .empty: break
      }
      return cursor == 500_000
    }
    try spool.finish(backlog.stretch, isDelivered: true)
  }
}
