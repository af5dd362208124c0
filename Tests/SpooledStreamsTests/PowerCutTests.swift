// The stretches after a power failure, which destroys the memory in which a killed process leaves its last bytes, and
// everything that is only in the disk's cache.

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

  private let rig: SpoolOnMachine
  private let seed: Seed

  private func waitForSync(after count: Int) throws {
    try SpoolDirectory.wait(for: "a sync", seed) { rig.machine.syncCount > count }
  }

  private init(_ seed: Seed) throws {
    self.seed = seed
    rig = try SpoolOnMachine(seed)
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
    if moment == .withoutFile { rig.machine.failWrites(with: ENOSPC) }
    let spool = try rig.open(syncInterval: moment.awaitsInterval ? .milliseconds(10) : .seconds(3600))
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    buffer.stretch.note(words, isUrgent: false)
    while ends.producer.head < total {
      let end = min(total, ends.producer.head + 4096)
      try ends.producer.capture(upTo: end)
      ends.consumer.release(upTo: min(end, acknowledged))
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
      let count = rig.machine.syncCount
      buffer.stretch.note(words, isUrgent: true)
      try waitForSync(after: count)
    case .settled, .undelivered, .delivery, .laterWords, .withoutFile:
      rig.machine.kill()
      rig.machine.failWrites(with: moment == .laterWords ? EIO : nil)
      let before = rig.events.all.count
      let next = try rig.open(syncInterval: moment.awaitsInterval ? .milliseconds(10) : .seconds(3600))
      if moment == .laterWords {
        // It is settled when it is opened, because that was impossible before.
        try SpoolDirectory.wait(for: "a failure", seed) { rig.events.all.count > before }
        rig.machine.failWrites(with: nil)
      }
      let backlog = try #require(try next.opened(next.backlog.first), "\(seed)")
      try SpoolDirectory.wait(for: "what memory had", seed) { try SpoolDirectory.inMemory(next.backlog).isEmpty }
      if moment == .undelivered {
        #expect(try next.finish(backlog.stretch, isDelivered: false) == 0, "\(seed)")
      }
      if moment == .laterWords {
        words = "later"
        let count = rig.machine.syncCount
        backlog.stretch.note(words, isUrgent: false)
        try waitForSync(after: count)
      }
      if moment == .delivery {
        words = "delivered further"
        released = .random(in: acknowledged..<total, using: &random)
        let count = rig.machine.syncCount
        backlog.stretch.noteWithRelease(words)
        backlog.stretch.release(upTo: released)
        try waitForSync(after: count)
      }
      withExtendedLifetime(next) {}
    }
    rig.machine.cutPower()
    try check(words, total: moment == .urgentWords ? nil : total, released: acknowledged...released)
    withExtendedLifetime((spool, buffer)) {}
  }

  /// Checks what the next process finds after the power returns.
  private func check(_ words: String, total: UInt64?, released: ClosedRange<UInt64>) throws {
    for name in try SpoolDirectory.inMemory(rig.names()) { unlink("/dev/shm/\(name)") }
    let spool = try rig.open(syncInterval: .seconds(3600))
    let backlog = try #require(try spool.opened(spool.backlog.first), "\(seed)")
    #expect(spool.backlog.count == 1 && backlog.resumption == words, "\(seed): \(backlog.resumption)")
    #expect(total == nil || backlog.kept.upperBound == total, "\(seed): \(backlog.kept) of \(total ?? 0)")
    // The last acknowledgement may not have been noted. Its bytes are sent or requested once more.
    #expect(backlog.kept.lowerBound <= released.upperBound, "\(seed): \(backlog.kept), \(released)")
    // The server's present offset. If only the words were reported as synced, the kept bytes may end before it.
    let offset = max(released.lowerBound, backlog.kept.lowerBound)
    try backlog.readAll(min(offset, backlog.kept.upperBound)..<backlog.kept.upperBound, seed)
    #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0, "\(seed)")
  }
}
