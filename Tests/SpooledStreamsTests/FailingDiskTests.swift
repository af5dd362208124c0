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
  /// The code of each reported failure, and nil for each other event.
  private func codes(_ events: EventLog<SpoolEvent>) -> [Int32?] {
    events.all.map { if case .failing(let error) = $0 { error.code } else { nil } }
  }

  @Test("each outage of the disk is reported once, with its end, and loses no byte", arguments: [ENOSPC, EIO, ESTALE])
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

  @Test(
    "bytes that a full disk refuses for a long time cost no byte on the disk, and the limit applies to the others",
    arguments: Seed.several(4))
  func longOutages(seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(seed.generator, folder: directory.path)
    let limit: UInt64 = 1 << 20
    var settings = SpoolSettings(limit: limit)
    settings.syncInterval = .milliseconds(10)
    func open() throws -> StreamSpool {
      try StreamSpool(directory: directory.path, stream: "s", settings: settings, disk: machine.start()) { _ in }
    }
    let spool = try open()
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .dropOldest)
    guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    func capture(_ count: Int) {
      let head = ends.producer.head
      _ = ends.producer.write(minimum: count, maximum: count) { span in
        span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: head) }
        return count
      }
    }
    /// What the disk accepted before each outage, oldest first.
    var accepted: [Range<UInt64>] = []
    for _ in 0..<5 {
      let start = ends.producer.head
      for _ in 0..<Int.random(in: 1...8, using: &random) {
        capture(random.size(upTo: 40_000))
        try SpoolDirectory.wait(for: "bytes on the disk", seed) {
          buffer.stretch.notSynchronized(upTo: ends.producer.head) == 0
        }
      }
      accepted.append(start..<ends.producer.head)
      machine.failWrites(with: ENOSPC)
      // More than the limit, and never at once more than the buffer holds.
      for _ in 0..<Int.random(in: 20...60, using: &random) { capture(60_000) }
      let before = machine.writeCount
      try SpoolDirectory.wait(for: "attempts on the full disk", seed) { machine.writeCount >= before + 3 }
      machine.failWrites(with: nil)
      try SpoolDirectory.wait(for: "the end of the outage", seed) {
        buffer.stretch.notSynchronized(upTo: ends.producer.head) == 0
      }
    }
    let head = ends.producer.head
    if random.chance(50) {
      machine.cutPower()
    } else {
      machine.kill()
    }
    let next = try open()
    let backlog = try #require(try next.opened(next.backlog.first), "\(seed)")
    guard let found = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    var consumer = found.consumer
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

  @Test("a delivered stretch leaves nothing in memory, even if the disk refuses to sync its removal")
  func unsyncedRemoval() throws {
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(Seed(5).generator, folder: directory.path)
    let events = try EventLog<SpoolEvent>()
    let spool = try StreamSpool(
      directory: directory.path, stream: "s", settings: SpoolSettings(limit: 1 << 20), disk: machine.start()
    ) { events.append($0) }
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    func stretches() throws -> [String] {
      try SpoolFolder.stretches(in: spool.path, disk: machine.start())
        .map { $0.split(separator: "/").last.map(String.init) ?? $0 }
    }
    let names = try stretches()
    try #require(try SpoolDirectory.inMemory(names).count == 1)
    machine.failFolderSyncs(with: EIO)
    try spool.finish(buffer.stretch, isDelivered: true)
    #expect(try stretches() == [])
    #expect(try SpoolDirectory.inMemory(names) == [])
    #expect(codes(events) == [EIO], "\(events.all)")
  }

  @Test("a refused sync of complete blocks is reported, and the next one tries again")
  func unsyncedBlocks() throws {
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(Seed(7).generator, folder: directory.path)
    let events = try EventLog<SpoolEvent>()
    var settings = SpoolSettings(limit: 1 << 20)
    // Shortly before the interval ends, the beginning of the next block makes the spool sync those before it.
    settings.syncInterval = .milliseconds(400)
    let spool = try StreamSpool(
      directory: directory.path, stream: "s", settings: settings, disk: machine.start()
    ) { events.append($0) }
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    // A steady stream has a new block every few milliseconds.
    func capture() { _ = ends.producer.write(minimum: 512, maximum: 512) { _ in 512 } }
    for round in 1...2 {
      machine.failNextSync(with: EIO)
      try SpoolDirectory.wait(for: "failure \(round)") {
        capture()
        return events.all.count >= 2 * round - 1
      }
      try SpoolDirectory.wait(for: "recovery \(round)") { events.all.count >= 2 * round }
    }
    #expect(codes(events) == [EIO, nil, EIO, nil] && events.all.last == .recovered, "\(events.all)")
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test("whichever write the disk refuses at the end of a stream without the server, the failure is reported")
  func refusedEnd() throws {
    var accepted = 0
    while true {
      let directory = try TemporaryDirectory()
      let machine = try SpoolMachine(Seed(8).generator, folder: directory.path)
      let events = try EventLog<SpoolEvent>()
      var settings = SpoolSettings(limit: 1 << 20)
      // No interval ends meanwhile.
      settings.syncInterval = .seconds(3600)
      func open() throws -> StreamSpool {
        try StreamSpool(directory: directory.path, stream: "s", settings: settings, disk: machine.start()) {
          events.append($0)
        }
      }
      let spool = try open()
      let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
      guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
      _ = ends.producer.write(minimum: 2 * 4064, maximum: 2 * 4064) { _ in 2 * 4064 }
      let path = try #require(try SpoolFolder.stretches(in: spool.path, disk: machine.start()).first)
      try SpoolDirectory.wait(for: "both blocks in the file") {
        try SpoolFile.open(path, access: .readOnly, disk: machine.start()).head == 2 * 4064
      }
      let before = machine.writeCount
      machine.failWrites(with: EIO, after: accepted)
      try spool.finish(buffer.stretch, isDelivered: false)
      let isRefused = machine.writeCount - before > accepted
      #expect(codes(events) == (isRefused ? [EIO] : []), "after \(accepted) writes: \(events.all)")
      machine.kill()
      let next = try open()
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
      let directory = try TemporaryDirectory()
      let machine = try SpoolMachine(Seed(9).generator, folder: directory.path)
      try left(10_000, machine, directory)
      let events = try EventLog<SpoolEvent>()
      var settings = SpoolSettings(limit: 1 << 20)
      settings.syncInterval = .milliseconds(10)
      machine.failWrites(with: ENOSPC, after: accepted)
      let spool = try StreamSpool(
        directory: directory.path, stream: "s", settings: settings, disk: machine.start()
      ) { events.append($0) }
      func isSettled() throws -> Bool { try SpoolDirectory.inMemory(spool.backlog).isEmpty }
      try SpoolDirectory.wait(for: "an end or a failure after \(accepted) writes") {
        try isSettled() || !events.all.isEmpty
      }
      if events.all.isEmpty { break }
      #expect(codes(events) == [ENOSPC], "after \(accepted) writes: \(events.all)")
      machine.failWrites(with: nil)
      try SpoolDirectory.wait(for: "the end after \(accepted) writes") { try isSettled() }
      try SpoolDirectory.wait(for: "the recovery after \(accepted) writes") { events.all.last == .recovered }
      accepted += 1
    }
    // At least the lock, the newest checkpoint again, the next one, and the record that nothing is in memory any more.
    #expect(accepted >= 4)
  }

  /// A spool in which a killed process has left this number of bytes.
  private func left(_ count: Int, _ machine: SpoolMachine, _ directory: TemporaryDirectory) throws {
    let spool = try StreamSpool(
      directory: directory.path, stream: "s", settings: SpoolSettings(limit: 8 << 20), disk: machine.start()
    ) { _ in }
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    while ends.producer.head < count {
      let (head, size) = (ends.producer.head, min(4096, count - Int(ends.producer.head)))
      while ends.producer.requestSpace(size) {
        try #require(waitUntilReadable(ends.producer.spaceDescriptor))
        ends.producer.drainSpaceSignals()
      }
      _ = ends.producer.write(minimum: size, maximum: size) { span in
        span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: head) }
        return size
      }
    }
    ends.producer.finish()
    try SpoolDirectory.wait(for: "everything on the disk") { buffer.stretch.notSynchronized(upTo: UInt64(count)) == 0 }
    machine.cutPower()
    withExtendedLifetime(spool) {}
  }

  @Test("what a killed process left in memory is written once the disk accepts it, although no stream asks for it")
  func settledLater() throws {
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(Seed(6).generator, folder: directory.path)
    let events = try EventLog<SpoolEvent>()
    var settings = SpoolSettings(limit: 1 << 20)
    settings.syncInterval = .milliseconds(10)
    func open() throws -> StreamSpool {
      try StreamSpool(directory: directory.path, stream: "s", settings: settings, disk: machine.start()) {
        events.append($0)
      }
    }
    do {
      let spool = try open()
      let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
      machine.failWrites(with: ENOSPC)
      guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
      _ = ends.producer.write(minimum: 5000, maximum: 5000) { span in
        span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: 0) }
        return 5000
      }
      machine.kill()
      withExtendedLifetime(spool) {}
    }
    machine.failWrites(with: ENOSPC)
    let count = events.all.count
    let spool = try open()
    try SpoolDirectory.wait(for: "a refused attempt") { events.all.count > count }
    try #require(try SpoolDirectory.inMemory(spool.backlog).count == 1)
    machine.failWrites(with: nil)
    try SpoolDirectory.wait(for: "everything on the disk") { try SpoolDirectory.inMemory(spool.backlog).isEmpty }
    for path in try SpoolFolder.stretches(in: spool.path, disk: machine.start()) {
      #expect(try SpoolFile.open(path, access: .readOnly, disk: machine.start()).head == 5000)
    }
  }

  @Test(
    "a stretch that cannot be opened for a while is examined and sent later",
    arguments: [EMFILE, ENFILE, ENOMEM, EAGAIN, ESTALE, EIO])
  func opens(code: Int32) throws {
    let seed = Seed(UInt64(code))
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(seed.generator, folder: directory.path)
    try left(50_000, machine, directory)
    let events = try EventLog<SpoolEvent>()
    var settings = SpoolSettings(limit: 8 << 20)
    settings.syncInterval = .milliseconds(10)
    // The first one is the lock.
    machine.failOpens(with: code, after: 1)
    let spool = try StreamSpool(
      directory: directory.path, stream: "s", settings: settings, disk: machine.start()
    ) { events.append($0) }
    try events.wait("the first attempt") { $0.first }
    let found = try EventLog<SpooledBacklog?>()
    spool.open(try #require(spool.backlog.first)) { stretch in
      if case .backlog(let backlog) = stretch { found.append(backlog) } else { found.append(nil) }
    }
    let before = machine.openCount
    try SpoolDirectory.wait(for: "more attempts", seed) { machine.openCount >= before + 10 }
    #expect(found.all.isEmpty)
    machine.failOpens(with: nil)
    let backlog = try #require(try found.wait("the stretch") { $0.first })
    #expect(backlog.kept == 0..<50_000)
    guard let ends = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    var consumer = ends.consumer
    var cursor: UInt64 = 0
    while cursor < 50_000 { try #require(try SpooledStretchTests.read(&consumer, &cursor, 8192, seed) == 0) }
    try SpoolDirectory.wait(for: "the end of the failure", seed) { events.all.last == .recovered }
    #expect(codes(events) == [code, nil], "\(events.all)")
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0)
    #expect(try SpoolFolder.stretches(in: spool.path, disk: machine.start()) == [])
  }

  @Test("a disk that cannot read for a while loses no byte of a backlog, whenever that is", arguments: Seed.several(6))
  func reads(seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(seed.generator, folder: directory.path)
    let count = Int.random(in: 100_000...3_000_000, using: &random)
    try left(count, machine, directory)
    let events = try EventLog<SpoolEvent>()
    var settings = SpoolSettings(limit: 8 << 20)
    settings.syncInterval = .milliseconds(10)
    // The age of data that cannot be read is unknown.
    settings.retention = .seconds(3600)
    let spool = try StreamSpool(
      directory: directory.path, stream: "s", settings: settings, disk: machine.start()
    ) { events.append($0) }
    let backlog = try #require(try spool.opened(spool.backlog.first))
    guard let ends = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    var consumer = ends.consumer
    var cursor: UInt64 = 0
    let code = [EIO, ENOMEM].randomElement(using: &random) ?? EIO
    while cursor < count {
      machine.failReads(with: code)
      let before = machine.readCount
      // Bytes that were loaded before can still be read. Then the disk is tried several times, including by the check
      // of ages.
      try SpoolDirectory.wait(for: "more attempts", seed) {
        switch consumer.read(at: cursor, maximum: 8192, { $0.byteCount }) {
        case .bytes(let read): cursor += UInt64(read)
        case .empty: break
        case .overwritten(let oldest): throw SpooledStretchTests.Failure(reason: "\(oldest) after \(cursor), \(seed)")
        }
        return cursor == count || machine.readCount >= before + 10
      }
      machine.failReads(with: nil)
      guard cursor < count else { break }
      try #require(try SpooledStretchTests.read(&consumer, &cursor, 8192, seed) == 0)
    }
    #expect(consumer.isFinished && consumer.head == UInt64(count))
    #expect(events.all.allSatisfy { if case .failing = $0 { true } else { $0 == .recovered } }, "\(events.all)")
    try SpoolDirectory.wait(for: "the end of the outage", seed) { events.all.last == .recovered }
    try spool.finish(backlog.stretch, isDelivered: true)
  }

  @Test("bytes that a working disk cannot read for too long count as lost, and bytes of a disk that is gone do not")
  func badSectors() throws {
    let directory = try TemporaryDirectory()
    let machine = try SpoolMachine(Seed(3).generator, folder: directory.path)
    try left(500_000, machine, directory)
    var settings = SpoolSettings(limit: 8 << 20)
    settings.syncInterval = .milliseconds(5)
    settings.readingPatience = .milliseconds(100)
    let spool = try StreamSpool(
      directory: directory.path, stream: "s", settings: settings, disk: machine.start()
    ) { _ in }
    let backlog = try #require(try spool.opened(spool.backlog.first))
    guard let ends = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    let consumer = ends.consumer
    machine.failReads(with: EIO, andWrites: true)
    let (began, before) = (MonotonicInstant.now, machine.readCount)
    try SpoolDirectory.wait(for: "attempts for longer than the patience") {
      guard case .empty = consumer.read(at: 0, maximum: 8192, { $0.byteCount }) else { return false }
      return machine.readCount > before + 20 && .now - began > .milliseconds(300)
    }
    machine.failReads(with: EIO)
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
