// A machine that sleeps for hours: a clock that the test sets replaces the kernel's, and the device is the real test
// device.

import EventLoops
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("A microphone whose machine sleeps")
  struct SleepTests {
    /// How the device reacts to the sleep.
    enum Device: CaseIterable {
      /// It is suspended and reports it.
      case suspends
      /// It continues as if nothing had happened.
      case saysNothing
      /// It disappears, and returns later.
      case disappears
    }

    private let rig = TestMicrophone()
    private let hours = Duration.seconds(3 * 3600)

    @Test(
      "hours of sleep count in the timeline, and one frame of silence is written for them",
      arguments: Device.allCases)
    func hoursAsleep(device: Device) throws {
      let configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .milliseconds(100))
      let clock = MovedClock()
      let session = try CaptureSession(
        configuration, overflow: .dropOldest, memory: .returned, allowsPauses: true,
        sleepClock: SleepClock { clock.value.nanoseconds })
      session.take { $0.frames > 10_000 }
      switch device {
      case .saysNothing: clock.value = hours
      case .suspends:
        testmic_set_suspended(rig.page, true)
        let prepares = testmic_prepares(rig.page)
        #expect(rig.wait { testmic_prepares($0) > prepares })
        clock.value = hours
        testmic_set_suspended(rig.page, false)
      case .disappears:
        testmic_set_absent(rig.page, true)
        session.take { $0.microphone.totals.deviceLosses == 1 }
        clock.value = hours
        testmic_set_absent(rig.page, false)
      }
      session.take { $0.consumer.nextPause != nil }
      let found = session.consumer.nextPause
      let pause = try #require(found)
      let frames = session.frames
      session.take { $0.frames > frames + 10_000 }
      session.finish()
      // Three hours, plus the time of the recovery.
      let lost = Int(pause.length) / 4
      #expect(lost >= 3 * 3600 * 48_000 && lost <= (3 * 3600 + 2) * 48_000)
      #expect(session.microphone.totals.frames == UInt64(session.frames + lost))
      let told = session.events.compactMap { event -> UInt64? in
        switch event {
        case .suspended(_, let frames, true), .deviceReturned(_, let frames, true, _): frames
        default: nil
        }
      }
      // Silence may have been written while the device was away, before the length of the sleep was known.
      #expect(told.count == 1 && told[0] >= UInt64(lost) && told[0] <= UInt64(lost) + 96_000)
      // Every frame is at its time: the device has continued to count, except during those hours.
      let count = session.frames
      let slip = (-4...4).first { slip in
        (0..<100).allSatisfy { frame in
          let streamFrame = count - 100 + frame + lost
          let deviceFrame = UInt64(streamFrame - 3 * 3600 * 48_000 + slip)
          return session.bytes.withUnsafeBytes {
            Timeline.matches($0, (count - 100 + frame) * 4, .s16LE, deviceFrame, 0)
          }
        }
      }
      #expect(slip != nil)
    }

    @Test("a sleep that is shorter than the buffer becomes silence")
    func shortSleep() throws {
      let configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .milliseconds(100))
      let clock = MovedClock()
      let session = try CaptureSession(
        configuration, capacity: 4 << 20, overflow: .dropOldest, allowsPauses: true,
        sleepClock: SleepClock { clock.value.nanoseconds })
      session.take { $0.frames > 5_000 }
      clock.value = .seconds(2)
      session.take { $0.microphone.totals.suspends == 1 && $0.frames > 5_000 + 2 * 48_000 + 5_000 }
      session.finish()
      let pause = session.consumer.nextPause
      #expect(pause == nil)
      let timeline = Timeline(session.bytes, channels: 2, skips: 0)
      let silence = timeline.silence.reduce(0) { $0 + $1.count }
      #expect(silence >= 2 * 48_000 && silence <= 3 * 48_000)
    }

    /// A silence, and the space for it.
    struct Room: Sendable, CustomStringConvertible {
      let milliseconds: Int, capacity: Int, unreadFrames: UInt64, isLeftOut: Bool
      var description: String { "\(milliseconds) ms, \(unreadFrames) of \(capacity / 32) frames unread" }
    }

    @Test(
      "silence is omitted if it is longer than the buffer, or if it does not fit and lasts at least a second",
      arguments: [
        Room(milliseconds: 500, capacity: 1 << 18, unreadFrames: 0, isLeftOut: true),
        Room(milliseconds: 1_200, capacity: 1 << 23, unreadFrames: 0, isLeftOut: false),
        Room(milliseconds: 1_100, capacity: 1 << 21, unreadFrames: 25_000, isLeftOut: true),
        Room(milliseconds: 700, capacity: 1 << 21, unreadFrames: 34_000, isLeftOut: false),
      ])
    func room(room: Room) throws {
      let configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 8, format: .s32LE, period: .milliseconds(5),
        buffer: .milliseconds(100))
      let clock = MovedClock()
      let session = try CaptureSession(
        configuration, capacity: room.capacity, overflow: .dropOldest, allowsPauses: true,
        sleepClock: SleepClock { clock.value.nanoseconds })
      let microphone = session.microphone
      session.take { $0.frames > 1_000 }
      let before = microphone.totals.frames
      rig.wait { _ in microphone.totals.frames > before + room.unreadFrames }
      clock.value = .milliseconds(room.milliseconds)
      session.takeEvents { $0.microphone.totals.suspends == 1 }
      let lost = microphone.totals.framesLost
      rig.wait { _ in microphone.totals.frames >= before + room.unreadFrames + lost }
      let pause = session.consumer.nextPause
      #expect((pause != nil) == room.isLeftOut)
      if let pause { #expect(pause.length == (lost - 1) * 32) }
      session.finish()
      #expect(session.offset == microphone.totals.frames * 32 - (pause?.length ?? 0))
    }

    @Test("hours of sleep are reported as lost even if the device never returns")
    func neverBack() throws {
      let configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .milliseconds(100))
      let clock = MovedClock()
      let session = try CaptureSession(
        configuration, overflow: .dropOldest, allowsPauses: true, sleepClock: SleepClock { clock.value.nanoseconds })
      session.take { $0.frames > 2_000 }
      testmic_set_absent(rig.page, true)
      session.take { $0.microphone.totals.deviceLosses == 1 }
      clock.value = hours
      let microphone = session.microphone
      rig.wait { _ in microphone.totals.framesLost > 3 * 3_600 * 48_000 }
      session.finish()
      let losses = session.events.compactMap { event -> UInt64? in
        if case .neverReturned(_, let lost, true) = event { lost } else { nil }
      }
      #expect(losses == [microphone.totals.framesLost])
      #expect(losses.allSatisfy { $0 > 3 * 3_600 * 48_000 && $0 < (3 * 3_600 + 20) * 48_000 })
    }

    @Test("the kernel's clock of sleep stands still while the machine is awake")
    func system() {
      let first = SleepClock.system.asleep()
      let end = MonotonicInstant.now + .milliseconds(150)
      while MonotonicInstant.now < end {
        let difference = SleepClock.system.asleep() - first
        #expect(difference.magnitude < 50_000_000)
      }
    }
  }
}

/// A value that the test sets and the capture thread reads.
private final class MovedClock: Sendable {
  private let lock = Lock(Duration.zero)
  var value: Duration {
    get { lock.withLock { $0 } }
    set { lock.withLock { $0 = newValue } }
  }
}
