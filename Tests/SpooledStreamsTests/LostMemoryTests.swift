// A killed process's data in memory that is removed or changed before the next process reads it.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import StreamBuffers
import Testing

@testable import SpooledStreams

@Suite("A killed process's data in memory is lost")
struct LostMemoryTests {
  enum Change: CaseIterable, Sendable { case truncated, removed, random, zeroed }

  enum Place: CaseIterable, Sendable {
    case data, description, both

    var hasData: Bool { self != .description }
    var hasDescription: Bool { self != .data }
  }

  /// Where the captured bytes are when the process is killed.
  enum Extent: CaseIterable, Sendable {
    /// The disk had no space for a file.
    case memory
    /// The disk has a file without any of them, because the spool's thread was busy from the start on.
    case start
    /// The disk has complete blocks only.
    case partly
    case disk
  }

  private static let total: UInt64 = 10_000
  private static let inBlocks: UInt64 = 2 * 4064
  /// The size of the buffer in memory. Once a quarter of it is full, the spool's thread copies, however long the
  /// interval is. ``total`` is more than that.
  private static let capacity = 32 << 10
  private let rig: SpoolOnMachine

  init() throws { rig = try SpoolOnMachine(Seed(1)) }

  /// The only file of the spool, as another process sees it; nil if there is none.
  private func storedFile() throws -> SpoolFile? { try rig.stretches().first.map { try rig.file($0) } }

