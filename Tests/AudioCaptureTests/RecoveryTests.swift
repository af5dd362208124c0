// The accuracy of the timeline when the recovery is slow, and the machine had slept before the capture began.

import CallCounter
import EventLoops
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("A microphone that recovers slowly")
  struct RecoveryTests {
    enum Fault: CaseIterable { case overrun, suspend, unplug }

    private let rig = TestMicrophone()
    private let sleepClock = SleepClock { Duration.seconds(3_600).nanoseconds }

    private func configuration(
      _ kind: String = "testmic", buffer: Duration = .milliseconds(100)
    ) -> MicrophoneConfiguration {
      MicrophoneConfiguration(
        device: rig.name(kind), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: buffer)
    }

    private func hasReturned(_ session: CaptureSession) -> Bool {
      session.events.contains { if case .deviceReturned = $0 { true } else { false } }
    }

    @Test(
      "frames are at their position after a slow start, because the device reports its start time",
      arguments: Fault.allCases)
    func slowStart(fault: Fault) throws {
      let session = try CaptureSession(
        configuration(fault == .overrun ? "testmic_stopping" : "testmic"), sleepClock: sleepClock)
      session.take { $0.frames > 10_000 }
      testmic_set_start_delay(rig.page, 60)
      switch fault {
      case .overrun:
        testmic_order_overrun(rig.page, 30)
        session.take { $0.microphone.totals.overruns == 1 }
      case .suspend:
        testmic_set_suspended(rig.page, true)
        let prepares = testmic_prepares(rig.page)
        #expect(rig.wait { testmic_prepares($0) > prepares })
        testmic_set_suspended(rig.page, false)
        session.take { $0.microphone.totals.suspends == 1 }
      case .unplug:
        testmic_set_absent(rig.page, true)
        session.take { $0.microphone.totals.deviceLosses == 1 }
        testmic_set_absent(rig.page, false)
        session.take(until: hasReturned)
      }
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(timeline.foreign == 0 && timeline.silence.count == 1)
      for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 4) }
    }

    @Test("each reason why a lost device cannot be used again is reported once")
    func refused() throws {
      let name = rig.name("testmic_narrow")
      let device = try Negotiation(configuration: MicrophoneConfiguration(device: name, rate: 48_000, channels: 2))
        .open(explains: false)
      // It returns without the rate of the stream.
      let configuration = MicrophoneConfiguration(device: name, rate: 32_000, channels: 2)
      let shared = try CaptureShared(configuration)
      let ends = try CircularBuffer.make(capacity: .bytes(1 << 20), overflow: .refuse)
      var loop = CaptureLoop(
        device: device, configuration: configuration, shared: shared, producer: ends.producer, sleepClock: .system)
      func reasons() -> [CaptureEvent.Refusal] {
        var reasons: [CaptureEvent.Refusal] = []
        while let event = shared.events.next() {
          if case .deviceRefused(_, let reason) = event { reasons.append(reason) }
        }
        return reasons
      }
      loop.leave(EIO)
      for _ in 0..<3 { _ = loop.reopen(after: .zero) }
      #expect(reasons() == [.rate(nearest: 44_100)])
      testmic_set_busy(rig.page, true)
      for _ in 0..<3 { _ = loop.reopen(after: .zero) }
      #expect(reasons() == [.busy])
      testmic_set_absent(rig.page, true)
      for isBusy in [false, true] {
        testmic_set_busy(rig.page, isBusy)
        _ = loop.reopen(after: .zero)
      }
      testmic_set_absent(rig.page, false)
      testmic_set_busy(rig.page, false)
      _ = loop.reopen(after: .zero)
      #expect(reasons() == [], "they are known")
      // Another loss.
      loop.leave(ENODEV)
      _ = loop.reopen(after: .zero)
      #expect(reasons() == [.rate(nearest: 44_100)])
    }

    @Test("if a device disappears before its first frame, the stream has silence from its start to the device's")
    func goneAtFirst() throws {
      // A busy machine must not make the device overrun.
      let microphone = try Microphone(configuration(buffer: .seconds(2)), sleepClock: sleepClock)
      let ends = try CircularBuffer.make(capacity: .bytes(1 << 20), overflow: .refuse)
      var consumer = ends.consumer
      testmic_set_absent(rig.page, true)
      let before = MonotonicInstant.now
      try microphone.start(into: ends.producer)
      let after = MonotonicInstant.now
      rig.wait { _ in microphone.totals.frames > 20_000 }
      testmic_set_absent(rig.page, false)
      rig.wait { testmic_frames_delivered($0) > 5_000 }
      microphone.stop()
      microphone.waitUntilEnded()
      let silence = silenceBeforeFirstFrame(takeBytes(&consumer))
      let begun = testmic_t0_ns(rig.page)
      let least = Double(begun - after.nanoseconds) * 48e-6 - 3
      // The device's start may be noticed some time after it.
      let most = Double(begun - before.nanoseconds) * 48e-6 + 12_000
      #expect(Double(silence) > least && Double(silence) < most)
      #expect(microphone.totals.framesLost == UInt64(silence))
      var events: [CaptureEvent] = []
      while let event = microphone.nextEvent() { events.append(event) }
      #expect(events.contains(.deviceLost(streamOffset: 0, code: ENODEV)))
    }

    @Test("a device that is suspended before its first frame runs as soon as it is resumed, without being reopened")
    func suspendedAtFirst() throws {
      // A busy machine must not make the device overrun.
      let microphone = try Microphone(configuration(buffer: .seconds(2)), sleepClock: sleepClock)
      let ends = try CircularBuffer.make(capacity: .bytes(4 << 20), overflow: .refuse)
      var consumer = ends.consumer
      testmic_set_suspended(rig.page, true)
      let prepares = testmic_prepares(rig.page)
      try microphone.start(into: ends.producer)
      #expect(rig.wait { testmic_prepares($0) >= prepares + 3 })
      testmic_set_suspended(rig.page, false)
      rig.wait { testmic_frames_delivered($0) > 5_000 }
      microphone.stop()
      microphone.waitUntilEnded()
      let silence = silenceBeforeFirstFrame(takeBytes(&consumer))
      let totals = microphone.totals
      #expect(totals.suspends == 1 && totals.deviceLosses == 0 && totals.framesLost == UInt64(silence))
      #expect(testmic_opens(rig.page) == 1)
    }

    /// The number of silent frames before those of the device, which follow from its first one without a gap.
    private func silenceBeforeFirstFrame(_ bytes: [UInt8]) -> Int {
      let silence = bytes.prefix { $0 == 0 }.count / 4
      let noise = Timeline(Array(bytes[(silence * 4)...]), channels: 2)
      #expect(noise.runs.count == 1 && noise.runs.first?.device == 0 && noise.foreign == 0)
      return silence
    }

    private func takeBytes(_ consumer: inout CircularBuffer.Consumer) -> [UInt8] {
      var bytes: [UInt8] = []
      while case .bytes(let chunk) = consumer.read(
        at: UInt64(bytes.count), { span in span.withUnsafeBytes { [UInt8]($0) } })
      {
        bytes += chunk
        consumer.release(upTo: UInt64(bytes.count))
      }
      return bytes
    }

    @Test(
      "an overrun loses a period in addition to the overwritten frames, but at most a quarter of the ring",
      arguments: [(5, 240), (50, 1_200)])
    func margin(period: Int, margin: Int) throws {
      var configuration = configuration()
      configuration.period = .milliseconds(period)
      let session = try CaptureSession(configuration)
      let expected = 960 + margin
      // On a busy machine, the reader may wait for longer than ordered, but not each time.
      var isTight: Bool { rig.gaps.contains { $0.count <= expected + 100 } }
      for count in 1...30 {
        let frames = session.frames
        session.take { $0.frames > frames + 5_000 }
        testmic_order_overrun(rig.page, 20)
        session.take { $0.microphone.totals.overruns >= UInt64(count) }
        if count >= 3, isTight { break }
      }
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      #expect(isTight && rig.gaps.allSatisfy { $0.count >= expected })
      #expect(session.microphone.totals.framesLost == rig.framesLost)
    }

    @Test("a microphone without a thread reports an error, and leaves the device free")
    func noThread() throws {
      guard call_counter_works() else { return }
      let microphone = try Microphone(configuration())
      let ends = try CircularBuffer.make(capacity: .bytes(1 << 16), overflow: .refuse)
      refuse_next_thread_of_this_thread()
      do throws(MicrophoneError) {
        try microphone.start(into: ends.producer)
        Issue.record("it started")
      } catch {
        guard case .system(_, EAGAIN, _) = error else {
          Issue.record("\(error)")
          return
        }
      }
      guard case .supports = CaptureDevice.look(at: rig.name()) else {
        Issue.record("another program uses it")
        return
      }
      withExtendedLifetime(microphone) {}
    }
  }
}
