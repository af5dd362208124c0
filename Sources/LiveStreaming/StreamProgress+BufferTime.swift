// The remaining time that an outage may last, for the status line.

extension StreamProgress {
  /// The time until the circular buffer is full if nothing is acknowledged, at the mean rate of the stream so far. Nil
  /// before there is a rate.
  public var bufferTimeLeft: Duration? {
    let seconds = Double(elapsed.components.seconds) + Double(elapsed.components.attoseconds) * 1e-18
    guard captured > 0, seconds > 0 else { return nil }
    let left = Double(max(0, capacity - buffered)) / (Double(captured) / seconds)
    // Ten thousand years represent any longer time, and fit.
    return .seconds(Int64(min(left, 3e11)))
  }
}
