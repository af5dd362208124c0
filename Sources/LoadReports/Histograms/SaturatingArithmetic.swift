// Sums and roundings of numbers from outside that do not trap.

extension Int64 {
  /// The sum, or the largest number if it exceeds that. Both must be non-negative.
  @inlinable
  package func addingSaturated(_ other: Int64) -> Int64 {
    let (sum, overflow) = addingReportingOverflow(other)
    return overflow ? .max : sum
  }

  /// The integer nearest to a value, within the range of the type.
  package init(saturating value: Double) {
    self = value >= 0x1p63 ? .max : value <= -0x1p63 ? .min : value.isNaN ? 0 : Int64(value.rounded())
  }
}
