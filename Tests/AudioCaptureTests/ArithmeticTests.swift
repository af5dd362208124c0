// Times, frames and offsets at the limits of their types. No driver, clock or sleep may end the process.

import EventLoops
import Glibc
import PropertyTesting
import Testing

@testable import AudioCapture

@Suite("The arithmetic of a capture")
struct ArithmeticTests {
  /// Mostly numbers near an overflow, and sometimes any number.
  private static func extreme<Number: FixedWidthInteger>(_: Number.Type, _ random: inout SplitMix64) -> Number {
    let edges: [Number] = [
      .min, .min + 1, .max, .max - 1, 0, 1, .max / 2, .max / 2 + 1, .max / 1_000_000_000, .max / 1_000_000_000 + 1,
      .max / 48_000,
    ]
    if random.chance(60) { return edges[Int.random(in: 0..<edges.count, using: &random)] }
    let word = Number(truncatingIfNeeded: random.next())
    return word >> Number(Int.random(in: 0..<Number.bitWidth, using: &random))
  }

  private static func rate(_ random: inout SplitMix64) -> Int {
    [1_000, 44_100, 48_000, 192_000, 768_000][Int.random(in: 0..<5, using: &random)]
  }

  @Test("sums and products saturate at the ends of their range", arguments: Seed.several(3))
  func saturation(seed: Seed) {
    var random = seed.generator
    for _ in 0..<5_000 {
      let (a, b) = (Self.extreme(Int64.self, &random), Self.extreme(Int64.self, &random))
      #expect(a.addingSaturated(b) == Int64(clamping: Int128(a) + Int128(b)))
      #expect(a.multipliedSaturated(by: b) == Int64(clamping: Int128(a) * Int128(b)))
      let (instant, other) = (MonotonicInstant(nanoseconds: a), MonotonicInstant(nanoseconds: b))
      #expect(instant.nanoseconds(since: other) == Int64(clamping: Int128(a) - Int128(b)))
      #expect((instant - other).nanoseconds == Int64(clamping: Int128(a) - Int128(b)))
      #expect((instant + .nanoseconds(b)).nanoseconds == Int64(clamping: Int128(a) + Int128(b)))
      let (c, d) = (Self.extreme(UInt64.self, &random), Self.extreme(UInt64.self, &random))
      #expect(c.addingSaturated(d) == UInt64(clamping: Int128(c) + Int128(d)))
      #expect(c.multipliedSaturated(by: d) == UInt64(clamping: UInt128(c) * UInt128(d)))
    }
  }

  @Test("a device's clock counts any number of frames at any time", arguments: Seed.several(3))
  func deviceClock(seed: Seed) {
    var random = seed.generator
    for _ in 0..<2_000 {
      let rate = Self.rate(&random)
      let time = Self.extreme(Int64.self, &random)
      var clock = DeviceClock(
        rate: rate, frames: Self.extreme(UInt64.self, &random), at: MonotonicInstant(nanoseconds: time))
      for _ in 0..<4 {
        clock.observe(
          frames: Self.extreme(UInt64.self, &random),
          at: MonotonicInstant(nanoseconds: Self.extreme(Int64.self, &random)))
        _ = clock.frames(at: MonotonicInstant(nanoseconds: Self.extreme(Int64.self, &random)))
      }
      // A device that has just started without a frame: the exact count, as far as it can be represented.
      let fresh = DeviceClock(rate: rate, frames: 0, at: MonotonicInstant(nanoseconds: time))
      let later = Self.extreme(Int64.self, &random)
      let elapsed = max(0, Int128(Int64(clamping: Int128(later) - Int128(time))))
      let frames = (elapsed * Int128(rate) + 999_999_999) / 1_000_000_000
      #expect(fresh.frames(at: MonotonicInstant(nanoseconds: later)) == UInt64(clamping: frames))
    }
  }

  @Test("any number of frames has a duration", arguments: Seed.several(3))
  func durations(seed: Seed) {
    var random = seed.generator
    for _ in 0..<2_000 {
      let frames = Self.extreme(UInt64.self, &random)
      let format = CaptureFormat(
        rate: Self.rate(&random), channels: 64, format: .s32LE, periodFrames: Self.extreme(Int.self, &random),
        bufferFrames: Self.extreme(Int.self, &random), countsThroughOverruns: true)
      _ = (format.period, format.buffer)
      #expect(OpenDevice.silenceLimit(format) >= 5_000)
      let nanoseconds = Int128(frames) * 1_000_000_000 / Int128(format.rate)
      #expect(format.duration(of: frames).nanoseconds == Int64(clamping: nanoseconds))
    }
  }

  @Test("a device counts as silent only five seconds after the end of a period", arguments: [10, 5_000, 5_461])
  func silence(milliseconds: Int) {
    let frames = milliseconds * 48
    let format = CaptureFormat(
      rate: 48_000, channels: 1, format: .s16LE, periodFrames: frames, bufferFrames: 2 * frames,
      countsThroughOverruns: true)
    #expect(OpenDevice.silenceLimit(format) == Int32(5_000 + milliseconds))
  }

  @Test(
    "a time stamp counts only if it is close to the clock, whatever value a driver writes", arguments: Seed.several(3))
  func timeStamps(seed: Seed) {
    var random = seed.generator
    for _ in 0..<2_000 {
      let stamp = timespec(
        tv_sec: Self.extreme(Int.self, &random), tv_nsec: Self.extreme(Int.self, &random))
      let reference = MonotonicInstant(nanoseconds: Self.extreme(Int64.self, &random))
      guard let time = OpenDevice.time(stamp, near: reference) else { continue }
      #expect((time - reference).nanoseconds.magnitude < 1_000_000_000)
    }
    let now = MonotonicInstant(nanoseconds: 100_500_000_000)
    #expect(OpenDevice.time(timespec(tv_sec: 100, tv_nsec: 400_000_000), near: now)?.nanoseconds == 100_400_000_000)
    #expect(OpenDevice.time(timespec(tv_sec: 0, tv_nsec: 0), near: now) == nil)
  }
}
