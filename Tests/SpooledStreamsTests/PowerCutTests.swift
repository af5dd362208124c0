// The stretches after a power failure, which destroys the memory in which a killed process leaves its last bytes, and
// everything that is only in the disk's cache.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import SpooledStreams
import StreamBuffers
import Testing

@Suite("A spool after a power cut")
struct PowerCutTests {
  /// The moment of the power failure. At each of them, the spool has called some data safe.
  enum Moment: CaseIterable, Sendable {
    /// While the source continues. The stretch has reported that no byte would be lost.
    case interval
    /// After the source's end, during an interval. The stretch has reported that no byte would be lost.
    case sourceEnd
    /// After a stream that ended without the server. Its end has reported that no byte exists only in memory.
    case streamEnd
    /// After the process was killed. The next one has removed its memory.
    case settled
    /// The same, but the next one has ended its delivery without the server.
    case undelivered
    /// During an interval. An urgent text was synced.
    case urgentWords
    /// In a later process's delivery, during an interval, of a stretch that has just left memory. A text without a
    /// release was synced, because it exists in no memory.
    case laterWords
    /// After the process was killed on a disk without space for its file. The next one has removed its memory.
    case withoutFile
    /// In a later process's delivery. The text of a release was synced after an interval.
    case delivery

    /// Whether the interval is over before the power fails.
    var awaitsInterval: Bool { self == .interval || self == .delivery }
  }

  /// A directory of this machine, for code that resolves a folder. The folder's content is on the test's disk.
  private let directory: TemporaryDirectory
  private let machine: SpoolMachine
  private let seed: Seed

  /// The events of all processes.
  private let events: EventLog<SpoolEvent>

  private func open(_ interval: Duration) throws -> StreamSpool {
    var settings = SpoolSettings(limit: 1 << 20)
    settings.syncInterval = interval
    return try StreamSpool(directory: directory.path, stream: "s", settings: settings, disk: machine.start()) {
      [events] event in events.append(event)
    }
  }

  private func waitForSync(after count: Int) throws {
    try SpoolDirectory.wait(for: "a sync", seed) { machine.syncCount > count }
  }

  private init(_ seed: Seed) throws {
    self.seed = seed
    let directory = try TemporaryDirectory()
    try retryingInterrupts("mkdir") { mkdir("\(directory.path)/s", 0o700) }
    self.directory = directory
    events = try EventLog()
    machine = try SpoolMachine(seed.generator, folder: directory.path)
  }

  @Test(
    "a power cut destroys no byte that the spool has reported as synced", arguments: Moment.allCases, Seed.several(6))
  static func cut(moment: Moment, seed: Seed) throws { try PowerCutTests(seed).cut(moment) }

  private func cut(_ moment: Moment) throws {
    var random = SplitMix64(state: seed.value ^ 1)
    // Without a file, the memory's capacity is the limit.
    let total = UInt64(random.size(upTo: moment == .withoutFile ? 64_000 : 200_000))
    let acknowledged = UInt64.random(in: 0..<total, using: &random)
    var words = "before"
    var released = acknowledged
    if moment == .withoutFile { machine.failWrites(with: ENOSPC) }
    let spool = try open(moment.awaitsInterval ? .milliseconds(10) : .seconds(3600))
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    buffer.stretch.note(words, isUrgent: false)
    while ends.producer.head < total {
      let (head, size) = (ends.producer.head, Int(min(4096, total - ends.producer.head)))
      while ends.producer.requestSpace(size) {
        try #require(waitUntilReadable(ends.producer.spaceDescriptor))
        ends.producer.drainSpaceSignals()
      }
      _ = ends.producer.write(minimum: size, maximum: size) { span in
        span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: head) }
        return size
      }
      ends.consumer.release(upTo: min(ends.producer.head, acknowledged))
    }
    switch moment {
    case .interval, .sourceEnd:
      if moment == .sourceEnd { ends.producer.finish() }
      try SpoolDirectory.wait(for: "the end of the stretch on the disk", seed) {
        buffer.stretch.notSynchronized(upTo: total) == 0
      }
    case .streamEnd:
      if random.chance(50) { ends.producer.finish() }
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == 0, "\(seed)")
    case .urgentWords:
      words = "urgent"
      let count = machine.syncCount
      buffer.stretch.note(words, isUrgent: true)
      try waitForSync(after: count)
    case .settled, .undelivered, .delivery, .laterWords, .withoutFile:
      machine.kill()
      machine.failWrites(with: moment == .laterWords ? EIO : nil)
      let before = events.all.count
      let next = try open(moment.awaitsInterval ? .milliseconds(10) : .seconds(3600))
      if moment == .laterWords {
        // It is settled when it is opened, because that was impossible before.
        try SpoolDirectory.wait(for: "a failure", seed) { events.all.count > before }
        machine.failWrites(with: nil)
      }
      let backlog = try #require(try next.opened(next.backlog.first), "\(seed)")
      try SpoolDirectory.wait(for: "what memory had", seed) { try SpoolDirectory.inMemory(next.backlog).isEmpty }
      if moment == .undelivered {
        #expect(try next.finish(backlog.stretch, isDelivered: false) == 0, "\(seed)")
      }
      if moment == .laterWords {
        words = "later"
        let count = machine.syncCount
        backlog.stretch.note(words, isUrgent: false)
        try waitForSync(after: count)
      }
      if moment == .delivery {
        words = "delivered further"
        released = .random(in: acknowledged..<total, using: &random)
        let count = machine.syncCount
        backlog.stretch.noteWithRelease(words)
        backlog.stretch.release(upTo: released)
        try waitForSync(after: count)
      }
      withExtendedLifetime(next) {}
    }
    machine.cutPower()
    try check(words, total: moment == .urgentWords ? nil : total, released: acknowledged...released)
    withExtendedLifetime((spool, buffer)) {}
  }

  /// Checks what the next process finds after the power returns.
  private func check(_ words: String, total: UInt64?, released: ClosedRange<UInt64>) throws {
    let folder = "\(directory.path)/s"
    let names = try SpoolFolder.stretches(in: folder, disk: machine.start()).map { $0.dropFirst(folder.count + 1) }
    for name in try SpoolDirectory.inMemory(names.map { String($0) }) { unlink("/dev/shm/\(name)") }
    let spool = try open(.seconds(3600))
    let backlog = try #require(try spool.opened(spool.backlog.first), "\(seed)")
    #expect(spool.backlog.count == 1 && backlog.resumption == words, "\(seed): \(backlog.resumption)")
    #expect(total == nil || backlog.kept.upperBound == total, "\(seed): \(backlog.kept) of \(total ?? 0)")
    // The last acknowledgement may not have been noted. Its bytes are sent or requested once more.
    #expect(backlog.kept.lowerBound <= released.upperBound, "\(seed): \(backlog.kept), \(released)")
    guard let ends = backlog.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    var consumer = ends.consumer
    // The server's present offset.
    var cursor = max(released.lowerBound, backlog.kept.lowerBound)
    while cursor < backlog.kept.upperBound {
      try #require(try SpooledStretchTests.read(&consumer, &cursor, 8192, seed) == 0, "\(seed): \(cursor)")
    }
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0, "\(seed)")
  }
}
