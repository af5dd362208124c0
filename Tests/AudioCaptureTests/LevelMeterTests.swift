// Levels, against signals whose level is known.

import Glibc
import Testing

@testable import AudioCapture

@Suite("The level meter")
struct LevelMeterTests {
  /// Two channels: a sine of the given amplitude, and nothing.
  private func sine(_ format: SampleFormat, amplitude: Double, frames: Int) -> [UInt8] {
    var bytes: [UInt8] = []
    for frame in 0..<frames {
      for value in [amplitude * sin(2 * .pi * Double(frame) / 100), 0] {
        switch format {
        case .s16LE: withUnsafeBytes(of: Int16(value * 32767)) { bytes += $0 }
        case .s24_3LE: withUnsafeBytes(of: Int32(value * 8_388_607)) { bytes += $0.prefix(3) }
        case .s32LE: withUnsafeBytes(of: Int32(value * 2_147_483_647)) { bytes += $0 }
        case .floatLE: withUnsafeBytes(of: Float(value)) { bytes += $0 }
        }
      }
    }
    return bytes
  }

  @Test(
    "a sine at -6 dBFS has that peak and 3 dB less RMS, and a silent channel has neither",
    arguments: SampleFormat.allCases)
  func sine(format: SampleFormat) {
    let meter = LevelMeter(channels: 2, format: format)
    let bytes = sine(format, amplitude: 0.5, frames: 4800)
    // In unequal pieces, like real periods.
    bytes.withUnsafeBytes { bytes in
      let frame = 2 * format.bytesPerSample
      // The buffer is not empty.
      meter.measure(bytes.baseAddress!, frames: 1000)
      meter.measure(bytes.baseAddress! + 1000 * frame, frames: 3800)
    }
    let levels = meter.take()
    #expect(abs(levels[0].peak - -6.02) < 0.01)
    #expect(abs(levels[0].rms - -9.03) < 0.01)
    #expect(levels[1] == ChannelLevel(peak: -.infinity, rms: -.infinity))
    #expect(meter.take()[0].peak == -.infinity, "a reading starts over")
  }

  @Test("full scale is 0 dBFS, even for the most negative sample", arguments: SampleFormat.allCases)
  func fullScale(format: SampleFormat) {
    let sample: [UInt8] =
      switch format {
      case .s16LE: [0, 0x80]
      case .s24_3LE: [0, 0, 0x80]
      case .s32LE: [0, 0, 0, 0x80]
      case .floatLE: [0, 0, 0x80, 0xBF]
      }
    let meter = LevelMeter(channels: 1, format: format)
    // The buffer is not empty.
    (sample + sample).withUnsafeBytes { meter.measure($0.baseAddress!, frames: 2) }
    #expect(meter.take() == [ChannelLevel(peak: 0, rms: 0)])
  }

  @Test("a float device that delivers NaN does not affect the level")
  func notANumber() {
    let meter = LevelMeter(channels: 1, format: .floatLE)
    withUnsafeBytes(of: (Float.nan, Float(1), Float.infinity)) { meter.measure($0.baseAddress!, frames: 3) }
    #expect(meter.take()[0].peak == 0)
  }
}
