// The stretches of killed processes. A spool that is dropped without an end leaves the same as after SIGKILL: its files
// in their current state.

import EventLoops
import Glibc
import PropertyTesting
import Spool
import StreamBuffers
import Testing

@testable import SpooledStreams

@Suite("A spool whose process was killed")
struct KilledSpoolTests {
  /// The bytes that one process has captured and the text it has noted before it was killed.
  private struct Left {
    var total: UInt64
    var acknowledged: UInt64
    var words: String
    /// Whether the server needs none of it any more.
    var isDone: Bool { acknowledged == total && words.isEmpty }
  }

  /// Writes to a buffer, and releases its beginning.
  private static func capture(
    _ left: Left, _ buffer: SpooledBuffer, isUrgent: Bool = false, finishes: Bool = false
  ) throws {
    var ends = try buffer.ends()
    while ends.producer.head < left.total {
      let end = min(left.total, ends.producer.head + 4096)
      try ends.producer.capture(upTo: end)
      ends.consumer.release(upTo: min(end, left.acknowledged))
    }
    if !left.words.isEmpty { buffer.stretch.note(left.words, isUrgent: isUrgent) }
    if finishes { ends.producer.finish() }
  }

  @Test(
    "each stretch contains each byte that the server lacks, and nothing remains after the delivery",
    arguments: Seed.several(8))
  func killed(seed: Seed) throws {
    var random = seed.generator
    let directory = try SpoolDirectory()
    var stretches: [Left] = []
    for number in 0..<3 {
      let spool = try directory.open(
        syncInterval: [.milliseconds(10), .seconds(3600)].randomElement(using: &random)!)
      // Bytes that the previous process has left in memory are written to the disk.
      let before = spool.backlog
      try SpoolDirectory.wait(for: "what memory had", seed) { try SpoolDirectory.inMemory(before).isEmpty }
      let total = UInt64(random.size(upTo: 200_000))
      let left = Left(
        total: total, acknowledged: random.chance(30) ? total : .random(in: 0..<total, using: &random),
        words: random.chance(50) ? "how \(number)" : "")
      let buffer = try spool.begin(description: "\(number)", capacity: 64 << 10, overflow: .refuse)
      try Self.capture(left, buffer, isUrgent: random.chance(50))
      stretches.append(left)
      // A name begins with a time in milliseconds, and the order of two equal times is undefined.
      let now = WallClock.now.sinceEpoch
      while WallClock.now.sinceEpoch <= now { sched_yield() }
    }
    let spool = try directory.open()
    var found: [Int] = []
    for backlog in try spool.backlog.compactMap({ try spool.opened($0) }) {
      let number = try #require(Int(backlog.description))
      let left = stretches[number]
      found.append(number)
      #expect(backlog.resumption == left.words, "\(seed)")
      // The last acknowledgement may not have been noted. Its bytes are sent or requested once more.
      #expect(backlog.released <= left.acknowledged && backlog.kept.lowerBound <= left.acknowledged, "\(seed)")
      #expect(backlog.kept.upperBound == left.total || left.acknowledged == left.total, "\(seed): \(backlog.kept)")
      var consumer = try backlog.consumer()
      var cursor = left.acknowledged
      while cursor < left.total {
        try #require(try SpooledStretchTests.read(&consumer, &cursor, random.size(upTo: 8192), seed) == 0)
      }
      #expect(try spool.finish(backlog.stretch, isDelivered: true) == 0, "\(seed)")
    }
    #expect(found == found.sorted() && stretches.indices.allSatisfy { stretches[$0].isDone || found.contains($0) })
    #expect(try directory.stretches() == [], "\(seed)")
    #expect(try SpoolDirectory.inMemory(spool.backlog) == [], "\(seed)")
    #expect(directory.events.isEmpty, "\(seed): \(directory.events)")
  }

