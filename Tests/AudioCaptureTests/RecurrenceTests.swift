// Recurring and silent faults: leaked descriptors, and the stream's reports.

import EventLoops
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("A microphone with recurring faults")
  struct RecurrenceTests {
    private let rig = TestMicrophone()

    private static func configuration(_ rig: TestMicrophone) -> MicrophoneConfiguration {
      MicrophoneConfiguration(
        // So large that a thread which does not run for a moment causes no overrun.
        device: rig.name(), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .seconds(1))
    }

    private static func openDescriptors() -> Int { (0..<Int32(4096)).count { fcntl($0, F_GETFD) >= 0 } }

    private static func hasReturned(_ times: Int) -> (CaptureSession) -> Bool {
      { $0.events.count { if case .deviceReturned = $0 { true } else { false } } >= times }
    }

    /// What the kernel shows of one sound card, whose device belongs to a program.
    private static func kernel() -> ScratchDirectory {
      let kernel = ScratchDirectory()
      for name in ["asound", "asound/card0", "asound/card0/pcm0c", "asound/card0/pcm0c/sub0"] {
        mkdir(kernel.file(name), 0o700)
      }
      _ = kernel.write("Mic\n", to: "asound/card0/id")
      _ = kernel.write("name: First\n", to: "asound/card0/pcm0c/info")
      _ = kernel.write("owner_pid   : 1\n", to: "asound/card0/pcm0c/sub0/status")
      return kernel
    }

    /// Requests that such a microphone refuses.
    private static func wrong(_ narrow: String) -> [MicrophoneConfiguration] {
      [
        MicrophoneConfiguration(device: narrow, rate: 8_000, channels: 2), .init(device: narrow, channels: 1),
        .init(device: narrow, channels: 2, format: .s24_3LE),
      ]
    }

    @Test("no refusal or search leaks a descriptor")
    func leaks() async {
      // In a separate process, because other tests open descriptors, too.
      await #expect(processExitsWith: .success) {
        let (rig, kernel) = (TestMicrophone(), RecurrenceTests.kernel())
        let narrow = rig.name("testmic_narrow")
        func refuse() {
          for wrong in RecurrenceTests.wrong(narrow) { if (try? Microphone(wrong)) != nil { exit(2) } }
          _ = CaptureDevice.look(at: narrow)
          if ProcAsound.captureDevices(ofCard: 0, under: kernel.file("asound")).count != 1 { exit(3) }
          if DeviceHolder.find(in: kernel.path) == nil { exit(4) }
          testmic_set_busy(rig.page, true)
          _ = CaptureDevice.look(at: narrow)
          testmic_set_busy(rig.page, false)
        }
        // The first one loads what ALSA needs.
        refuse()
        let before = RecurrenceTests.openDescriptors()
        for _ in 0..<15 { refuse() }
        if RecurrenceTests.openDescriptors() - before >= 10 { exit(1) }
      }
    }

    @Test("after each refusal the device is free")
    func refusals() throws {
      let narrow = rig.name("testmic_narrow")
      let kernel = Self.kernel()
      for _ in 0..<15 {
        for wrong in Self.wrong(narrow) {
          #expect(throws: MicrophoneError.self) { try Microphone(wrong) }
          // A descriptor that was still open would prevent this.
          guard case .supports = CaptureDevice.look(at: narrow) else {
            Issue.record("it is not free after \(wrong)")
            return
          }
        }
        #expect(ProcAsound.captureDevices(ofCard: 0, under: kernel.file("asound")).count == 1)
        #expect(DeviceHolder.find(in: kernel.path) == "a program (pid 1)")
        testmic_set_busy(rig.page, true)
        #expect(CaptureDevice.look(at: narrow) == .busy(holder: nil))
        testmic_set_busy(rig.page, false)
      }
    }

    @Test("a device that disappears and returns, first without power, leaks no descriptor")
    func lossesLeak() async {
      // In a separate process, because other tests open descriptors, too.
      await #expect(processExitsWith: .success) {
        let rig = TestMicrophone()
        let session = try CaptureSession(RecurrenceTests.configuration(rig), capacity: 4 << 20)
        session.take { $0.frames > 5_000 }
        func lose(_ round: Int) {
          testmic_set_absent(rig.page, true)
          session.take { $0.microphone.totals.deviceLosses == UInt64(round) }
          // It is back, but cannot be started: attempts open it and must close it again.
          testmic_set_suspended(rig.page, true)
          testmic_set_absent(rig.page, false)
          let opens = testmic_opens(rig.page)
          if !rig.wait(until: { testmic_opens($0) >= opens + 2 }) { exit(2) }
          testmic_set_suspended(rig.page, false)
          session.take(until: RecurrenceTests.hasReturned(round))
          let frames = session.frames
          session.take { $0.frames > frames + 5_000 }
        }
        lose(1)
        let before = RecurrenceTests.openDescriptors()
        for round in 2...7 { lose(round) }
        // Each of them has opened the device at least twice.
        if RecurrenceTests.openDescriptors() - before >= 6 { exit(1) }
        session.finish()
      }
    }

    @Test("a device that disappears and returns, first without power, is found each time")
    func losses() throws {
      let session = try CaptureSession(Self.configuration(rig), capacity: 4 << 20)
      session.take { $0.frames > 5_000 }
      let count = 4
      for round in 1...count {
        testmic_set_absent(rig.page, true)
        session.take { $0.microphone.totals.deviceLosses == UInt64(round) }
        if round.isMultiple(of: 2) {
          // It is back, but cannot be started: attempts open it and must close it again.
          testmic_set_suspended(rig.page, true)
          testmic_set_absent(rig.page, false)
          let opens = testmic_opens(rig.page)
          #expect(rig.wait { testmic_opens($0) >= opens + 2 })
          testmic_set_suspended(rig.page, false)
        } else {
          testmic_set_absent(rig.page, false)
        }
        session.take(until: Self.hasReturned(round))
        let frames = session.frames
        session.take { $0.frames > frames + 5_000 }
      }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(timeline.foreign == 0 && timeline.silence.count == count)
      for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 3) }
      #expect(Int(session.microphone.totals.framesLost) == timeline.silence.reduce(0) { $0 + $1.count })
    }

    @Test("while a device is gone, its silence does not replace unread frames")
    func unread() throws {
      // 0.7 s.
      let session = try CaptureSession(Self.configuration(rig), capacity: 1 << 17, overflow: .dropOldest)
      session.take { $0.frames > 5_000 }
      testmic_set_absent(rig.page, true)
      session.takeEvents { $0.microphone.totals.deviceLosses == 1 }
      // Nothing is read for longer than the buffer lasts.
      let end = MonotonicInstant.now + .milliseconds(1_800)
      rig.wait { _ in MonotonicInstant.now > end }
      session.finish()
      #expect(session.bytes.count == Int(session.offset))
      let timeline = Timeline(session.bytes, channels: 2)
      #expect(timeline.foreign == 0 && timeline.runs.count == 1)
    }

    @Test("a device that delivers no frames is reopened after five seconds, and silence replaces the loss")
    func silent() throws {
      // One device without wake-ups, and one with spurious wake-ups, at the same time.
      let rigs = [TestMicrophone(), TestMicrophone()]
      let sessions = try rigs.map { try CaptureSession(Self.configuration($0), capacity: 8 << 20) }
      for session in sessions { session.take { $0.frames > 5_000 } }
      // One with occasional spurious wake-ups, which must not count as silent, however long this lasts.
      let lively = TestMicrophone()
      let heard = try CaptureSession(Self.configuration(lively), capacity: 8 << 20)
      func wakeForNothing(_ times: UInt64) {
        for count in 1...times {
          let spurious = heard.microphone.totals.spuriousWakeUps
          testmic_order_spurious_wake(lively.page)
          heard.take { $0.microphone.totals.spuriousWakeUps > spurious && $0.frames > 2_000 * Int(count) }
        }
      }
      wakeForNothing(3)
      let opens = rigs.map { testmic_opens($0.page) }
      for (rig, isAwake) in zip(rigs, [false, true]) { testmic_set_silent(rig.page, true, isAwake) }
      for ((rig, session), isAwake) in zip(zip(rigs, sessions), [false, true]) {
        session.take { $0.microphone.totals.deviceLosses >= 1 }
        // A wake-up without a frame comes first, as with PulseAudio's plugin. It does not make the device silent again.
        if isAwake { testmic_order_spurious_wake(rig.page) }
        testmic_set_silent(rig.page, false, false)
      }
      // This thread may have been late. A device that was opened while it was still silent is rightly lost again.
      let mayBeLostAgain = zip(rigs, opens).map { testmic_opens($0.page) > $1 }
      wakeForNothing(3)
      heard.finish()
      #expect(heard.microphone.totals.deviceLosses == 0 && lively.framesLost == 0)
      // It waits at least a millisecond each time.
      let silences = sessions[1].microphone.totals.deviceLosses + (mayBeLostAgain[1] ? 1 : 0)
      #expect(sessions[1].microphone.totals.spuriousWakeUps < 7_000 * silences)
      for (session, mayBeLostAgain) in zip(sessions, mayBeLostAgain) {
        session.take(until: Self.hasReturned(1))
        let frames = session.frames
        session.take { $0.frames > frames + 5_000 }
        session.finish()
        // A device that is lost without a frame does not show when it stopped, so the clock of a thread decides.
        let timeline = Timeline(session.bytes, channels: 2, tolerance: 48)
        #expect(timeline.foreign == 0 && timeline.silence.count == 1)
        #expect((timeline.silence.first?.count ?? 0) > 5 * 48_000)
        for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 48) }
        let codes = session.events.compactMap { event -> Int32? in
          if case .deviceLost(_, let code) = event { code } else { nil }
        }
        #expect(codes.first == ETIMEDOUT && Set(codes).count == 1 && (codes.count == 1 || mayBeLostAgain), "\(codes)")
      }
    }
  }
}
