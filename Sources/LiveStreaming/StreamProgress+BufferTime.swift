// The remaining time that an outage may last, for the status line.

extension StreamProgress {
  /// The time until the circular buffer is full if nothing is acknowledged. Nil before there is a rate.
  public var bufferTimeLeft: Duration? {
    guard let rate else { return nil }
    let left = Double(max(0, capacity - buffered)) / rate
    // Ten thousand years represent any longer time, and fit.
    return .seconds(Int64(min(left, 3e11)))
  }

  /// In bytes per second: that of the source, or the mean rate of the stream so far.
  ///
  /// The mean rate of a microphone would be too high after a sleep of the machine. ``captured`` includes the silence
  /// for the sleep, and ``elapsed`` excludes its time.
  private var rate: Double? {
    if let bytesPerSecond, bytesPerSecond > 0 { return Double(bytesPerSecond) }
    let seconds = Double(elapsed.components.seconds) + Double(elapsed.components.attoseconds) * 1e-18
    return captured > 0 && seconds > 0 ? Double(captured) / seconds : nil
  }
}
