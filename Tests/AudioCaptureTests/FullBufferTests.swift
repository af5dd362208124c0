// A full circular buffer: the behaviour of the capture thread until there is space, and its cost.

import CallCounter
import EventLoops
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("A microphone with a full buffer")
  struct FullBufferTests {
    private let rig = TestMicrophone()

    private func configuration(
      period: Duration, buffer: Duration, channels: Int = 2, format: SampleFormat = .s16LE
    ) -> MicrophoneConfiguration {
      MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: channels, format: format, period: period, buffer: buffer)
    }

    private func isFull(_ session: CaptureSession) -> Bool {
      session.events.contains { if case .bufferFull = $0 { true } else { false } }
    }

    @Test("the frames that a device held during a delayed read arrive in many pieces, and none counts as overwritten")
    func readerInTheWay() throws {
      // 1024 frames of buffer, 48000 in the device.
      let session = try CaptureSession(
        configuration(period: .milliseconds(5), buffer: .seconds(1)), capacity: 4_096, overflow: .dropOldest)
      session.take { $0.frames > 2_000 }
      var isHeld = false
      while !isHeld {
        let oldest = session.consumer.released
        let result = session.consumer.read(at: oldest) { _ in
          rig.wait { testmic_unread_frames($0) > 30_000 }
        }
        if case .bytes = result { isHeld = true }
      }
      let microphone = session.microphone
      let frames = microphone.totals.frames
      rig.wait { _ in microphone.totals.frames > frames + 35_000 }
      #expect(microphone.totals.frames > frames + 35_000)
      session.finish()
      #expect(isFull(session) && rig.framesLost == 0)
      #expect(microphone.totals.framesLost == 0 && microphone.totals.overruns == 0)
      #expect(session.offset == microphone.totals.frames * 4)
    }

    @Test("the capture uses space at once when a reader frees it, not a period later")
    func wakeUp() throws {
      let session = try CaptureSession(
        configuration(period: .seconds(1), buffer: .seconds(4)), capacity: 16_384)
      session.take { $0.frames > 0 }
      let begun = MonotonicInstant.now
      // Twelve times the capacity of the buffer.
      session.take { $0.frames >= 45_000 }
      #expect(MonotonicInstant.now - begun < .seconds(10))
      session.finish()
      #expect(rig.framesLost == 0)
    }

    @Test("frames for which a full buffer has no room when the capture is stopped count as lost")
    func stopped() throws {
      let session = try CaptureSession(
        configuration(period: .milliseconds(5), buffer: .seconds(1)), capacity: 16_384)
      let microphone = session.microphone
      session.takeEvents(until: isFull)
      rig.wait { testmic_unread_frames($0) > 10_000 }
      let unread = testmic_unread_frames(rig.page)
      microphone.stop()
      // Nothing is read before the end.
      microphone.waitUntilEnded()
      session.finish()
      let totals = microphone.totals
      #expect(session.offset == totals.frames * 4)
      #expect(totals.framesLost >= unread)
      let losses = session.events.compactMap(\.loss)
      #expect(losses.reduce(0) { $0 + $1.frames } == totals.framesLost)
      #expect(losses.last?.filled == false)
    }

    @Test("frames after an overrun whose silence fills the buffer count as lost when the capture is stopped")
    func stoppedAfterOverrun() throws {
      let configuration = configuration(period: .milliseconds(5), buffer: .milliseconds(100))
      let shared = try CaptureShared(configuration)
      let ends = try CircularBuffer.make(capacity: .bytes(4_096), overflow: .refuse, memory: .kept)
      let device = try Negotiation(configuration: configuration).open(explains: false)
      defer { device.close() }
      var loop = CaptureLoop(
        device: device, configuration: configuration, shared: shared, producer: ends.producer, sleepClock: .system)
      let consumer = ends.consumer
      _ = loop.start()
      testmic_order_overrun(rig.page, 20)
      // As in the turn that notices the order to stop.
      shared.stop.signal()
      loop.stopRequested = true
      _ = loop.read(device)
      let unread = testmic_unread_frames(rig.page)
      _ = loop.endOnRequest()
      #expect(consumer.head == 4_096, "silence fills the buffer")
      #expect(unread > 4_800 && shared.totals.snapshot(eventsMissed: 0).framesLost >= unread)
    }

    /// How often the capture thread reads the clock while `body` runs, per period.
    private func looks(_ period: Duration, _ body: () -> Void) -> Double {
      let begun = MonotonicInstant.now
      call_counter_arm("sluice-capture")
      body()
      call_counter_disarm()
      return Double(call_counter_clock_reads()) / ((MonotonicInstant.now - begun).seconds / period.seconds + 2)
    }

    @Test("without a reader, the capture thread wakes once per period")
    func idle() throws {
      guard call_counter_works() else { return }
      let period = Duration.milliseconds(100)
      let session = try CaptureSession(configuration(period: period, buffer: .seconds(4)), capacity: 16_384)
      // Wake-ups for space have arrived by then.
      session.take { $0.frames > 10_000 }
      session.takeEvents(until: isFull)
      let end = MonotonicInstant.now + .milliseconds(600)
      #expect(looks(period) { rig.wait { _ in MonotonicInstant.now > end } } < 40)
      session.finish()
      #expect(rig.framesLost == 0)
    }

    @Test("a reader that frees space frame by frame wakes the capture thread when there is enough")
    func smallSteps() throws {
      guard call_counter_works() else { return }
      let period = Duration.milliseconds(100)
      let session = try CaptureSession(
        configuration(period: period, buffer: .seconds(4), channels: 8, format: .s32LE), capacity: 1 << 16)
      session.takeEvents(until: isFull)
      let released = session.consumer.released
      let count = looks(period) {
        for frame in 1...400 {
          session.consumer.release(upTo: released + UInt64(frame) * 32)
          poll(nil, 0, 1)
        }
      }
      #expect(count < 40)
      session.finish()
      #expect(rig.framesLost == 0)
    }
  }
}
