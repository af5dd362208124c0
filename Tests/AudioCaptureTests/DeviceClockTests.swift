// The clock that measures gaps, against devices whose true position is known.

import EventLoops
import PropertyTesting
import Testing

@testable import AudioCapture

@Suite("The device clock")
struct DeviceClockTests {
  /// A device that started at `start`, with a crystal that is off by a number of parts per million.
  private struct Device {
    let rate: Int, start: Int64, ppm: Double

    func frames(at time: Int64) -> UInt64 {
      UInt64(max(0, Double(time - start) * (1 + ppm / 1e6) * Double(rate) / 1e9))
    }
  }

  @Test(
    "the time of a device on the monotonic clock is exact to the frame after a few observations",
    arguments: [1, 2, 3, 4])
  func exact(seed: UInt64) {
    var random = SplitMix64(state: seed)
    let device = Device(rate: 48_000, start: 5_000_000_123, ppm: 0)
    // The start itself is detected late.
    var clock = DeviceClock(rate: 48_000, frames: 0, at: .init(nanoseconds: device.start + 400_000))
    var time = device.start
    for _ in 0..<200 {
      time += 10_000_000
      // A wake-up is late by 0 to 200 µs.
      let late = time + Int64.random(in: 0...200_000, using: &random)
      clock.observe(frames: device.frames(at: late), at: .init(nanoseconds: late))
    }
    for _ in 0..<100 {
      let later = time + Int64.random(in: 0...3_600_000_000_000, using: &random)
      let error = Int(clock.frames(at: .init(nanoseconds: later))) - Int(device.frames(at: later))
      #expect((-1...1).contains(error), "seed \(seed)")
    }
  }

  @Test(
    "after a week with a device clock that is off by 200 ppm, the length of a one-second gap is accurate to a third of a millisecond",
    arguments: [-200.0, 200.0])
  func drift(ppm: Double) {
    let device = Device(rate: 48_000, start: 0, ppm: ppm)
    let week: Int64 = 7 * 86_400 * 1_000_000_000
    var clock = DeviceClock(rate: 48_000, frames: 0, at: .init(nanoseconds: 0))
    for time in stride(from: week, to: week + 2_000_000_000, by: 10_000_000) {
      clock.observe(frames: device.frames(at: time), at: .init(nanoseconds: time))
    }
    let end = week + 3_000_000_000
    let error = Int(clock.frames(at: .init(nanoseconds: end))) - Int(device.frames(at: end))
    // 200 ppm of the gap itself (9.6 frames) and of half a second of observations.
    #expect(abs(error) <= 16)
  }

  @Test("one very late observation has no effect")
  func outlier() {
    let device = Device(rate: 48_000, start: 0, ppm: 0)
    var clock = DeviceClock(rate: 48_000, frames: 0, at: .init(nanoseconds: 0))
    for time in stride(from: Int64(10_000_000), to: 1_000_000_000, by: 10_000_000) {
      clock.observe(frames: device.frames(at: time), at: .init(nanoseconds: time))
    }
    // The process was stopped between reading the position and reading the clock.
    clock.observe(frames: device.frames(at: 1_000_000_000), at: .init(nanoseconds: 4_000_000_000))
    let frames = clock.frames(at: .init(nanoseconds: 5_000_000_000))
    #expect(abs(Int(frames) - 240_000) <= 1)
  }
}
