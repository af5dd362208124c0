// Tests where the next bytes of a stream belong, against a model that looks at each byte.

import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("The stored ranges of a stream")
struct StoredRangesTests {
  private static let length: UInt64 = 40

  private static func ranges(_ count: Int, in bounds: Range<UInt64>, _ random: inout SplitMix64) -> [Range<UInt64>] {
    (0..<count).map { _ in
      let ends = [0, 1].map { _ in UInt64.random(in: bounds.lowerBound...bounds.upperBound, using: &random) }
      return min(ends[0], ends[1])..<max(ends[0], ends[1])
    }
  }

  @Test("they show for each offset whether its byte is stored, and whether a body can begin there")
  func model() {
    for seed in Seed.several(300) {
      var random = seed.generator
      let closed = Self.ranges(Int.random(in: 0...3, using: &random), in: 0..<Self.length, &random)
      let growing = random.chance(70) ? Self.ranges(1, in: 0..<Self.length, &random)[0] : nil
      let holes = growing.map { Self.ranges(Int.random(in: 0...2, using: &random), in: $0, &random) } ?? []
      let stored = StoredRanges(closed: closed, growing: growing, holes: holes)
      func isClosed(_ offset: UInt64) -> Bool { closed.contains { $0.contains(offset) } }
      func isHole(_ offset: UInt64) -> Bool { holes.contains { $0.contains(offset) } }
      for offset in 0...Self.length {
        let next = (offset...Self.length).first { !isClosed($0) }
        #expect(stored.firstUnclosed(from: offset) == next, "\(seed), \(offset)")
        #expect(stored.isClosed(before: offset) == (offset > 0 && isClosed(offset - 1)), "\(seed), \(offset)")
        #expect(stored.isGrowing(at: offset) == (growing?.upperBound == offset), "\(seed), \(offset)")
        guard !isClosed(offset), !isHole(offset) else {
          if !isClosed(offset) { #expect(!stored.hasPlace(at: offset), "\(seed), \(offset)") }
          continue
        }
        // The bytes of the hole that a body at this offset would leave.
        let hole = (growing?.upperBound ?? offset)..<max(offset, growing?.upperBound ?? offset)
        let hasPlace = offset >= growing?.lowerBound ?? 0 && !hole.contains(where: isClosed)
        #expect(stored.hasPlace(at: offset) == hasPlace, "\(seed), \(offset)")
        // The body can continue up to the first byte that is closed or in a hole.
        let limit = (offset...Self.length).first { isClosed($0) || isHole($0) } ?? .max
        #expect(stored.limit(from: offset) == limit, "\(seed), \(offset)")
      }
    }
  }

  @Test(
    "the recordings of a split stream contain its bytes without the holes, or those behind a hole without its record",
    arguments: [false, true], [false, true])
  func split(isClosed: Bool, hasRecord: Bool) throws {
    let directory = TemporaryDirectory()
    var split = RecordingSplit(duration: nil, size: 1000)
    split.leastLength = 0
    var test = try TestServer(in: directory) { $0.split = split }
    let bytes = StreamedHead.all[0].bytes + [UInt8](repeating: 7, count: 4000)
    let (hole, end) = (UInt64(bytes.count)..<UInt64(bytes.count + 500), UInt64(bytes.count + 3500))
    for (offset, piece) in [(0, bytes), (hole.upperBound, [UInt8](repeating: 8, count: 3000))] {
      let fields = ["Stream-ID: a", "Stream-Offset: \(offset)", "Content-Type: audio/wav"]
      let location = try test.create("/k.wav", fields)
      try test.append(location, at: 0, completes: false, piece)
    }
    test.stop()
    if isClosed {
      test = try TestServer(in: directory) { $0.finishAfter = .milliseconds(100) }
      try waitUntil("the recording is closed") { !directory.names.contains { $0.hasSuffix(".part") } }
      test.stop()
    }
    // An operator has moved it away with its recording.
    for name in directory.names where !hasRecord && name.hasSuffix(".gaps") {
      if try directory.text(name).contains("not-received") { #expect(unlink("\(directory.path)/\(name)") == 0) }
    }
    let store = try FileStore(in: directory, durability: .interval, hasSidecars: true, split: split)
    let missing = hasRecord ? hole : 0..<hole.upperBound
    let expected =
      isClosed
      ? StoredRanges(closed: [0..<missing.lowerBound, hole.upperBound..<end])
      : StoredRanges(closed: [], growing: 0..<end, holes: [missing])
    let name = StreamName(base: "k-a")
    #expect(try store.storedRanges(of: name) == expected)
    guard isClosed, hasRecord else { return }
    var changed = bytes
    changed[2000] ^= 1
    let results = [
      try store.compareClosed(bytes.span, at: 0, of: name), try store.compareClosed(changed.span, at: 0, of: name),
    ]
    #expect(results == [.same, .different])
    for file in directory.names where file.hasSuffix(".wav") { unlink("\(directory.path)/\(file)") }
    let withoutFiles = try store.compareClosed(changed.span, at: 0, of: name)
    #expect(withoutFiles == .unknown)
  }

  @Test(
    "it is unknown which bytes a closed recording with holes contains without its record", arguments: [false, true])
  func closed(hasRecord: Bool) throws {
    let directory = TemporaryDirectory()
    let store = try FileStore(in: directory)
    let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
    var part = RecordingPart(file: name.final)
    (part.end, part.count) = (10, 6)
    try store.parts.append(part, to: name.base)
    try directory.write(name.final, [UInt8](repeating: 7, count: 10))
    let hole = GapRecord(offset: 4, length: 4, cause: .notReceived)
    if hasRecord { try directory.write(name.gaps, Array(hole.jsonLine.utf8)) }
    #expect(try store.storedRanges(of: name) == StoredRanges(closed: hasRecord ? [0..<4, 8..<10] : []))
  }
}
