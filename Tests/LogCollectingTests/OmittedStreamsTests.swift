// Streams that one collector after another omits, and those that they collect meanwhile.

import PropertyTesting
import StreamServing
import Testing

@testable import LogCollecting

@Suite("Streams that a collector omits")
struct OmittedStreamsTests {
  /// One collector, which applies messages to lists.
  private struct Collector {
    var omitted: OmittedStreams
    /// The messages that were applied, by stream.
    var applied: [[UInt64]]
    var reached: CollectorCheckpoint.Position
    /// The last message that the next collector need not read.
    var position: CollectorCheckpoint.Position
    /// Whether messages are not applied yet, by stream.
    var waits: [Bool]
    /// The messages that wait, by stream.
    private var queues: [[UInt64]]

    init(
      after checkpoint: CollectorCheckpoint, omitting names: Set<StreamName>, waiting waits: [Bool],
      _ applied: [[UInt64]]
    ) {
      omitted = OmittedStreams(names, after: checkpoint)
      (self.applied, self.waits, queues) = (applied, waits, applied.map { _ in [UInt64]() })
      reached = checkpoint.position
      position = reached
    }

    mutating func read(_ sequence: UInt64, of index: Int, _ name: StreamName) {
      if !omitted.isApplied(sequence, of: name) {
        if omitted.contains(name) {
          omitted.omit("t\(index)", of: name, at: sequence, isLast: false)
        } else {
          queues[index].append(sequence)
        }
      }
      reached = .init(sequence: sequence, mark: "m\(sequence)")
      for index in queues.indices where !waits[index] {
        applied[index] += queues[index]
        queues[index] = []
      }
    }

    mutating func checkpoint(_ names: [StreamName]) throws -> CollectorCheckpoint {
      var waiting: [StreamName: UInt64] = [:]
      for (name, queue) in zip(names, queues) { waiting[name] = queue.first }
      let first = waiting.values.min() ?? .max
      while position.sequence < reached.sequence, position.sequence + 1 < first,
        omitted.isBeforeAll(position.sequence + 1)
      {
        position = .init(sequence: position.sequence + 1, mark: "m\(position.sequence + 1)")
      }
      var checkpoint = CollectorCheckpoint(stream: "sluice", created: "now", partition: "1/1")
      checkpoint.position = position
      omitted.describe(in: &checkpoint, with: [], waiting: waiting, reached: reached)
      let text = try #require(checkpoint.text)
      return try #require(CollectorCheckpoint(parsing: text))
    }
  }

  @Test(
    "each message is applied once, in the order of its stream, whichever streams are omitted or wait, and whenever a collector is killed",
    arguments: Seed.several(100))
  func once(_ seed: Seed) throws {
    var random = seed.generator
    let names = (0..<4).map { StreamName(path: "/k", streamID: "s\($0)", mediaType: nil) }
    // The stream of each message. Message 1 is the first one.
    var log: [Int] = []
    var stored = names.map { _ in [UInt64]() }
    var checkpoint = CollectorCheckpoint(stream: "sluice", created: "now", partition: "1/1")
    let lives = 20
    for life in 1...lives {
      let count = Int.random(in: 0...10, using: &random)
      for _ in 0..<count { log.append(Int.random(in: 0..<names.count, using: &random)) }
      var unreadable: Set<StreamName> = []
      if life < lives { for name in names where random.chance(30) { unreadable.insert(name) } }
      let waits = names.map { _ in life < lives && random.chance(30) }
      var collector = Collector(after: checkpoint, omitting: unreadable, waiting: waits, stored)
      for index in Int(checkpoint.position.sequence)..<log.count {
        // Killed: the next one begins at the last checkpoint.
        if life < lives, random.chance(5) { break }
        for other in names.indices where random.chance(20) { collector.waits[other] = false }
        collector.read(UInt64(index + 1), of: log[index], names[log[index]])
        guard random.chance(40) || index == log.count - 1 else { continue }
        (checkpoint, stored) = (try collector.checkpoint(names), collector.applied)
        #expect(checkpoint.omissions.count <= names.count)
      }
    }
    for index in names.indices {
      let all = log.indices.filter { log[$0] == index }.map { UInt64($0 + 1) }
      #expect(stored[index] == all, "\(seed)")
    }
    #expect(checkpoint.position.sequence == UInt64(log.count))
    #expect(checkpoint.applied == nil && checkpoint.omissions.isEmpty)
  }

