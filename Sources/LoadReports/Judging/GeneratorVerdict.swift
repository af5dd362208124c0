// Whether a run measured the server or only its own generator: said by a rule, not by a feeling.

/// The rule by which a generator did not keep up.
package enum GeneratorVerdict {
  /// The 99th percentile of the lateness may be this much, or ``chunkShare`` of the time between messages if that is
  /// more.
  static let allowedLateness: Int64 = 10_000_000
  static let chunkShare = 0.1
  /// A loop that is busy for more of the time than this has no reserve for a burst.
  static let allowedBusyShare = 0.9

  /// Why the generator's own delays are in the figures, in words, or nothing.
  ///
  /// - Parameters:
  ///   - lateness: by how much messages were handed over later than they were due.
  ///   - chunk: the time from one message of a stream to the next, in nanoseconds.
  ///   - busiestLoop: the part of the time that the busiest loop did not wait, 0 to 1.
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