  /// Captures bytes, and is killed. Returns the path of the data in memory.
  private func capture(_ extent: Extent) throws -> String {
    rig.machine.kill()
    if extent == .memory { rig.machine.failWrites(with: ENOSPC) }
    let isLate = extent == .partly || extent == .start
    let spool = try rig.open(syncInterval: isLate ? .seconds(3600) : .milliseconds(10))
    // Until then, the spool's thread does nothing else.
    let isKilled = EndSignal()
    defer { isKilled.signal() }
    if extent == .start { spool.open("none") { _ in isKilled.wait() } }
    let buffer = try spool.begin(description: "d", capacity: Self.capacity, overflow: .refuse)
    var ends = try buffer.ends()
    ends.producer.capture(Int(Self.total))
    switch extent {
    case .memory, .start: break
    case .partly: try SpoolDirectory.wait(for: "complete blocks") { try storedFile()?.head == Self.inBlocks }
    case .disk:
      try SpoolDirectory.wait(for: "everything on the disk") {
        guard let file = try storedFile() else { return false }
        return file.checkpoint.head == Self.total && file.needsNoMemory
      }
    }
    rig.machine.kill()
    // The spool's thread, which has no disk any more, must not read the memory that a test changes.
    let isIdle = EndSignal()
    isKilled.signal()
    spool.open("none") { _ in isIdle.signal() }
    isIdle.wait()
    rig.machine.failWrites(with: nil)
    if extent != .memory { return SharedStretch(id: try #require(try storedFile()).id).bufferPath }
    let left = SharedStretch.withoutFile(in: SpoolFolder.resolved(rig.folder))
    #expect(left.count == 1 && left.first?.text == "d")
    return SharedStretch(id: try #require(left.first).identity.id).bufferPath
  }

  /// Changes a file if it is there.
  private func change(_ path: String, _ change: Change) throws {
    var status = stat()
    guard stat(path, &status) == 0 else { return }
    switch change {
    case .removed: try retryingInterrupts("unlink") { unlink(path) }
    case .truncated: try retryingInterrupts("truncate") { truncate(path, 0) }
    case .random, .zeroed:
      var random = Seed(7).generator
      let bytes: [UInt8] = (0..<Int(status.st_size)).map { _ in
        change == .zeroed ? 0 : UInt8(truncatingIfNeeded: random.next())
      }
      try overwrite(path, bytes, at: 0)
    }
  }

  private func overwrite(_ path: String, _ bytes: [UInt8], at offset: Int) throws {
    let file = Glibc.open(path, O_WRONLY | O_CLOEXEC)
    try #require(file >= 0)
    defer { close(file) }
    let count = pwrite(file, bytes, bytes.count, off_t(offset))
    try #require(count == bytes.count)
  }

  /// Reads what the next process has, and ends it as delivered. Returns how many bytes it has; nil for nothing to send.
  private func deliver() throws -> UInt64? {
    // The former process has ended.
    rig.machine.kill()
    let spool = try rig.open()
    guard let backlog = try spool.opened(spool.backlog.first) else { return nil }
    try backlog.readAll(backlog.kept)
    try spool.finish(backlog.stretch, isDelivered: true)
    return UInt64(backlog.kept.count)
  }

  /// The offsets from which bytes may be missing, as reported.
  private var doubts: [UInt64] {
    rig.events.all.compactMap { event in
      guard case .damaged(_, let damage) = event, damage.kind == .lostMemory else { return nil }
      return event.reportsDoubt ? damage.lostPositions.lowerBound : nil
    }
  }

  @Test(
    "is reported with its offset, unless all of it was on the disk, and the rest is sent",
    arguments: Change.allCases, Place.allCases)
  func lost(change: Change, place: Place) throws {
    for extent in [Extent.start, .partly, .disk] {
      let test = try LostMemoryTests()
      let path = try test.capture(extent)
      defer { unlink(path) }
      if place.hasData { try test.change(path, change) }
      if place.hasDescription { try test.change(path + ".stretch", change) }
      let isLost = place.hasData && extent != .disk
      let onDisk: UInt64 = extent == .start ? 0 : Self.inBlocks
      // Before the next process begins, the file itself shows it.
      let file = try #require(try test.storedFile())
      try file.settleDoubt()
      #expect(try file.hasLostMemory == isLost && file.verify().hasLoss == isLost, "\(extent)")
      let rest: UInt64? = !isLost ? Self.total : onDisk > 0 ? onDisk : nil
      #expect(try test.deliver() == rest, "\(extent)")
      #expect(test.doubts == (isLost ? [onDisk] : []), "\(extent): \(test.rig.events.all)")
      // The file stays for the operator. Nothing of it is sent again, and each run reports the loss.
      let count = test.rig.events.all.count
      #expect(try test.deliver() == nil, "\(extent)")
      #expect(try test.rig.stretches().count == (isLost ? 1 : 0), "\(extent)")
      #expect(test.rig.events.all.dropFirst(count).contains { $0.reportsDoubt } == isLost, "\(extent)")
    }
  }

  @Test(
    "is reported if only one of the two files of a stretch without a file on the disk is there",
    arguments: Change.allCases, Place.allCases)
  func lostWithoutFile(change: Change, place: Place) throws {
    let path = try capture(.memory)
    defer {
      unlink(path)
      unlink(path + ".stretch")
    }
    if place.hasData { try self.change(path, change) }
    if place.hasDescription { try self.change(path + ".stretch", change) }
    switch place {
    case .data:
      #expect(try deliver() == nil)
      #expect(doubts == [0], "\(rig.events.all)")
      let file = try #require(try storedFile())
      #expect(file.hasLostMemory && file.head == 0 && file.description == "d")
    case .description:
      // All bytes are there. Nothing shows where to send them.
      rig.machine.kill()
      do {
        let spool = try rig.open()
        let backlog = try #require(try spool.opened(spool.backlog.first))
        #expect(backlog.kept == 0..<Self.total && backlog.description.isEmpty)
        #expect(try spool.finish(backlog.stretch, isDelivered: false) == 0)
      }
      let file = try #require(try storedFile())
      #expect(file.head == Self.total && !file.mayLackBytes && doubts.isEmpty, "\(rig.events.all)")
    case .both:
      #expect(try deliver() == nil)
      #expect(try rig.stretches() == [] && doubts.isEmpty, "\(rig.events.all)")
    }
  }

  @Test("is noticed if only its bytes were changed, because they differ from those on the disk")
  func changedBytes() throws {
    let path = try capture(.partly)
    defer { unlink(path) }
    // The words stay.
    var status = stat()
    #expect(stat(path, &status) == 0)
    let start = Int(status.st_size) - Self.capacity
    try overwrite(path, [UInt8](repeating: 0, count: Self.capacity), at: start)
    #expect(try deliver() == Self.inBlocks)
    #expect(doubts == [Self.inBlocks], "\(rig.events.all)")
  }

  @Test("is no loss after a clean end, nor after the next process has written all of it to the disk")
  func settled() throws {
    do {
      let spool = try rig.open(syncInterval: .seconds(3600))
      let buffer = try spool.begin(description: "d", capacity: 64 << 10, overflow: .refuse)
      var ends = try buffer.ends()
      ends.producer.capture(Int(Self.total))
      ends.producer.finish()
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == 0)
    }
    let file = try #require(try storedFile())
    #expect(file.needsNoMemory && !SharedStretch(id: file.id).isThere)
    #expect(try deliver() == Self.total)
    #expect(try rig.stretches() == [])
    let path = try capture(.partly)
    do {
      let spool = try rig.open()
      try SpoolDirectory.wait(for: "what memory had") { access(path, F_OK) != 0 }
      withExtendedLifetime(spool) {}
    }
    #expect(try deliver() == Self.total)
    #expect(try rig.stretches() == [] && doubts.isEmpty, "\(rig.events.all)")
  }

  @Test("is a possible loss before the first byte is captured, and none after an interval without one")
  func recorded() throws {
    let spool = try rig.open()
    let isRecorded = EndSignal()
    defer { isRecorded.signal() }
    // The spool's thread does nothing else until then.
    spool.open("none") { _ in isRecorded.wait() }
    let buffer = try spool.begin(description: "d", capacity: Self.capacity, overflow: .refuse)
    let file = try #require(try storedFile())
    #expect(file.needsMemory && !file.needsNoMemory)
    isRecorded.signal()
    try SpoolDirectory.wait(for: "no need for memory") { try storedFile()?.needsNoMemory == true }
    #expect(try spool.finish(buffer.stretch, isDelivered: true) == 0)
    #expect(rig.events.all.isEmpty, "\(rig.events.all)")
  }

  @Test("is no loss if the server has acknowledged all of it")
  func acknowledged() throws {
    let spool = try rig.open()
    let buffer = try spool.begin(description: "d", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    for round in 1...3 as ClosedRange<UInt64> {
      ends.producer.capture(1000)
      try SpoolDirectory.wait(for: "a record of bytes in memory, or all on the disk") {
        guard let file = try storedFile() else { return false }
        return file.needsMemory || file.head == round * 1000
      }
      ends.consumer.release(upTo: round * 1000)
      try SpoolDirectory.wait(for: "no need for memory") { try storedFile()?.needsNoMemory == true }
    }
    let file = try #require(try storedFile())
    SharedStretch(id: file.id).remove()
    // The last acknowledgement may not be on the disk. Its bytes are there.
    _ = try deliver()
    #expect(try rig.stretches() == [] && doubts.isEmpty, "\(rig.events.all)")
    withExtendedLifetime(spool) {}
  }

  @Test("is not reported by others while a process uses the stream")
  func inUse() throws {
    let path = try capture(.partly)
    unlink(path)
    let file = try #require(try storedFile())
    try file.settleDoubt(isInUse: true)
    #expect(!file.mayLackBytes && file.needsMemory)
    try file.settleDoubt()
    #expect(file.mayLackBytes)
  }
}