  /// A checkpoint after message 9, with a stream whose messages are omitted from this one on.
  private func checkpoint(omittingFrom sequence: UInt64) -> CollectorCheckpoint {
    var checkpoint = CollectorCheckpoint(stream: "sluice", created: "now", partition: "1/1")
    checkpoint.applied = .init(sequence: 9, mark: "m9")
    checkpoint.omissions = [.init(base: "k-s0", sequence: sequence)]
    return checkpoint
  }

  @Test("another message in the place of the last one that was applied shows that the brokers have lost messages")
  func replaced() {
    var checkpoint = checkpoint(omittingFrom: 5)
    checkpoint.position = .init(sequence: 4, mark: "m4")
    var omitted = OmittedStreams([], after: checkpoint)
    func isReplaced(_ sequence: UInt64, _ mark: String, at time: Int64 = 900) -> Bool {
      omitted.isReplaced(.init(sequence: sequence, mark: mark, time: time))
    }
    #expect(isReplaced(9, "another") && !isReplaced(9, "m9") && !isReplaced(8, "another"))
    omitted.rewind()
    #expect(!omitted.mayBeApplied(1))
  }

  @Test("a checkpoint states nothing about uploads of the former log when the log is read again from its beginning")
  func forgottenUploads() {
    var checkpoint = checkpoint(omittingFrom: 5)
    let origin = UploadOrigin(
      path: "/k", mediaType: nil, streamID: "s0", streamStart: 0, owner: nil, isLive: true, description: nil)
    checkpoint.uploads = [.init(token: "t", origin: origin, segmentStart: 0, offset: 9)]
    var omitted = OmittedStreams([origin.name], after: checkpoint)
    func described() -> [CollectorCheckpoint.Upload] {
      var next = checkpoint
      omitted.describe(in: &next, with: [], waiting: [:], reached: .beginning)
      return next.uploads
    }
    #expect(described() == checkpoint.uploads && omitted.stream(ofToken: "t") == origin.name)
    omitted.rewind()
    #expect(described() == [] && omitted.stream(ofToken: "t") == nil)
  }

  @Test("a message that was stored later than all that were applied replaces one of them, if it is not after the last")
  func storedLater() {
    var checkpoint = checkpoint(omittingFrom: 5)
    checkpoint.position = .init(sequence: 4, mark: "m4", time: 400)
    func isReplaced(_ sequence: UInt64, at time: Int64) -> Bool {
      OmittedStreams([], after: checkpoint).isReplaced(.init(sequence: sequence, mark: "m9", time: time))
    }
    // An earlier version has written no time.
    #expect(!isReplaced(8, at: 901))
    checkpoint.applied?.time = 900
    #expect(isReplaced(8, at: 901) && !isReplaced(8, at: 900) && !isReplaced(10, at: 901))
  }

  @Test("messages of an upload that was applied are passed over until its last one, or until the last that was applied")
  func passedUploads() {
    var omitted = OmittedStreams([], after: checkpoint(omittingFrom: 1))
    for (token, name) in [("a", StreamName(base: "k-s1")), ("b", nil)] { omitted.pass(token, of: name, isLast: false) }
    omitted.pass("c", of: nil, isLast: true)
    var found = ["a", "a", "a", "c"].enumerated().map { omitted.passes($1, at: 3, isLast: $0 == 1) }
    #expect(found == [true, true, false, false])
    found = [9, 10, 9].map { omitted.passes("b", at: $0, isLast: false) }
    #expect(found == [true, false, false])
  }

  @Test("a message that an earlier collector has omitted is not passed over, although it applied the one before")
  func passedUntilOmitted() {
    var omitted = OmittedStreams([], after: checkpoint(omittingFrom: 5))
    omitted.pass("t", of: StreamName(base: "k-s0"), isLast: false)
    let found = [UInt64(4), 5, 6].map { omitted.passes("t", at: $0, isLast: false) }
    #expect(found == [true, false, false])
  }
}
