// Calls that the capture thread must not make, counted during everything that it does while there is a device.

import AudioCapture
import CallCounter
import TestDeviceControl
import TestRigs
import Testing

extension RealALSA {
  @Suite("The capture thread")
  struct RealTimeSafetyTests {
    private let rig = TestMicrophone()

    private var configuration: MicrophoneConfiguration {
      MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .milliseconds(100))
    }

    @Test("the capture thread neither allocates nor locks, even during overruns")
    func realTimeSafety() throws {
      guard call_counter_works() else { return }
      let session = try CaptureSession(configuration)
      session.take { $0.frames > 5_000 }
      call_counter_arm("sluice-capture")
      testmic_order_spurious_wake(rig.page)
      testmic_order_short_read(rig.page, 7)
      testmic_order_overrun(rig.page, 10)
      session.take { $0.microphone.totals.overruns == 1 }
      let frames = session.frames
      session.take { $0.frames > frames + 48_000 }
      call_counter_disarm()
      session.finish()
      #expect(call_counter_allocations() == 0)
      #expect(call_counter_locks() == 0)
    }

    @Test("the counter of calls observes the capture thread: opening a device allocates")
    func counterWorks() throws {
      guard call_counter_works() else { return }
      let session = try CaptureSession(configuration)
      session.take { $0.frames > 1_000 }
      call_counter_arm("sluice-capture")
      testmic_set_absent(rig.page, true)
      session.take { $0.microphone.totals.deviceLosses == 1 }
      testmic_set_absent(rig.page, false)
      session.take { session in session.events.contains { if case .deviceReturned = $0 { true } else { false } } }
      call_counter_disarm()
      session.finish()
      #expect(call_counter_allocations() > 0)
    }
  }
}
