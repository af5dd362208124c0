import Testing

@testable import sluice

@Suite("Times and sizes in options")
struct UnitsTests {
  @Test(
    "a time",
    arguments: [
      ("250ms", .milliseconds(250)), ("10s", .seconds(10)), ("10", .seconds(10)), ("1.5h", .seconds(5400)),
      ("5m", .seconds(300)),
      ("5min", .seconds(300)), ("2d", .seconds(172_800)), ("50us", .microseconds(50)), ("0", .zero),
      ("0.25s", .milliseconds(250)),
    ] as [(String, Duration)])
  func duration(_ text: String, _ expected: Duration) throws {
    #expect(try Units.duration(text, of: "x") == expected)
  }

  @Test(
    "an invalid time is an error with the format",
    arguments: ["", "s", "ms", "10 s", "-5s", "1.2.3s", "5weeks", "١s", ".", "1e3", "nan"])
  func noDuration(_ text: String) throws {
    let error = try #require(throws: CommandError.self) { try Units.duration(text, of: "interval") }
    #expect(error.code == .usage && error.message.contains("--interval \"\(text)\"") && error.message.contains("250ms"))
  }

  @Test(
    "a time that is too long is an error with the range, however long it is",
    arguments: ["9500000000s", "9999999999", "200000000h", String(repeating: "9", count: 400)])
  func longDuration(_ text: String) throws {
    let error = try #require(throws: CommandError.self) { try Units.duration(text, of: "interval") }
    #expect(error.code == .usage)
    #expect(error.message.hasSuffix(": invalid time. Write a time from 0s to 104166d."), "\(error.message)")
    #expect(try Units.duration("104166d", of: "interval") == .seconds(104_166 * 86_400))
  }

  @Test(
    "a size",
    arguments: [
      ("4096", 4096), ("64kB", 64_000), ("64KiB", 65_536), ("16MiB", 16_777_216), ("1.5MB", 1_500_000),
      ("1GB", 1_000_000_000), ("7B", 7),
    ])
  func size(_ text: String, _ expected: Int) throws {
    #expect(try Units.byteCount(text, of: "x") == expected)
  }

  @Test("an invalid size is an error", arguments: ["", "0", "-1", "64 kB", "64kb", "5s", "1e9", "9999999GB", "0.5"])
  func noSize(_ text: String) throws {
    let error = try #require(throws: CommandError.self) { try Units.byteCount(text, of: "buffer") }
    #expect(error.code == .usage && error.message.contains("16MiB"))
  }

  @Test("a rate in bytes per second is a size")
  func byteRate() throws {
    #expect(try Units.byteRate("32kB", of: "rate") == 32_000)
    #expect(try Units.byteRate("500", of: "rate") == 500)
  }

  @Test(
    "the error for an invalid rate in bytes names this unit, and suggests the size that the value contains",
    arguments: [
      ("32kB/s", "32kB"), ("1.5MB/s", "1.5MB"), ("500/s", "500"), ("11GB/s", nil), ("11GB", nil), ("0/s", nil),
      ("/s", nil), ("48kHz", nil), ("32kbit/s", nil), ("", nil),
    ] as [(String, String?)])
  func noByteRate(_ text: String, _ meant: String?) throws {
    let error = try #require(throws: CommandError.self) {
      try Units.byteRate(text, of: "rate", in: 1...10_000_000_000)
    }
    #expect(error.code == .usage)
    let advice = "invalid rate. Write bytes per second as a size such as 64kB, from 1B to 10GB."
    let hint = meant.map { " Did you mean \($0)?" } ?? ""
    #expect(error.message == "--rate \"\(text)\": \(advice)\(hint)")
  }

  @Test("a rate in frames per second is a whole number within its range")
  func frameRate() throws {
    for (text, rate) in [("1000", 1000), ("44100", 44_100), ("768000", 768_000)] {
      #expect(try Units.frameRate(text, of: "rate", in: 1000...768_000) == rate)
    }
  }

  @Test(
    "the error for an invalid rate in frames names this unit, and suggests the number for a value in hertz",
    arguments: [
      ("48kHz", 48_000), ("44.1kHz", 44_100), ("48k", 48_000), ("16000Hz", 16_000), ("999Hz", nil), ("769kHz", nil),
      ("32kB", nil), ("32kB/s", nil), ("1MHz", nil), ("48000.0", nil), ("999", nil), ("768001", nil), ("", nil),
      (String(repeating: "9", count: 90) + "kHz", nil),
    ] as [(String, Int?)])
  func noFrameRate(_ text: String, _ meant: Int?) throws {
    let error = try #require(throws: CommandError.self) { try Units.frameRate(text, of: "rate", in: 1000...768_000) }
    #expect(error.code == .usage)
    let advice = "invalid rate. Write frames per second as a whole number from 1000 to 768000."
    let hint = meant.map { " Did you mean \($0)?" } ?? ""
    #expect(error.message == "--rate \"\(text)\": \(advice)\(hint)")
  }

  @Test("a whole number within its range, and nothing else")
  func integer() throws {
    #expect(try Units.integer("48000", of: "rate", in: 1000...768_000) == 48_000)
    for text in ["", "999", "768001", "48k", "48000.0", " 48000"] {
      let error = try #require(throws: CommandError.self) { try Units.integer(text, of: "rate", in: 1000...768_000) }
      #expect(error.message.contains("1000") && error.message.contains("768000"))
    }
  }

  @Test(
    "displayed sizes have at most three digits, and never round up to a fourth",
    arguments: [
      (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9_994, "9.99 kB"), (9_996, "10.0 kB"), (99_960, "100 kB"),
      (999_499, "999 kB"),
      (999_500, "1.00 MB"), (1_234_567_890, "1.23 GB"), (UInt64.max, "18447 PB"),
    ] as [(UInt64, String)])
  func text(_ bytes: UInt64, _ expected: String) { #expect(Units.text(bytes: bytes) == expected) }

  @Test("displayed times")
  func times() {
    #expect(
      Units.clock(.seconds(123)) == "02:03" && Units.clock(.seconds(3_723)) == "1:02:03"
        && Units.clock(.seconds(360_000)) == "100:00:00")
    #expect(
      Units.text(.milliseconds(350)) == "0.35 s" && Units.text(.milliseconds(9_996)) == "10 s"
        && Units.text(.seconds(75)) == "75 s")
    #expect(
      Units.fixed(-0.5, decimals: 1) == "-0.5" && Units.fixed(1.005, decimals: 2) == "1.00"
        && Units.fixed(2.5, decimals: 0) == "3")
  }
}
