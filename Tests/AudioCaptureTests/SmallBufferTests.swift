// Every fault of a device, with a circular buffer that is smaller than the resulting gap.

import AudioCapture
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

extension RealALSA {
  @Suite("A microphone with a small buffer")
  struct SmallBufferTests {
    enum Fault: CaseIterable { case overrun, suspend, unplug }

    struct Shape: Sendable, CustomStringConvertible {
      let channels: Int, format: SampleFormat, capacity: Int
      var description: String { "\(channels) × \(format.name), \(capacity) bytes" }
    }

    /// Frames of 4, 9 and 32 bytes. Buffers of one page, of `--buffer 1s` for the widest one, and one in between.
    static let shapes = [
      Shape(channels: 2, format: .s16LE, capacity: 4_096),
      Shape(channels: 3, format: .s24_3LE, capacity: 100_000),
      Shape(channels: 8, format: .s32LE, capacity: 48_000 * 32 / 8),
    ]

    @Test(
      "a fault that is longer than the buffer ends nothing, and the stream's frames are at their positions",
      arguments: Fault.allCases, shapes)
    func faults(fault: Fault, shape: Shape) throws {
      try check(fault, shape, .dropOldest)
      if shape.channels == 2 { try check(fault, shape, .refuse) }
    }

    private func check(_ fault: Fault, _ shape: Shape, _ overflow: CircularBuffer.Overflow) throws {
      let rig = TestMicrophone()
      let configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: shape.channels, format: shape.format, period: .milliseconds(5),
        buffer: .milliseconds(100))
      let session = try CaptureSession(
        configuration, capacity: shape.capacity, overflow: overflow, memory: .returned)
      let microphone = session.microphone
      session.take { $0.frames > 1_000 }
      switch fault {
      case .overrun:
        testmic_order_overrun(rig.page, 150)
        session.take { $0.microphone.totals.overruns > 0 }
      case .suspend:
        testmic_set_suspended(rig.page, true)
        let prepares = testmic_prepares(rig.page)
        #expect(rig.wait { testmic_prepares($0) >= prepares + 4 })
        testmic_set_suspended(rig.page, false)
        session.take { $0.microphone.totals.suspends > 0 }
      case .unplug:
        testmic_set_absent(rig.page, true)
        session.take { $0.microphone.totals.deviceLosses > 0 }
        testmic_set_absent(rig.page, false)
        session.take { session in
          session.events.contains { if case .deviceReturned = $0 { true } else { false } }
        }
      }
      // After the silence that is due, which may not be written yet.
      let offset = session.offset
      let wanted = (Int(microphone.totals.framesLost) + 6_000) * microphone.format.bytesPerFrame
      session.take { $0.offset > offset + UInt64(wanted) }
      session.finish()
      #expect(session.offset == microphone.totals.frames * UInt64(microphone.format.bytesPerFrame))
      let slip = (-4...4).first { endsWithNoise(session.bytes, shape, frames: Int(microphone.totals.frames) + $0) }
      #expect(slip != nil, "\(fault) \(shape) \(overflow)")
    }

    /// Whether the last frames of a stream are those before the device's frame `frames`. Only the last ones are
    /// compared, because the buffer may have dropped earlier ones.
    private func endsWithNoise(_ bytes: [UInt8], _ shape: Shape, frames: Int) -> Bool {
      let frameBytes = shape.channels * shape.format.bytesPerSample
      let count = 100
      return bytes.suffix(count * frameBytes).withUnsafeBytes { tail in
        (0..<count).allSatisfy { frame in
          (0..<shape.channels).allSatisfy { channel in
            Timeline.matches(
              tail, frame * frameBytes + channel * shape.format.bytesPerSample, shape.format,
              UInt64(frames - count + frame), UInt32(channel))
          }
        }
      }
    }
  }
}
