// Human-readable numbers: three significant digits and a unit.

/// Formats a figure with its unit, in the same way in tables, thresholds and sentences.
package enum Figure {
  /// `612 ms`, `1.25 s`, `90 µs`.
  package static func text(nanoseconds: Int64) -> String {
    scaled(Double(nanoseconds), [("ns", 1), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)])
  }

  /// `1.21 MB`, in decimal units.
  package static func text(bytes: UInt64) -> String {
    scaled(Double(bytes), [("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)])
  }

  /// `1.21 MB/s`.
  package static func text(bytesPerSecond: Double) -> String {
    text(bytes: UInt64(max(0, Int64(saturating: bytesPerSecond)))) + "/s"
  }

  /// `99.5 %` of a share from 0 to 1.
  package static func text(share: Double) -> String { digits(share * 100) + " %" }

  /// A count with a space between thousands: `15 000`. Unchanged below 10,000.
  package static func text(count: UInt64) -> String {
    let plain = String(count)
    guard plain.count > 4 else { return plain }
    var grouped = ""
    for (position, digit) in plain.enumerated() {
      if position > 0, (plain.count - position).isMultiple(of: 3) { grouped += " " }
      grouped.append(digit)
    }
    return grouped
  }

  private static func scaled(_ value: Double, _ units: [(String, Double)]) -> String {
    // 999.6 would be printed as 1000 of its unit, so it becomes 1.00 of the next.
    let unit = units.last { abs(value) >= $0.1 * 0.9995 } ?? units[0]
    // The smallest unit has no fractions.
    return (unit.1 == units[0].1 ? String(Int64(value)) : digits(value / unit.1)) + " " + unit.0
  }

  /// Three significant digits, or all digits before the decimal point.
  static func digits(_ value: Double) -> String {
    guard value.isFinite, abs(value) < 1e15 else { return "?" }
    let size = abs(value)
    let decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0
    let scale: Int64 = decimals == 2 ? 100 : decimals == 1 ? 10 : 1
    let rounded = Int64((size * Double(scale)).rounded())
    var text = String(rounded / scale)
    if decimals > 0 {
      let fraction = String(rounded % scale)
      text += "." + String(repeating: "0", count: decimals - fraction.count) + fraction
    }
    return value < 0 && rounded > 0 ? "-" + text : text
  }
}
