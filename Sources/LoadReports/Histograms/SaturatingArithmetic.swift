// Sums and roundings of numbers from outside, which do not trap.

extension Int64 {
  /// The sum, or the largest number if it is more. Both are not negative.
  @inlinable
  package func addingSaturated(_ other: Int64) -> Int64 {
    let (sum, overflow) = addingReportingOverflow(other)
    return overflow ? .max : sum
  }

  /// The whole number next to a value, or the nearest one that there is.
  package init(saturating value: Double) {
    self = value >= 0x1p63 ? .max : value <= -0x1p63 ? .min : value.isNaN ? 0 : Int64(value.rounded())
  }
}
