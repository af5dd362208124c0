// How long an outage may still last: what a person wants to know of the buffer.

extension StreamProgress {
  /// How much longer the circular buffer can take what the source produces while nothing is acknowledged, at the mean
  /// rate of the stream so far. nil before there is a rate.
  public var bufferTimeLeft: Duration? {
    let seconds = Double(elapsed.components.seconds) + Double(elapsed.components.attoseconds) * 1e-18
    guard captured > 0, seconds > 0 else { return nil }
    let left = Double(max(0, capacity - buffered)) / (Double(captured) / seconds)
    // Ten thousand years are as good as any longer time, and fit.
    return .seconds(Int64(min(left, 3e11)))
  }
}
