// Tests the judge of a soak run: growing figures, losses, and stored data.

import CommandTesting
import Glibc
import NetworkTesting
import PropertyTesting
import SoakTesting
import TestDeviceControl
import Testing

@Suite("The judge of a soak run")
struct SoakJudgeTests {
  // MARK: Growth

  @Test(
    "a leak of one descriptor in ten hours is detected through noise, and noise alone is not a leak",
    arguments: Seed.several(8))
  func trend(seed: Seed) throws {
    var random = seed.generator
    for leaks in [false, true] {
      let samples = (0..<100).map { hour in
        ProcessSample(
          hour: Double(hour), descriptors: 20 + Int.random(in: 0...3, using: &random) + (leaks ? hour / 10 : 0))
      }
      let growth = try #require(Trend(samples, \.descriptors)).growth
      #expect(leaks ? growth > 7 && growth < 13 : abs(growth) < 1, "\(seed): \(growth)")
    }
  }

  @Test("a restarted process with less memory does not hide growth, and its own growth counts")
  func births() throws {
    let samples = (0..<40).map { hour in
      ProcessSample(hour: Double(hour), birth: hour < 20 ? 0 : 20, threads: 10 + hour % 20)
    }
    #expect(try #require(Trend(samples, \.threads)).growth == 19)
    #expect(Trend(Array(samples.prefix(2)), \.threads) == nil)
  }

  // MARK: Losses

  @Test("sets of offsets agree with sets of numbers", arguments: Seed.several(8))
  func offsets(seed: Seed) {
    var random = seed.generator
    func ranges() -> [Range<Int>] {
      (0..<Int.random(in: 0...6, using: &random)).map { _ in
        let start = Int.random(in: 0...50, using: &random)
        return start..<start + Int.random(in: 0...12, using: &random)
      }
    }
    for _ in 0..<500 {
      let (a, b) = (ranges(), ranges())
      func numbers(_ ranges: [Range<Int>]) -> Set<Int> { Set(ranges.flatMap { Array($0) }) }
      let (first, second) = (OffsetSet(a), OffsetSet(b))
      #expect(numbers(first.ranges) == numbers(a) && first.count == numbers(a).count, "\(seed)")
      #expect(numbers(first.union(second).ranges) == numbers(a).union(numbers(b)), "\(seed)")
      #expect(numbers(first.subtracting(second).ranges) == numbers(a).subtracting(numbers(b)), "\(seed)")
      for (left, right) in zip(first.ranges, first.ranges.dropFirst()) {
        #expect(left.upperBound < right.lowerBound, "\(seed)")
      }
    }
  }

  private func losses(
    stored: [Range<Int>], silent: [Range<Int>], reported: [Range<Int>], wasClosed: Bool = false
  ) -> [String] {
    LossComparison(
      captured: 1000, stored: OffsetSet(stored), silent: OffsetSet(silent), reported: OffsetSet(reported),
      wasClosed: wasClosed
    ).violations
  }

  @Test("each loss must be reported, silent or not stored, and no other may be")
  func comparison() {
    #expect(losses(stored: [0..<1000], silent: [], reported: []) == [])
    #expect(losses(stored: [0..<1000], silent: [100..<200], reported: [100..<200]) == [])
    #expect(losses(stored: [0..<1000], silent: [100..<200], reported: [100..<150, 150..<200]) == [])
    #expect(losses(stored: [0..<400, 600..<1000], silent: [300..<400], reported: [300..<600]) == [])
    #expect(losses(stored: [0..<1000], silent: [100..<200], reported: [100..<199]).count == 1)
    #expect(losses(stored: [0..<1000], silent: [100..<200], reported: []).count == 1)
    #expect(losses(stored: [0..<400, 500..<1000], silent: [], reported: []).count == 1)
    #expect(losses(stored: [0..<999], silent: [], reported: []).count == 1)
    #expect(losses(stored: [0..<1001], silent: [], reported: []).count == 1)
    #expect(losses(stored: [0..<1000], silent: [], reported: [100..<200]).count == 1)
    #expect(losses(stored: [0..<1000], silent: [], reported: [100..<200], wasClosed: true) == [])
    #expect(losses(stored: [0..<1000], silent: [100..<200], reported: [98..<200]) == [])
  }

