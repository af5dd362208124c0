// The next collector reads the checkpoint that a collector has written, and accepts no other text.

import PropertyTesting
import Recordings
import StreamServing
import Testing

@testable import LogCollecting

@Suite("Checkpoints of a collector")
struct CollectorCheckpointTests {
  private static func checkpoint(_ random: inout SplitMix64) -> CollectorCheckpoint {
    func number() -> UInt64 { UInt64.random(in: 0...1_000_000, using: &random) }
    func text() -> String { ["", "a b", "\"\\", "é, \n", "x=1"][Int.random(in: 0..<5, using: &random)] }
    var checkpoint = CollectorCheckpoint(stream: "sluice", created: "2026-11-23T09:00:00Z", partition: "1/3")
    func time() -> Int64 { random.chance(50) ? Int64.random(in: 1...Int64.max, using: &random) : 0 }
    checkpoint.position = .init(sequence: number(), mark: "p-1.2 00000000", time: time())
    for index in 0..<Int.random(in: 0...4, using: &random) {
      let origin = UploadOrigin(
        path: "/" + text(), mediaType: random.chance(50) ? text() : nil, streamID: "s\(index)", streamStart: number(),
        owner: random.chance(50) ? [1, 2, 255] : nil, isLive: random.chance(50),
        description: random.chance(50) ? text() : nil)
      let phases: [CollectorCheckpoint.Upload.Phase] = [.open, .closed, .refused]
      checkpoint.uploads.append(
        .init(
          token: "t\(index)", origin: origin, segmentStart: number(), offset: number(), ownsFile: random.chance(50),
          phase: phases[index % 3], isUncompared: random.chance(50)))
      checkpoint.files.append(.init(base: "k-s\(index)", part: index + 1, length: number()))
      let awaited = random.chance(50) ? "k-s\(index)" : nil
      checkpoint.purges.append(.init(token: "t\(index)", sequence: number(), awaited: awaited))
    }
    if random.chance(50) {
      checkpoint.applied = .init(sequence: number(), mark: "p-1.3 00000000", time: time())
      for index in 0..<Int.random(in: 1...3, using: &random) {
        checkpoint.omissions.append(.init(base: "k-o\(index)", sequence: number()))
      }
    }
    if random.chance(50) { checkpoint.formerEnd = number() }
    return checkpoint
  }

  @Test("a written checkpoint is read again", arguments: Seed.several(50))
  func roundTrip(_ seed: Seed) throws {
    var random = seed.generator
    let checkpoint = Self.checkpoint(&random)
    #expect(CollectorCheckpoint(parsing: try #require(checkpoint.text)) == checkpoint)
  }

  @Test("`sluice verify` finds the streams of a written checkpoint that will be continued", arguments: Seed.several(50))
  func continued(_ seed: Seed) throws {
    var random = seed.generator
    let checkpoint = Self.checkpoint(&random)
    let text = try #require(checkpoint.text)
    let found = try #require(CollectedStreams(parsing: text))
    #expect(found.ids == Set(checkpoint.uploads.filter { $0.phase == .open }.map(\.origin.streamID)))
    #expect(found.bases == Set(checkpoint.omissions.map(\.base)))
  }

  @Test("a text without a line or a part of a line is not a checkpoint", arguments: Seed.several(10))
  func truncated(_ seed: Seed) throws {
    var random = seed.generator
    let text = try #require(Self.checkpoint(&random).text)
    for count in 0..<(text.utf8.count - 1) {
      let cut = String(decoding: Array(text.utf8.prefix(count)), as: UTF8.self)
      #expect(CollectorCheckpoint(parsing: cut) == nil, "\(count) of \(text)")
    }
    var lines = text.split(separator: "\n", omittingEmptySubsequences: false)
    lines.remove(at: 0)
    #expect(CollectorCheckpoint(parsing: lines.joined(separator: "\n")) == nil)
  }

  @Test("a partition is I/N, and each stream belongs to one of N")
  func partitions() throws {
    for text in ["", "1", "0/1", "2/1", "1/0", "1/257", "-1/2", "a/b", "1/2/3", "+1/2", "1/ 2", "1/9999999999"] {
      #expect(StreamPartition(text) == nil, "\(text)")
    }
    let parts = try (1...3).map { try #require(StreamPartition("\($0)/3")) }
    #expect(parts.map(\.text) == ["1/3", "2/3", "3/3"] && StreamPartition("1/1") == .whole)
    var counts = [0, 0, 0]
    for number in 0..<300 {
      let origin = UploadOrigin(
        path: "/k.wav", mediaType: nil, streamID: "s\(number)", streamStart: 0, owner: nil, isLive: true,
        description: nil)
      let owners = parts.indices.filter { parts[$0].assignment.owns(origin.name) }
      #expect(owners.count == 1)
      counts[owners.first ?? 0] += 1
    }
    #expect(counts.allSatisfy { $0 > 50 }, "\(counts)")
  }
}
