// Tests the state machines and values behind the sockets and files against simple models.

import EventLoops
import PropertyTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("The server's state machines")
struct StateMachineTests {
  @Test("no upload is over as soon as its request ends, whatever the configuration")
  func leastLifetime() {
    let lifetimes = UploadLifetimes(sized: .zero, live: .seconds(-1))
    #expect(lifetimes.of(isLive: false) > .zero && lifetimes.of(isLive: true) > .zero)
  }

  @Test(
    "each byte of the stream has one place at any offsets of requests, and repeated bytes are compared",
    arguments: Seed.several(1))
  func placement(_ seed: Seed) {
    var generator = seed.generator
    for _ in 0..<2_000 {
      // The model stores the bytes themselves; a byte is its offset.
      var file: [Int?] = []
      for _ in 0..<10 {
        let offset = Int.random(in: 0...(file.count + 5), using: &generator)
        var placement: StreamPlacement
        switch StreamPlacement.begin(
          offset: UInt64(offset), length: UInt64(file.count), isComplete: false, maximumHole: 3)
        {
        case .at(let found):
          #expect(offset <= file.count)
          placement = found
        case .afterHole(let found, let length):
          #expect(Int(length) == offset - file.count && length <= 3)
          file += [Int?](repeating: nil, count: Int(length))
          placement = found
        case .holeTooLarge:
          #expect(offset > file.count + 3)
          continue
        case .beyondEnd:
          Issue.record("the stream is not complete")
          continue
        }
        for _ in 0..<Int.random(in: 0..<4, using: &generator) {
          let count = Int.random(in: 0..<6, using: &generator)
          let repeated = placement.repeated(count)
          let place = Int(placement.cursor)
          #expect(repeated == max(0, min(count, file.count - place)))
          placement.verified(repeated)
          // The disk may accept fewer bytes. The request then ends.
          let stored = Int.random(in: 0...(count - repeated), using: &generator)
          if count > repeated {
            #expect(Int(placement.cursor) == file.count, "seed \(seed)")
            file += (file.count..<(file.count + stored)).map { $0 }
            placement.stored(stored)
          }
          #expect(placement.length == UInt64(file.count))
          if stored < count - repeated { break }
        }
      }
    }
  }

  @Test(
    "missing bytes are counted once, up to the end of the file, whatever the record contains",
    arguments: [
      ("", 100, 0, 0),
      ("{\"offset\":5,\"length\":3,\"cause\":\"not-received\"}\n", 100, 3, 8),
      // Written twice because the server died after the record, before the hole.
      ("{\"offset\":5,\"length\":3,\"cause\":\"x\"}\n{\"offset\":5,\"length\":4,\"cause\":\"x\"}\n", 100, 4, 9),
      // The hole does not exist.
      ("{\"offset\":5,\"length\":3,\"cause\":\"x\"}\n", 5, 0, 0),
      ("{\"offset\":5,\"length\":3,\"cause\":\"x\"}\n", 7, 2, 7),
      // The last line is incomplete.
      ("{\"offset\":5,\"length\":3,\"cause\":\"x\"}\n{\"offset\":50,\"len", 100, 3, 8),
      // A server was killed within a line, and the next one wrote another line.
      ("{\"offset\":50,\"len{\"offset\":5,\"length\":3,\"cause\":\"not-received\"}\n", 100, 3, 8),
      ("{\"offset\":5,\"length\":18446744073709551616,\"cause\":\"x\"}\n", 100, 0, 0),
      ("{\"offset\":5,\"length\":,\"cause\":\"x\"}\n{\"offset\":5,\"length\":1}\n{", 100, 0, 0),
      ("{\"offset\":5,\"length\":18446744073709551615,\"cause\":\"x\"}\n", 100, 95, 100),
      // The beginning or end of a recording is not a hole.
      ("{\"offset\":5,\"length\":0,\"cause\":\"interrupted\"}\n", 100, 0, 0),
      ("rubbish\n\n{}\n", 100, 0, 0),
    ])
  func gaps(_ text: String, _ length: UInt64, _ missing: UInt64, _ end: UInt64) {
    let summary = GapRecord.summary(of: Array(text.utf8), length: length)
    #expect(summary == GapRecord.Summary(missing: missing, holesEnd: end))
  }

  @Test("the remaining gaps of a growing recording are those that a killed server made", arguments: Seed.several(20))
  func remainingGaps(_ seed: Seed) {
    var random = seed.generator
    // Holes that are each followed by bytes. The first may be at the beginning of the stream.
    var (lines, length): ([GapRecord], UInt64) = ([], UInt64.random(in: 0...1, using: &random) * 5)
    for _ in 0..<Int.random(in: 0...4, using: &random) {
      let hole = UInt64.random(in: 1...9, using: &random)
      lines.append(GapRecord(offset: length, length: hole, cause: length == 0 ? .beganLate : .notReceived))
      length += hole + UInt64.random(in: 1...9, using: &random)
    }
    let text = lines.map(\.jsonLine).joined()
    for _ in 0..<20 {
      // The lines of several servers that were killed while they made a hole or closed the recording.
      var rest = ""
      var size = length
      for _ in 0..<Int.random(in: 0...3, using: &random) {
        let hole = UInt64.random(in: 1...9, using: &random)
        let cause: GapRecord.Cause = random.chance(30) ? .interrupted : length == 0 ? .beganLate : .notReceived
        rest += GapRecord(offset: length, length: cause == .interrupted ? 0 : hole, cause: cause).jsonLine
        if cause != .interrupted, random.chance(30) {
          size = length + hole
          break
        }
      }
      if random.chance(30) {
        rest += GapRecord(offset: length, length: 3, cause: .notReceived).jsonLine.prefix(
          Int.random(in: 1...20, using: &random))
      }
      let remainder = GapRecord.remainder(of: Array((text + rest).utf8), from: 0, length: size)
      #expect(remainder == .init(count: text.utf8.count, length: length), "\(seed) \(text + rest) \(size)")
      let summary = GapRecord.summary(of: Array(text.utf8), length: length)
      #expect(summary.missing == lines.reduce(0) { $0 + $1.length })
    }
  }

  @Test(
    "dates are written as HTTP and RFC 3339 want them",
    arguments: [
      (0, 0, "Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00.000Z"),
      (784_111_777, 7, "Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37.007Z"),
      (1_709_210_096, 999, "Thu, 29 Feb 2024 12:34:56 GMT", "2024-02-29T12:34:56.999Z"),
    ])
  func dates(_ seconds: Int64, _ milliseconds: Int, _ http: String, _ iso: String) {
    let clock = WallClock(seconds: seconds, milliseconds: milliseconds)
    #expect(clock.imfFixdate == http && clock.iso8601 == iso)
  }

  @Test("an event is one line of JSON, whatever a peer sent")
  func events() {
    var event = ServerEvent(
      .refused, peer: "unix", status: 409, reason: "a \"b\" \\ \r\n\u{1b}[2J\u{fc}\u{1F600}\u{7f}")
    event.time = "T"
    event.offset = .max
    #expect(
      event.jsonLine == "{\"event\":\"refused\",\"time\":\"T\",\"peer\":\"unix\",\"offset\":18446744073709551615,"
        + "\"status\":409,\"reason\":\"a \\\"b\\\" \\\\ \\u000d\\u000a\\u001b[2J\\u00fc\\ud83d\\ude00\\u007f\"}")
  }
}
