// The quantity of an axis, and the text of its values: as everywhere in a report (`Figure`), but without trailing
// zeros.

/// A kind of figure. Durations are in nanoseconds, rates in bytes per second, and shares from 0 to 1.
enum AxisQuantity: Sendable {
  case count, byteRate, duration, share, seconds

  /// With its unit and three significant digits: `31.2 ms`, `9.60 MB/s`, `10 000`, `0.35 %`, `1:05`.
  func text(_ value: Double) -> String {
    // No valid figure is beyond this, and a conversion to an integer would end the process.
    guard value.isFinite, value.magnitude < 9e18 else { return "–" }
    return switch self {
    case .count: Figure.text(count: UInt64(max(0, value.rounded())))
    case .byteRate: Figure.text(bytesPerSecond: value)
    case .duration: Figure.text(nanoseconds: Int64(value.rounded()))
    case .share: Figure.text(share: value)
    case .seconds: Self.clock(value)
    }
  }

  /// The same for the ticks of an axis, whose values are round: `20 ms`, `2.5 MB/s`.
  func label(_ value: Double) -> String {
    if value == 0, self != .seconds { return "0" }
    let words = text(value)
    guard let space = words.firstIndex(of: " "), words[..<space].contains(".") else { return words }
    var number = words[..<space]
    while number.last == "0" { number.removeLast() }
    if number.last == "." { number.removeLast() }
    return String(number + words[space...])
  }

  /// `1:05`, `1:02:03`.
  private static func clock(_ seconds: Double) -> String {
    let total = Int(seconds.rounded())
    func two(_ value: Int) -> String { value < 10 ? "0\(value)" : "\(value)" }
    return total >= 3600
      ? "\(total / 3600):\(two(total / 60 % 60)):\(two(total % 60))" : "\(total / 60):\(two(total % 60))"
  }
}
