// How many frames a device has produced at a given moment: a state machine of observations, without I/O or clock.

internal import EventLoops

/// Relates the frames of a stream to `CLOCK_MONOTONIC`, to determine the length of a gap when the device cannot.
///
/// An observation means that at this moment at least n frames existed. It is always late, by the wake-up or by a
/// server's latency, so among the last observations the one counts that implies the earliest start. Only about the last
/// half second is used: the device's crystal is off by up to about 100 ppm, and an old observation would carry that
/// error on.
struct DeviceClock {
  /// The nominal number of frames per second.
  let rate: Int
  /// The time of frame 0 by the best observation of the current and of the previous window.
  private var current: MonotonicInstant
  private var previous: MonotonicInstant
  private var windowEnd: MonotonicInstant

  private static let window: Int64 = 250_000_000

  /// - Parameter frames: the number of the stream's frames when the device started, at `time`.
  init(rate: Int, frames: UInt64, at time: MonotonicInstant) {
    self.rate = rate
    current = Self.start(frames: frames, at: time, rate: rate)
    previous = current
    windowEnd = time + .nanoseconds(Self.window)
  }

  /// At `time`, at least `frames` frames of the stream existed.
  mutating func observe(frames: UInt64, at time: MonotonicInstant) {
    let start = Self.start(frames: frames, at: time, rate: rate)
    if time >= windowEnd {
      // The first window contains the exact start, which is not an observation, and has now served its time.
      previous = current
      current = start
      windowEnd = time + .nanoseconds(Self.window)
    } else {
      current = min(current, start)
    }
  }

  /// The index of the first frame that begins at `time` or later.
  func frames(at time: MonotonicInstant) -> UInt64 {
    let elapsed = time.nanoseconds(since: min(current, previous))
    guard elapsed > 0 else { return 0 }
    // 128 bits: nanoseconds times rate would overflow 64 bits after a day at 192 kHz.
    let (quotient, remainder) = (Int128(elapsed) * Int128(rate)).quotientAndRemainder(dividingBy: 1_000_000_000)
    return UInt64(clamping: quotient + (remainder > 0 ? 1 : 0))
  }

  /// The time of frame 0, given that there are `frames` at `time`.
  private static func start(frames: UInt64, at time: MonotonicInstant, rate: Int) -> MonotonicInstant {
    // For every period, so without 128 bits: the whole seconds first, and then the rest, which is below the rate.
    let (seconds, rest) = frames.quotientAndRemainder(dividingBy: UInt64(rate))
    let length = seconds.multipliedSaturated(by: 1_000_000_000)
      .addingSaturated(rest.multipliedSaturated(by: 1_000_000_000) / UInt64(rate))
    return time.advanced(byNanoseconds: -Int64(clamping: length))
  }
}