  @Test("losses are the reports of events with an offset and a length, in bytes or in frames")
  func events() throws {
    let lines = [
      #"{"event":"gap","offset":100,"length":50,"cause":"bufferFull"}"#,
      #"{"event":"overrun","description":"","offset":200,"lost_frames":10,"filled_bytes":20}"#,
      #"{"event":"events-missed","description":"","offset":300,"lost_frames":10,"filled_bytes":20,"length":60}"#,
      #"{"event":"device-lost","description":"","offset":400,"lost_frames":0,"filled_bytes":0}"#,
      #"{"event":"discarding","length":7}"#, #"{"event":"output-dropped","lines":3}"#,
      #"{"event":"output-dropped","lines":4}"#,
    ]
    let events = try lines.map { try #require(FlatObject($0)) }
    #expect(LossComparison.reported(events).ranges == [100..<150, 200..<220, 300..<360])
    #expect(LossComparison.droppedLines(events) == 7)
    #expect(LossComparison.repeated(events) == [])
    let again = try #require(FlatObject(#"{"event":"gap","offset":140,"length":50,"cause":"bufferFull"}"#))
    #expect(LossComparison.repeated(events + [again]) == [140..<150])
  }

  // MARK: Stored data

  /// A recording of the microphone's frames, changed by `change`.
  private func recording(_ frames: Range<UInt64>, _ change: (inout [Int16]) -> Void = { _ in }) -> [UInt8] {
    var samples = frames.map { testmic_sample(1, $0, 0) }
    change(&samples)
    return Array("RIFF".utf8) + [UInt8](repeating: 1, count: 76) + samples.withUnsafeBytes { Array($0) }
  }

  private func timeline(_ files: [String: [UInt8]], beginnings: [String: Int] = [:]) throws -> StoredTimeline {
    let directory = try TemporaryDirectory()
    for (name, bytes) in files { _ = try directory.write(name, bytes) }
    var timeline = StoredTimeline(directory.path) { beginnings[$0] }
    defer { timeline.close() }
    try timeline.advance(isLast: true)
    return timeline
  }

  @Test("an intact recording has no silence, and a silent range is exact to the sample")
  func silence() throws {
    let intact = try timeline(["a-s.wav": recording(0..<100_000)])
    #expect(intact.silent.ranges == [] && intact.stored.ranges == [0..<200_080])
    let holed = try timeline([
      "a-s.wav": recording(0..<100_000) { for index in 5000..<7000 { $0[index] = 0 } }
    ])
    let hole = try #require(holed.silent.ranges.first)
    #expect(holed.silent.ranges.count == 1 && abs(hole.lowerBound - 10_080) <= 2 && abs(hole.upperBound - 14_080) <= 2)
  }

  @Test("repeated frames, omitted frames without silence, and foreign bytes are detected")
  func wrongFrames() throws {
    #expect(throws: TestFailure.self) {
      try timeline(["a-s.wav": recording(0..<100_000) { $0.replaceSubrange(50_000..<60_000, with: $0[..<10_000]) }])
    }
    #expect(throws: TestFailure.self) {
      try timeline(["a-s.wav": recording(0..<100_000) { for index in 5000..<7000 { $0[index] = 77 } }])
    }
    #expect(throws: TestFailure.self) {
      try timeline(["a-s.wav": [UInt8](repeating: 7, count: 100)])
    }
    let short = try timeline(["a-s.wav": recording(0..<100_000) { $0.removeSubrange(5000..<7000) }])
    #expect(short.stored.ranges == [0..<196_080])
  }

  @Test("a part may only repeat the same stream offsets of the previous part")
  func parts() throws {
    let first = recording(0..<50_000)
    // The client has reported 40,000 frames.
    let second = try timeline(
      ["a-s.wav": first, "a-s~2.part": recording(40_000..<90_000)], beginnings: ["a-s~2": 80 + 80_000])
    #expect(second.stored.ranges == [0..<180_080] && second.silent.ranges == [] && second.count == 2)
    #expect(throws: TestFailure.self) {
      try timeline(["a-s.wav": first, "a-s~2.part": recording(39_000..<90_000)], beginnings: ["a-s~2": 80 + 80_000])
    }
    let later = try timeline(
      ["a-s.wav": first, "a-s~2.part": recording(60_000..<90_000)], beginnings: ["a-s~2": 80 + 120_000])
    #expect(later.stored.ranges == [0..<100_080, 120_080..<180_080])
    // After a split, a part begins where the previous one ends.
    let split = try timeline(
      ["a-s.wav": first, "a-s~2.wav": recording(50_000..<70_000), "a-s~3.part": recording(70_000..<90_000)],
      beginnings: ["a-s~2": 80 + 100_000, "a-s~3": 80 + 140_000])
    #expect(split.stored.ranges == [0..<180_080] && split.silent.ranges == [] && split.count == 3)
    #expect(throws: TestFailure.self) {
      try timeline(["a-s.wav": first, "a-s~2.wav": recording(49_999..<70_000)], beginnings: ["a-s~2": 80 + 100_000])
    }
    // No server has reported where it begins.
    #expect(throws: TestFailure.self) { try timeline(["a-s.wav": first, "a-s~2.part": first]) }
  }

  @Test("after a hole, a recording may end with a few frames that the next one continues")
  func fewFrames() throws {
    func holed(_ last: (inout [Int16]) -> Void = { _ in }) -> [UInt8] {
      recording(0..<50_000) {
        for index in 40_000..<49_999 { $0[index] = 0 }
        last(&$0)
      }
    }
    let (second, third) = ("a-s~2", "a-s~3")
    let rest = recording(50_000..<70_000)
    // The server has stored a single frame after the hole, and has then split.
    let split = try timeline(["a-s.wav": holed(), "a-s~2.part": rest], beginnings: [second: 80 + 100_000])
    #expect(split.stored.ranges == [0..<140_080] && split.silent.ranges == [80_080..<100_078])
    // Half a frame.
    let half = try timeline(
      ["a-s.wav": holed { $0[49_999] &= ~0xff }, "a-s~2.part": rest], beginnings: [second: 80 + 100_000])
    #expect(half.silent.ranges == [80_080..<100_079])
    let shorter = try timeline(
      ["a-s.wav": holed(), "a-s~2.wav": recording(50_000..<50_005), "a-s~3.part": recording(50_005..<70_000)],
      beginnings: [second: 80 + 100_000, third: 80 + 100_010])
    #expect(shorter.stored == split.stored && shorter.silent == split.silent)
    // Another frame, one that nothing continues, and one before other frames.
    for (first, next, beginning) in [
      (holed { $0[49_999] = 77 }, rest, 100_000), (holed(), recording(60_000..<70_000), 120_000),
      (holed(), recording(50_001..<70_000), 100_000), (holed(), recording(50_000..<50_005), 100_000),
    ] {
      #expect(throws: TestFailure.self) {
        try timeline(["a-s.wav": first, "a-s~2.part": next], beginnings: [second: 80 + beginning])
      }
    }
    #expect(throws: TestFailure.self) { try timeline(["a-s.wav": holed()]) }
  }

  @Test("a few frames at the end of a recording are located while the next one grows")
  func growing() throws {
    let directory = try TemporaryDirectory()
    var first = recording(0..<50_000)
    for index in 80 + 80_000..<80 + 99_998 { first[index] = 0 }
    var timeline = StoredTimeline(directory.path) { ["a-s~2": 80 + 100_000][$0] }
    defer { timeline.close() }
    _ = try directory.write("a-s.part", first)
    try timeline.advance()
    let rest = recording(50_000..<70_000)
    // The next recording has no header yet, then no frames, then too few, and then enough.
    for count in [0, 80, 90, 10_000, rest.count] {
      _ = try directory.write("a-s~2.part", Array(rest[..<count]))
      try timeline.advance()
      #expect(timeline.silent.ranges == [80_080..<100_078], "\(count)")
    }
    try timeline.advance(isLast: true)
    #expect(timeline.stored.ranges == [0..<140_080] && timeline.silent.ranges == [80_080..<100_078])
  }

  @Test("a header that was lost is silent")
  func header() throws {
    var bytes = recording(0..<50_000)
    for index in 0..<1000 { bytes[index] = 0 }
    let silent = try timeline(["a-s.part": bytes]).silent
    #expect(
      silent.ranges.count == 1 && silent.ranges[0].lowerBound == 0 && abs(silent.ranges[0].upperBound - 1000) <= 2)
    var part = recording(60_000..<90_000)
    for index in 0..<80 { part[index] = 0 }
    let beginnings = ["a-s~2": 80 + 120_000]
    let both = try timeline(["a-s.wav": bytes, "a-s~2.part": part], beginnings: beginnings)
    #expect(both.stored.ranges == [0..<100_080, 120_080..<180_080] && both.silent == silent)
    #expect(throws: TestFailure.self) {
      try timeline(["a-s.wav": recording(0..<50_000), "a-s~2.part": part], beginnings: beginnings)
    }
  }
}
