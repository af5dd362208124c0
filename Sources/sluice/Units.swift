// Times and sizes: how options state them, and how messages show them.

internal import EventLoops

enum Units {
  /// `sluice help units`.
  static let topic = HelpTopic(
    name: "units", title: "Times (T) and sizes (SIZE) of options",
    rows: [
      ("T", "a number with us, ms, s, min (or m), h or d: 250ms, 1.5h"),
      ("SIZE", "a number with B, kB, MB, GB, TB (1000) or KiB, MiB, GiB, TiB (1024): 64kB, 16MiB"),
    ],
    notes: [
      "A number without a unit means seconds or bytes.",
      "A rate in bytes per second is a size: 32kB, not 32kB/s. --rate of sluice mic is in frames per second, and has no unit.",
      "--buffer of a stream, --split, --keep, --keep-size, --keep-free and --keep-at-least require a unit, because a number alone would be ambiguous or a likely mistake.",
    ])

  /// `250ms`, `10s`, `1.5h`. A number without a unit means seconds.
  static func duration(
    _ text: String, of option: String, atLeast shortest: Duration = .zero,
    atMost longest: Duration = longestTime
  ) throws(CommandError) -> Duration {
    let units: [(String, Double)] = [
      ("us", 1e-6), ("ms", 1e-3), ("s", 1), ("min", 60), ("m", 60), ("h", 3600), ("d", 86400), ("", 1),
    ]
    guard let value = number(text, units), value >= 0 else {
      throw .usage("--\(option) \(text.shown): invalid time. Write 250ms, 10s, 5min or 1h.")
    }
    // A time that does not fit is too long for every option.
    let duration = Duration.nanoseconds(Int64(exactly: (value * 1e9).rounded()) ?? .max)
    guard duration >= shortest, duration <= longest else {
      throw .usage("--\(option) \(text.shown): invalid time. Write a time \(range(from: shortest, to: longest)).")
    }
    return duration
  }

  /// It fits into 63 bits of nanoseconds, together with the time since the start of the machine: 285 years.
  static let longestTime = Duration.seconds(9_000_000_000)

  /// `from 1ms to 24d`.
  static func range(from shortest: Duration, to longest: Duration = longestTime) -> String {
    "from \(brief(shortest)) to \(brief(longest))"
  }

