// Stretches that end while their process continues: what stays of them, and what the spool does afterwards.

import EventLoops
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
  /// A directory of this machine, for code that resolves a folder. The folder's content is on the test's disk.
  private let directory: TemporaryDirectory
  private let machine: SpoolMachine
  /// The events of all processes that were not killed.
  private let events: EventLog<SpoolEvent>

  init() throws {
    let directory = try TemporaryDirectory()
    try retryingInterrupts("mkdir") { mkdir("\(directory.path)/s", 0o700) }
    self.directory = directory
    events = try EventLog()
    machine = try SpoolMachine(Seed(7).generator, folder: directory.path)
  }

  private func open(limit: UInt64 = 1 << 20, isKilled: Bool = false) throws -> StreamSpool {
    var settings = SpoolSettings(limit: limit)
    settings.syncInterval = .milliseconds(10)
    return try StreamSpool(directory: directory.path, stream: "s", settings: settings, disk: machine.start()) {
      [events] event in if !isKilled { events.append(event) }
    }
  }

  private func stretches() throws -> [String] {
    try SpoolFolder.stretches(in: "\(directory.path)/s", disk: machine.start())
  }

  private func begin(_ spool: StreamSpool) throws -> SpooledBuffer {
    try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
  }

  private func ends(_ buffer: SpooledBuffer) throws -> CircularBuffer.CopiedEnds {
    guard let ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    return ends
  }

  /// Writes up to this position.
  private func capture(_ producer: inout CircularBuffer.Producer, upTo total: UInt64) throws {
    while producer.head < total {
      let (head, size) = (producer.head, Int(min(4096, total - producer.head)))
      while producer.requestSpace(size) {
        let hasSpace = waitUntilReadable(producer.spaceDescriptor)
        try #require(hasSpace)
        producer.drainSpaceSignals()
      }
      _ = producer.write(minimum: size, maximum: size) { span in
        span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: head) }
        return size
      }
    }
  }

  /// Leaves a stretch of this many bytes like a killed process.
  ///
  /// - Parameter isInMemory: whether the disk had no space for any of it.
  private func leave(_ total: UInt64, isInMemory: Bool = false) throws {
    if isInMemory { machine.failWrites(with: ENOSPC) }
    let spool = try open(isKilled: true)
    let buffer = try begin(spool)
    var ends = try ends(buffer)
    try capture(&ends.producer, upTo: total)
    // The disk has space again.
    machine.kill()
    withExtendedLifetime(spool) {}
  }

  /// Reads the whole stretch, which nobody has read so far, and ends it as delivered. Nothing remains.
  private func deliver(_ total: UInt64, _ spool: StreamSpool) throws {
    let backlog = try #require(try spool.opened(spool.backlog.first), "\(events.all)")
    #expect(backlog.kept == 0..<total)
    guard let ends = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    var consumer = ends.consumer
    var cursor: UInt64 = 0
    while cursor < total {
      let lost = try SpooledStretchTests.read(&consumer, &cursor, 8192, Seed(1))
      try #require(lost == 0)
    }
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0)
    #expect(try stretches() == [] && SpoolDirectory.inMemory(spool.backlog) == [])
  }

  @Test(
    "a stretch that ends while the disk refuses its bytes leaves them in memory, and reports their number",
    arguments: [false, true])
  func refusedAtEnd(isOfEarlierProcess: Bool) throws {
    let total: UInt64 = 5000
    if isOfEarlierProcess {
      try leave(total, isInMemory: true)
      machine.failWrites(with: ENOSPC)
      let spool = try open()
      let backlog = try #require(try spool.opened(spool.backlog.first))
      #expect(try spool.finish(backlog.stretch, isDelivered: false) == total)
    } else {
      let spool = try open()
      let buffer = try begin(spool)
      machine.failWrites(with: ENOSPC)
      var ends = try ends(buffer)
      try capture(&ends.producer, upTo: total)
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == total)
    }
    machine.kill()
    try deliver(total, try open())
  }

  @Test(
    "a stretch that was not delivered is opened again by the same process, even if it had no file at first",
    arguments: [false, true])
  func openedAgain(isInMemory: Bool) throws {
    let total: UInt64 = 20_000
    try leave(total, isInMemory: isInMemory)
    let spool = try open()
    for _ in 0..<2 {
      let backlog = try #require(try spool.opened(spool.backlog.first), "\(events.all)")
      #expect(backlog.kept == 0..<total)
      #expect(try spool.finish(backlog.stretch, isDelivered: false) == 0)
    }
    try deliver(total, spool)
    #expect(events.all.isEmpty, "\(events.all)")
  }

  @Test("the texts of an earlier stretch are on the disk after each interval, also after the end of a stream")
  func intervals() throws {
    try leave(20_000)
    let spool = try open()
    let backlog = try #require(try spool.opened(spool.backlog.first))
    let buffer = try begin(spool)
    var ends = try ends(buffer)
    try capture(&ends.producer, upTo: 5000)
    ends.consumer.release(upTo: 5000)
    // No commit follows for it.
    buffer.stretch.noteWithRelease("delivered")
    #expect(try spool.finish(buffer.stretch, isDelivered: true) == 0)
    let path = try #require(try stretches().first)
    for round in 1...3 {
      backlog.stretch.noteWithRelease("\(round)")
      backlog.stretch.release(upTo: UInt64(1000 * round))
      try SpoolDirectory.wait(for: "text \(round)") {
        let file = try? SpoolFile.open(path, access: .readOnly, disk: machine.start())
        return file?.checkpoint.state == "\(round)"
      }
    }
    #expect(events.all.isEmpty, "\(events.all)")
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0 && stretches() == [])
  }

  @Test("at the limit, the oldest bytes of all stretches make room, and no others")
  func limit() throws {
    try leave(200_000)
    let spool = try open(limit: 300_000)
    try SpoolDirectory.wait(for: "what memory had") { try SpoolDirectory.inMemory(spool.backlog).isEmpty }
    let buffer = try begin(spool)
    var ends = try ends(buffer)
    try capture(&ends.producer, upTo: 250_000)
    try SpoolDirectory.wait(for: "the bytes on the disk") { buffer.stretch.notSynchronized(upTo: 250_000) == 0 }
    let earlier = try #require(try spool.opened(spool.backlog.first)).stretch
    #expect((150_000...155_000).contains(earlier.oldest) && buffer.stretch.oldest == 0, "\(earlier.oldest)")
    try capture(&ends.producer, upTo: 400_000)
    try SpoolDirectory.wait(for: "the other bytes on the disk") { buffer.stretch.notSynchronized(upTo: 400_000) == 0 }
    #expect(earlier.oldest == 200_000 && (100_000...105_000).contains(buffer.stretch.oldest))
    #expect(events.all.isEmpty, "\(events.all)")
    for stretch in [earlier, buffer.stretch] { #expect(try spool.finish(stretch, isDelivered: true) == 0) }
    #expect(try stretches() == [])
  }

  // MARK: On a real disk

  @Test("a delivered stretch whose file another program has removed leaves nothing in memory, which is no failure")
  func removedByOthers() throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open()
    let buffer = try begin(spool)
    var ends = try ends(buffer)
    try capture(&ends.producer, upTo: 5000)
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
      var ends = try ends(buffer)
      try capture(&ends.producer, upTo: 5000)
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
