// How many frames a device has produced by a given moment: a state machine of observations, without I/O or clock.

internal import EventLoops

/// Relates the frames of a stream to `CLOCK_MONOTONIC`, so that the length of a gap can be told when the device itself cannot.
///
/// An observation says "at this moment at least n frames existed". It is always late, by the wake-up, by a server's
/// latency; so of the last observations the one counts that puts the start earliest. Only the last half second or so
/// is used: the device's crystal is off by up to some 100 ppm, and an old observation would carry that error on.
struct DeviceClock {
  /// Frames per second, nominal.
  let rate: Int
  /// The moment of frame 0 by the best observation of the current and of the previous window, in nanoseconds.
  private var current: Int64
  private var previous: Int64
  private var windowEnd: Int64

  private static let window: Int64 = 250_000_000

  /// - Parameter frames: the stream's frames that existed when the device started, at `time`.
  init(rate: Int, frames: UInt64, at time: MonotonicInstant) {
    self.rate = rate
    current = time.nanoseconds - Self.duration(of: frames, rate: rate)
    previous = current
    windowEnd = time.nanoseconds + Self.window
  }

  /// At `time` at least `frames` of the stream existed.
  mutating func observe(frames: UInt64, at time: MonotonicInstant) {
    let start = time.nanoseconds - Self.duration(of: frames, rate: rate)
    if time.nanoseconds >= windowEnd {
      // The first window knows the moment of the start itself, which is no observation from afar: it has had its time.
      previous = current
      current = start
      windowEnd = time.nanoseconds + Self.window
    } else {
      current = min(current, start)
    }
  }

  /// The index of the first frame that begins at `time` or later.
  func frames(at time: MonotonicInstant) -> UInt64 {
    let elapsed = time.nanoseconds - min(current, previous)
    guard elapsed > 0 else { return 0 }
    // 128 bits: nanoseconds times rate would overflow 64 bits after a day at 192 kHz.
    let (quotient, remainder) = (Int128(elapsed) * Int128(rate)).quotientAndRemainder(dividingBy: 1_000_000_000)
    return UInt64(quotient) + (remainder > 0 ? 1 : 0)
  }

  private static func duration(of frames: UInt64, rate: Int) -> Int64 {
    Int64(Int128(frames) * 1_000_000_000 / Int128(rate))
  }
}
