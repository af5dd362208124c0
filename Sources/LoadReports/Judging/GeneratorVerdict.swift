// Decides by a fixed rule whether a run measured the server or only its own generator.

/// The rule for a generator that did not keep up.
package enum GeneratorVerdict {
  /// The permitted 99th percentile of the lateness, or ``chunkShare`` of the time between messages if that is more.
  static let allowedLateness: Int64 = 10_000_000
  static let chunkShare = 0.1
  /// A loop that is busy for a larger share of the time has no reserve for a burst.
  static let allowedBusyShare = 0.9

  /// Why the figures include the generator's own delays, in words; empty if they do not.
  ///
  /// - Parameters:
  ///   - lateness: how much later than due messages were passed on.
  ///   - chunk: the time from one message of a stream to the next, in nanoseconds.
  ///   - busiestLoop: the share of the time in which the busiest loop did not wait, 0 to 1.
  package static func bottlenecks(lateness: LatencyHistogram, chunk: Int64, busiestLoop: Double) -> [String] {
    var reasons: [String] = []
    let allowed = max(allowedLateness, Int64(Double(chunk) * chunkShare))
    if let late = lateness.quantile(0.99), late > allowed {
      reasons.append(
        "1 % of the messages were \(Figure.text(nanoseconds: late)) late or more; "
          + "\(Figure.text(nanoseconds: allowed)) are allowed")
    }
    if busiestLoop > allowedBusyShare {
      reasons.append(
        "a network loop was busy for \(Figure.text(share: busiestLoop)) of the time; "
          + "\(Figure.text(share: allowedBusyShare)) are allowed")
    }
    return reasons
  }
}
