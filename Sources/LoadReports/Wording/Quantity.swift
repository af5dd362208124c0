// Times, sizes and shares in the notation of profiles and thresholds.

/// Reads a number with its unit, and formats it so that reading gives the same value.
package enum Quantity {
  private static let times: [(String, Int64)] = [
    ("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
  ]
  private static let sizes: [(String, Int64)] = [
    ("B", 1), ("kB", 1000), ("KiB", 1024), ("MB", 1_000_000), ("MiB", 1_048_576), ("GB", 1_000_000_000),
    ("GiB", 1_073_741_824), ("TB", 1_000_000_000_000), ("TiB", 1_099_511_627_776),
  ]

  /// The maximum time that is accepted, in nanoseconds: 30 days.
  package static let longestTime: Int64 = 30 * 86400 * 1_000_000_000

  /// `250ms`, `1.5 h`: nanoseconds, at most ``longestTime``. Nil for anything else.
  package static func nanoseconds(_ text: some StringProtocol) -> Int64? {
    value(text, times).flatMap { $0 <= longestTime ? $0 : nil }
  }

  /// `64kB` (1000), `16 MiB` (1024): bytes. Nil for anything else.
  package static func bytes(_ text: some StringProtocol) -> UInt64? { value(text, sizes).map { UInt64($0) } }

  /// `2.5%`: 0.025. Nil for anything else.
  package static func share(_ text: some StringProtocol) -> Double? {
    parts(text).flatMap { $1 == "%" ? $0 / 100 : nil }
  }

  /// A non-negative number and the text after it, without the spaces between.
  static func parts(_ text: some StringProtocol) -> (number: Double, unit: Substring)? {
    let digits = text.prefix { $0.isASCII && ($0.isNumber || $0 == ".") }
    guard let number = Double(String(digits)) else { return nil }
    return (number, Substring(text.dropFirst(digits.count)).drop { $0 == " " })
  }

  private static func value(_ text: some StringProtocol, _ units: [(String, Int64)]) -> Int64? {
    guard let (number, unit) = parts(text), let factor = units.first(where: { $0.0 == unit })?.1 else { return nil }
    let value = (number * Double(factor)).rounded()
    return value < 9e18 ? Int64(value) : nil
  }

  /// With the largest unit that gives an integer: `90s` and not `1.5min`.
  package static func text(nanoseconds: Int64) -> String { text(nanoseconds, times.filter { $0.0 != "µs" }) }
  package static func text(bytes: UInt64) -> String {
    text(Int64(clamping: bytes), sizes.filter { !$0.0.contains("i") })
  }

  private static func text(_ value: Int64, _ units: [(String, Int64)]) -> String {
    let unit = units.last { value >= $0.1 && value.isMultiple(of: $0.1) } ?? units[0]
    return "\(value / unit.1)\(unit.0)"
  }
}
