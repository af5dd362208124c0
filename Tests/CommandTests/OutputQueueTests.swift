// Tests the queue of output against a simple model: lines stay in order, and each missing line is counted.

import PropertyTesting
import Testing

@testable import sluice

@Suite("The output queue")
struct OutputQueueTests {
  /// How many lines were appended and how many were dropped, according to the written ones, which must be in order.
  private static func counts(_ lines: [String], _ seed: Seed) -> (expected: Int, dropped: Int) {
    var (expected, dropped) = (0, 0)
    for line in lines {
      if line.hasPrefix("dropped ") {
        let count = Int(line.dropFirst(8)) ?? -1
        expected += count
        dropped += count
      } else {
        #expect(line.hasPrefix("\(expected)."), "\(seed)")
        expected += 1
      }
    }
    return (expected, dropped)
  }

  @Test("every line is written in order, or counted as missing", arguments: Seed.several(4))
  func lines(seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      let limit = Int.random(in: 1...200, using: &random)
      var queue = OutputQueue(limit: limit) { "dropped \($0)" }
      var next = 0
      var written: [String] = []
      for _ in 0..<Int.random(in: 1...60, using: &random) {
        if random.chance(70) {
          let dots = String(repeating: ".", count: random.size(upTo: 60))
          queue.append(line: "\(next)\(dots)", isRoutine: random.chance(60))
          next += 1
        } else if let text = queue.take()?.text {
          // A notice stands in each place where lines are missing.
          #expect(text.utf8.count <= max(limit, 70) * 30)
          written += text.split(separator: "\n").map(String.init)
        }
      }
      if let text = queue.take()?.text { written += text.split(separator: "\n").map(String.init) }
      #expect(queue.take()?.text == nil && queue.isEmpty)
      let (expected, dropped) = Self.counts(written, seed)
      #expect(expected == next && queue.droppedEver == UInt64(dropped), "\(seed)")
    }
  }

  @Test("after writes that end anywhere, each line is written, or counted as missing", arguments: Seed.several(4))
  func failedWrites(seed: Seed) {
    var random = seed.generator
    for _ in 0..<200 {
      var queue = OutputQueue(limit: Int.random(in: 20...200, using: &random)) { "dropped \($0);" }
      var (next, written) = (0, "")
      for _ in 0..<Int.random(in: 1...60, using: &random) {
        if random.chance(60) {
          let dots = String(repeating: ".", count: random.size(upTo: 60))
          queue.append(line: "\(next).\(dots);", isRoutine: random.chance(60))
          next += 1
        } else if let batch = queue.take() {
          let count =
            random.chance(50) ? batch.text.utf8.count : Int.random(in: 0..<batch.text.utf8.count, using: &random)
          written.append(contentsOf: batch.text.prefix(count))
          if count < batch.text.utf8.count { queue.failed(batch, after: count) }
        }
      }
      queue.reportLosses()
      written += queue.take()?.text ?? ""
      #expect(queue.isEmpty)
      // A line that was cut does not end with the mark, and nothing follows it.
      let lines = written.split(separator: "\n").filter { $0.hasSuffix(";") }.map { String($0.dropLast()) }
      let (expected, dropped) = Self.counts(lines, seed)
      #expect(expected == next && queue.droppedEver == UInt64(dropped), "\(seed)")
    }
  }

  @Test("reports of losses survive any number of unread routine lines", arguments: Seed.several(4))
  func reports(seed: Seed) {
    var random = seed.generator
    for _ in 0..<50 {
      var queue = OutputQueue(limit: 1000) { "dropped \($0)" }
      let reports = Int.random(in: 0...100, using: &random)
      var (reported, routine) = (0, 0)
      while reported < reports {
        if random.chance(3) {
          queue.append(line: "report \(reported)")
          reported += 1
        } else {
          queue.append(line: "progress \(routine)", isRoutine: true)
          routine += 1
        }
      }
      let lines = (queue.take()?.text ?? "").split(separator: "\n").map(String.init)
      // Each is at most ten bytes long.
      let expected = (0..<reports).map { "report \($0)" }
      #expect(lines.filter { $0.hasPrefix("report") } == expected, "\(seed)")
      let progress = lines.filter { $0.hasPrefix("progress") }
      #expect(progress == (0..<routine).suffix(progress.count).map { "progress \($0)" }, "\(seed)")
      #expect(Int(queue.droppedEver) == routine - progress.count, "\(seed)")
    }
  }

  @Test("of unread statuses, only the latest is written, after the lines")
  func status() {
    var queue = OutputQueue(limit: 1000) { "dropped \($0)" }
    for number in 0..<10_000 { queue.show(status: ["status \(number)"]) }
    queue.append(line: "line")
    #expect(queue.take()?.text == "line\nstatus 9999")
    queue.show(status: ["status 9999"])
    #expect(queue.take()?.text == nil)
    queue.show(status: ["one", "two"])
    #expect(queue.take()?.text == "\r\u{1B}[Kone\ntwo")
    queue.append(line: "line")
    #expect(queue.take()?.text == "\r\u{1B}[1A\u{1B}[Jline\none\ntwo")
    queue.keepStatus()
    queue.append(line: "after")
    #expect(queue.take()?.text == "\r\u{1B}[1A\u{1B}[Jone\ntwo\nafter\n")
    queue.show(status: [])
    #expect(queue.take()?.text == nil)
  }

  @Test("a line that is longer than the limit is written completely")
  func longLine() {
    var queue = OutputQueue(limit: 10) { "dropped \($0)" }
    let long = String(repeating: "x", count: 100)
    queue.append(line: "first")
    queue.append(line: long)
    #expect(queue.take()?.text == "dropped 1\n\(long)\n")
  }
}