  @Test("the bytes of a file are sent although another version has written the part in memory, which stays as it is")
  func otherVersion() throws {
    let directory = try SpoolDirectory()
    let total: UInt64 = 5000
    do {
      let spool = try directory.open()
      let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
      try Self.capture(Left(total: total, acknowledged: 0, words: ""), buffer, finishes: true)
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == 0)
    }
    let memory = SharedStretch(id: try #require(try directory.newest()).id).bufferPath
    let foreign = [UInt8](repeating: 7, count: 1 << 20)
    let file = Glibc.open(memory, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
    try #require(file >= 0)
    defer { unlink(memory) }
    let written = write(file, foreign, foreign.count)
    close(file)
    try #require(written == foreign.count)
    let spool = try directory.open()
    let backlog = try #require(try spool.opened(spool.backlog.first), "\(directory.events)")
    #expect(backlog.kept == 0..<total)
    #expect(directory.events.contains(.unreadable(SpoolError(.notASpool, path: memory))), "\(directory.events)")
    try backlog.readAll(0..<total)
    try spool.finish(backlog.stretch, isDelivered: true)
    var status = stat()
    #expect(stat(memory, &status) == 0 && Int(status.st_size) == foreign.count)
  }

  @Test("stretches that are delivered while the spool examines them leave no file")
  func deliveredAtOnce() throws {
    let directory = try SpoolDirectory()
    for number in 0..<12 {
      let spool = try directory.open()
      let buffer = try spool.begin(description: "\(number)", capacity: 64 << 10, overflow: .refuse)
      try Self.capture(Left(total: 5000, acknowledged: 0, words: ""), buffer, finishes: true)
      #expect(try spool.finish(buffer.stretch, isDelivered: false) == 0)
    }
    let spool = try directory.open()
    let areOrdered = EndSignal()
    let areDelivered = try EventCounter()
    let delivered = areDelivered.descriptor
    let rest = Lock(spool.backlog.count)
    #expect(spool.backlog.count == 12)
    for name in spool.backlog {
      spool.open(name) { stretch in
        // On the spool's thread: all orders arrive before it examines the next stretch.
        areOrdered.wait()
        guard case .backlog(let stretch) = stretch else {
          Issue.record("\(name) was not opened")
          return
        }
        spool.end(stretch.stretch, isDelivered: true) { _ in
          let isLast = rest.withLock { count in
            count -= 1
            return count == 0
          }
          if isLast { areDelivered.signal() }
        }
      }
    }
    areOrdered.signal()
    try #require(waitUntilReadable(delivered))
    // After all work that has begun meanwhile.
    #expect(try spool.opened(spool.backlog.first) == nil)
    #expect(try directory.stretches() == [])
    #expect(directory.events.isEmpty, "\(directory.events)")
  }

  @Test("urgent texts are on the disk at once, however long the interval is")
  func urgent() throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open(syncInterval: .seconds(3600))
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    for words in ["how", "otherwise"] {
      buffer.stretch.note(words, isUrgent: true)
      try SpoolDirectory.wait(for: "\"\(words)\"") { try directory.newest()?.checkpoint.state == words }
    }
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test("captured bytes are on the disk after each interval")
  func intervals() throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open()
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    for total in [1000, 2000, 3000] as [UInt64] {
      _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
      try SpoolDirectory.wait(for: "byte \(total)") { try directory.newest()?.checkpoint.head == total }
    }
    ends.consumer.release(upTo: 3000)
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test("without memory that survives the process, bytes are on the disk within the interval")
  func eager() throws {
    let directory = try SpoolDirectory()
    let spool = try directory.open(syncInterval: .seconds(3600))
    // More than the file system in memory has. Only this process can have so much, as long as it does not use it.
    let buffer = try spool.begin(description: "", capacity: 1 << 40, overflow: .refuse)
    guard case .withoutSharedMemory(let error) = directory.events.first, directory.events.count == 1 else {
      Issue.record("\(directory.events)")
      return
    }
    #expect(error.code == ENOSPC)
    var ends = try buffer.ends()
    for total in [1000, 2000, 3000] as [UInt64] {
      _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
      try SpoolDirectory.wait(for: "byte \(total)") { try directory.newest()?.head == total }
    }
    ends.consumer.release(upTo: 3000)
    try spool.finish(buffer.stretch, isDelivered: true)
  }
}