  /// `1ms`, `24d`: a form that an option accepts.
  static func brief(_ duration: Duration) -> String {
    guard duration > .zero else { return "0s" }
    let units: [(String, Int64)] = [
      ("d", 86_400_000_000_000), ("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000),
      ("ms", 1_000_000),
    ]
    let unit = units.first { duration.nanoseconds >= $0.1 } ?? ("us", 1000)
    return "\(duration.nanoseconds / unit.1)\(unit.0)"
  }

  /// `64kB` (1000), `16MiB` (1024). A number without a unit means bytes.
  static func byteCount(
    _ text: String, of option: String, in range: ClosedRange<Int> = 1...largestByteCount
  ) throws(CommandError) -> Int {
    guard let count = byteCount(text), range.contains(count) else { throw invalidSize(text, of: option, in: range) }
    return count
  }

  static func invalidSize(
    _ text: String, of option: String, in range: ClosedRange<Int> = 1...largestByteCount
  ) -> CommandError {
    .usage(
      "--\(option) \(text.shown): invalid size. Write a size such as 64kB or 16MiB, \(self.range(ofBytes: range)).")
  }

  /// `32kB`: bytes per second.
  static func byteRate(
    _ text: String, of option: String, in range: ClosedRange<Int> = 1...largestByteCount
  ) throws(CommandError) -> Int {
    if let count = byteCount(text), range.contains(count) { return count }
    let size = text.hasSuffix("/s") ? String(text.dropLast(2)) : ""
    var hint = ""
    if let count = byteCount(size), range.contains(count) { hint = " Did you mean \(size)?" }
    throw .usage(
      "--\(option) \(text.shown): invalid rate. Write bytes per second as a size such as 64kB, \(self.range(ofBytes: range)).\(hint)"
    )
  }

  /// `48000`: frames per second.
  static func frameRate(_ text: String, of option: String, in range: ClosedRange<Int>) throws(CommandError) -> Int {
    if let rate = Int(text), range.contains(rate) { return rate }
    var hint = ""
    if let value = number(text, [("Hz", 1), ("kHz", 1000), ("k", 1000)]), let rate = Int(exactly: value.rounded()),
      range.contains(rate)
    {
      hint = " Did you mean \(rate)?"
    }
    throw .usage(
      "--\(option) \(text.shown): invalid rate. Write frames per second as a whole number from \(range.lowerBound) to \(range.upperBound).\(hint)"
    )
  }

  /// `from 1B to 10GB`.
  static func range(ofBytes range: ClosedRange<Int>) -> String {
    "from \(brief(bytes: range.lowerBound)) to \(brief(bytes: range.upperBound))"
  }

  /// 1 PB, more than any disk of these years stores.
  static let largestByteCount = 1_000_000_000_000_000

  /// `64KiB`, `10GB`: exact, in a form that an option accepts.
  static func brief(bytes count: Int) -> String {
    let units = [
      ("TB", 1_000_000_000_000), ("TiB", 1 << 40), ("GB", 1_000_000_000), ("GiB", 1 << 30), ("MB", 1_000_000),
      ("MiB", 1 << 20), ("kB", 1000), ("KiB", 1 << 10), ("B", 1),
    ]
    let unit = units.first { count >= $0.1 && count.isMultiple(of: $0.1) } ?? ("B", 1)
    return "\(count / unit.1)\(unit.0)"
  }

  /// Whichever of the two it is.
  static func byteCount(_ text: String) -> Int? {
    guard let value = number(text, sizes + [("", 1)]), value >= 1, value <= Double(largestByteCount) else {
      return nil
    }
    return Int(value)
  }

  private static let sizes: [(String, Double)] = [
    ("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("KiB", 1024), ("MiB", 1_048_576),
    ("GiB", 1_073_741_824), ("TiB", 1_099_511_627_776),
  ]

  /// Whether it is a number with a unit of sizes, in or out of every range.
  static func isSize(_ text: String) -> Bool { number(text, sizes) != nil }

  /// Whether it is a number above 0 without a unit, so that a unit may be all that it lacks.
  static func lacksUnit(_ text: String) -> Bool { number(text, [("", 1)]) ?? 0 > 0 }

  static func integer(_ text: String, of option: String, in range: ClosedRange<Int>) throws(CommandError) -> Int {
    guard let value = Int(text), range.contains(value) else {
      throw .usage(
        "--\(option) \(text.shown): invalid number. Write a whole number from \(range.lowerBound) to \(range.upperBound)."
      )
    }
    return value
  }

  private static func number(_ text: String, _ units: [(String, Double)]) -> Double? {
    let digits = text.prefix { $0.isASCII && ($0.isNumber || $0 == ".") }
    let suffix = text.dropFirst(digits.count)
    guard let value = Double(digits), let unit = units.first(where: { $0.0 == suffix }) else { return nil }
    return value * unit.1
  }

  // MARK: Human-readable text

  /// `1.2 MB`, always in decimal units.
  static func text(bytes: UInt64) -> String {
    var value = Double(bytes)
    var unit = "B"
    for next in ["kB", "MB", "GB", "TB", "PB"] where value >= 999.5 {
      value /= 1000
      unit = next
    }
    return unit == "B" ? "\(bytes) B" : "\(fixed(value, decimals: value < 9.995 ? 2 : value < 99.95 ? 1 : 0)) \(unit)"
  }

  /// `1:02:03`, `02:03`.
  static func clock(_ duration: Duration) -> String {
    let total = duration.nanoseconds / 1_000_000_000
    func two(_ value: Int64) -> String { value < 10 ? "0\(value)" : "\(value)" }
    let start = total >= 3600 ? "\(total / 3600):" : ""
    return start + two(total / 60 % 60) + ":" + two(total % 60)
  }

  /// `0.35 s`, `12 s`.
  static func text(_ duration: Duration) -> String {
    let seconds = duration.seconds
    return seconds < 9.995 ? "\(fixed(seconds, decimals: 2)) s" : "\(fixed(seconds, decimals: 0)) s"
  }

  /// `45 s`, `29 min`, `5 h`, `12 d`, `years`. Rounded down, because it is a remaining time.
  static func words(_ duration: Duration) -> String {
    let seconds = max(0, duration.nanoseconds / 1_000_000_000)
    let units: [(String, Int64, Int64)] = [("s", 1, 100), ("min", 60, 100 * 60), ("h", 3600, 48 * 3600)]
    let unit = units.first { seconds < $0.2 } ?? ("d", 86_400, .max)
    if seconds >= 1000 * 86_400 { return "years" }
    return "\(seconds / unit.1) \(unit.0)"
  }

  static func fixed(_ value: Double, decimals: Int) -> String {
    var scale = 1
    for _ in 0..<decimals { scale *= 10 }
    let scaled = Int((value * Double(scale)).rounded())
    guard decimals > 0 else { return "\(scaled)" }
    let fraction = String(abs(scaled) % scale)
    let sign = scaled < 0 ? "-" : ""
    return "\(sign)\(abs(scaled) / scale).\(String(repeating: "0", count: decimals - fraction.count))\(fraction)"
  }
}
