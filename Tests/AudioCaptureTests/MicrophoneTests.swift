// The microphone against a device with a bounded ring that overruns, suspends and disappears on command. The device
// records which of its frames were not delivered, and the stream must agree.

import AudioCapture
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

extension RealALSA {
  @Suite("A microphone")
  struct MicrophoneTests {
    private let rig = TestMicrophone()

    private func configuration(_ kind: String = "testmic") -> MicrophoneConfiguration {
      MicrophoneConfiguration(
        device: rig.name(kind), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .milliseconds(100))
    }

    /// Stream frames that should be silent: the gaps of a device whose frame 0 is the stream's.
    private func gaps(within frames: Int) -> [Range<Int>] {
      rig.gaps.map { Int($0.lowerBound)..<Int($0.upperBound) }.filter { $0.lowerBound < frames }
    }

    @Test("the stream has each frame of the device once and in order", arguments: SampleFormat.allCases)
    func plain(format: SampleFormat) throws {
      var configuration = configuration()
      configuration.format = format
      configuration.channels = 3
      let session = try CaptureSession(configuration)
      session.take { $0.frames > 24_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 3, format: format)
      #expect(timeline.runs == [.init(stream: 0..<session.frames, device: 0)])
      #expect(session.microphone.totals.frames == UInt64(session.frames))
      #expect(session.events.last == .stopped(frames: UInt64(session.frames)))
      guard case .started? = session.events.first else {
        Issue.record("the first event is \(session.events)")
        return
      }
    }

    @Test("an overrun loses exactly the overwritten frames, and silence of that length replaces them")
    func overrun() throws {
      let session = try CaptureSession(configuration())
      // Only the overwritten frames are lost, plus one period for safety: the rest of the ring was saved. On a busy
      // machine, the reader may wait for longer than ordered, but not each time.
      var isTight: Bool { rig.gaps.contains { $0.count >= 70 * 48 && $0.count <= 76 * 48 + 480 } }
      for milliseconds in [70, 1, 250] + [UInt64](repeating: 70, count: 30) {
        if rig.gaps.count >= 3, isTight { break }
        let (frames, overruns) = (session.frames, session.microphone.totals.overruns)
        session.take { $0.frames > frames + 2_000 }
        testmic_order_overrun(rig.page, milliseconds)
        session.take { $0.microphone.totals.overruns > overruns }
      }
      #expect(isTight)
      let frames = session.frames
      session.take { $0.frames > frames + 20_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2)
      let gaps = gaps(within: session.frames)
      #expect(gaps.count >= 3)
      #expect(timeline.silence == gaps)
      #expect(timeline.foreign == 0)
      // Every run is at its device frame, so nothing has shifted.
      #expect(timeline.runs.allSatisfy { UInt64($0.stream.lowerBound) == $0.device })
      #expect(testmic_frames_overwritten(rig.page) == 0)
      // Each event reports its gap.
      let told = session.events.compactMap { event -> Range<Int>? in
        guard case .overrun(let offset, let lost, true) = event else { return nil }
        return Int(offset) / 4..<Int(offset) / 4 + Int(lost)
      }
      #expect(told == gaps)
      #expect(session.microphone.totals.framesLost == rig.framesLost)
    }

    @Test(
      "frames that the device overwrites during a read are not confused with others",
      arguments: [2, 200] as [UInt64])
    func overrunWhileReading(milliseconds: UInt64) throws {
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 2_000 }
      testmic_order_overrun_in_read(rig.page, milliseconds)
      session.take { $0.microphone.totals.overruns > 0 }
      let frames = session.frames
      session.take { $0.frames > frames + 20_000 }
      session.finish()
      #expect(testmic_frames_overwritten(rig.page) > 0)
      let timeline = Timeline(session.bytes, channels: 2)
      #expect(timeline.foreign == 0)
      #expect(timeline.silence.count == 1)
      #expect(timeline.runs.allSatisfy { UInt64($0.stream.lowerBound) == $0.device })
      let silent = timeline.silence.reduce(0) { $0 + $1.count }
      #expect(session.microphone.totals.framesLost == UInt64(silent))
      // Several consecutive overruns are one hole.
      var told: [Range<Int>] = []
      for case .overrun(let offset, let lost, true) in session.events {
        let range = Int(offset) / 4..<Int(offset) / 4 + Int(lost)
        if let last = told.last, last.upperBound == range.lowerBound {
          told[told.count - 1] = last.lowerBound..<range.upperBound
        } else {
          told.append(range)
        }
      }
      #expect(told == timeline.silence)
      #expect(
        session.microphone.totals.overruns
          == UInt64(session.events.count { if case .overrun = $0 { true } else { false } }))
    }

    @Test(
      "a device that stops at an overrun is restarted, and the clock determines the loss to one or two frames"
    )
    func overrunOfAStoppingDevice() throws {
      let session = try CaptureSession(configuration("testmic_stopping"))
      for count in 1...5 {
        let frames = session.frames
        session.take { $0.frames > frames + 10_000 }
        testmic_order_overrun(rig.page, 30)
        session.take { $0.microphone.totals.overruns == UInt64(count) }
      }
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(testmic_xruns(rig.page) >= 5)
      #expect(timeline.foreign == 0)
      #expect(timeline.silence.count == 5)
      for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 4) }
      #expect(abs(Int(session.microphone.totals.framesLost) - Int(rig.framesLost)) <= 4)
    }

    @Test(
      "after a suspend, the frames continue at their position, whether the driver can resume or not",
      arguments: [false, true])
    func suspend(resumeRefused: Bool) throws {
      testmic_set_resume_refused(rig.page, resumeRefused)
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 10_000 }
      let before = testmic_starts(rig.page)
      testmic_set_suspended(rig.page, true)
      // Some failed attempts, so that the suspend has lasted.
      let opens = testmic_opens(rig.page)
      let prepares = testmic_prepares(rig.page)
      #expect(rig.wait { testmic_prepares($0) >= prepares + 3 })
      testmic_set_suspended(rig.page, false)
      session.take { $0.microphone.totals.suspends == 1 }
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      #expect(testmic_starts(rig.page) == before + 1)
      #expect(testmic_opens(rig.page) == opens)
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(timeline.foreign == 0)
      #expect(timeline.silence.count == 1)
      #expect(timeline.runs.count == 2)
      for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 2) }
      #expect(abs(Int(session.microphone.totals.framesLost) - Int(rig.framesLost)) <= 2)
    }

    @Test(
      "an unplugged device is found again; until then, listeners receive silence in real time, and the timeline stays correct"
    )
    func unplug() throws {
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 10_000 }
      testmic_set_absent(rig.page, true)
      session.take { $0.microphone.totals.deviceLosses == 1 }
      // More than a second of silence arrives while the device is away.
      let frames = session.frames
      session.take { $0.frames > frames + 50_000 }
      #expect(testmic_starts(rig.page) == 1)
      testmic_set_absent(rig.page, false)
      session.take { session in
        session.events.contains { if case .deviceReturned = $0 { true } else { false } }
      }
      let back = session.frames
      session.take { $0.frames > back + 5_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(timeline.foreign == 0)
      #expect(timeline.silence.count == 1)
      #expect(timeline.runs.count == 2)
      for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 2) }
      guard let silence = timeline.silence.first else { return }
      #expect(session.events.count { if case .deviceLost = $0 { true } else { false } } == 1)
      for event in session.events {
        switch event {
        case .deviceLost(let offset, let code):
          #expect(code == ENODEV)
          #expect(Int(offset) == silence.lowerBound * 4)
        case .deviceReturned(let offset, let lost, let filled, let attempts):
          #expect(Int(offset) == silence.lowerBound * 4)
          #expect(Int(lost) == silence.count)
          #expect(filled)
          #expect(attempts > 2)
        default: break
        }
      }
      #expect(abs(Int(session.microphone.totals.framesLost) - Int(rig.framesLost)) <= 2)
    }

    @Test("without gap fill, a loss is reported and not replaced")
    func noFill() throws {
      var configuration = configuration()
      configuration.gapFill = .none
      let session = try CaptureSession(configuration)
      session.take { $0.frames > 5_000 }
      testmic_order_overrun(rig.page, 20)
      session.take { $0.microphone.totals.overruns == 1 }
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2, skips: 4_000)
      #expect(timeline.silence.isEmpty && timeline.foreign == 0)
      #expect(timeline.runs.count == 2)
      let lost = rig.gaps[0]
      #expect(timeline.runs.last?.device == lost.upperBound)
      let end = Int(lost.lowerBound)
      #expect(
        session.events.contains(
          .overrun(streamOffset: UInt64(end * 4), framesLost: lost.upperBound - lost.lowerBound, filled: false)))
    }

    @Test("spurious wake-ups and short reads are counted and lose no frame")
    func spuriousAndShort() throws {
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 2_000 }
      testmic_order_spurious_wake(rig.page)
      session.take { $0.microphone.totals.spuriousWakeUps >= 1 }
      testmic_order_short_read(rig.page, 7)
      session.take { $0.microphone.totals.shortReads >= 1 }
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      #expect(Timeline(session.bytes, channels: 2).runs == [.init(stream: 0..<session.frames, device: 0)])
      #expect(rig.framesLost == 0)
    }

    @Test("a wake-up for the plugin's own work is not spurious")
    func ownWork() throws {
      testmic_set_silent(rig.page, true, false)
      let session = try CaptureSession(configuration())
      // The plugin's timer has fired by then.
      #expect(rig.wait { testmic_unread_frames($0) > 2_000 })
      #expect(session.microphone.totals.spuriousWakeUps == 0)
      session.finish()
    }

    @Test("a limit is exact to the frame, and ends the stream", arguments: [1, 239, 240, 241, 12_345] as [UInt64])
    func maximumFrames(limit: UInt64) throws {
      var configuration = configuration()
      configuration.maximumFrames = limit
      let session = try CaptureSession(configuration)
      session.take { $0.isFinished && $0.hasStopped }
      #expect(session.frames == Int(limit))
      #expect(session.events.last == .stopped(frames: limit))
      session.microphone.waitUntilEnded()
    }

    @Test("stop ends the stream with the frames captured so far, even while the device is gone")
    func stop() throws {
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 1_000 }
      testmic_set_absent(rig.page, true)
      session.take { $0.microphone.totals.deviceLosses == 1 }
      session.finish()
      #expect(session.isFinished)
    }

    @Test(
      "a full buffer that refuses frames loses nothing until the device overruns; the overrun is counted and filled")
    func fullBuffer() throws {
      // 85 ms of buffer, 100 ms in the device.
      let session = try CaptureSession(configuration(), capacity: 16_384)
      session.takeEvents { session in session.events.contains { if case .bufferFull = $0 { true } else { false } } }
      session.takeBytes()
      session.take { $0.frames > 8_000 }
      #expect(rig.framesLost == 0, "the device held them meanwhile")
      // Now nothing is read until the device has overrun.
      let before = session.microphone.totals.overruns
      rig.wait { testmic_unread_frames($0) > 6_000 }
      session.take { $0.microphone.totals.overruns > before }
      let frames = session.frames
      session.take { $0.frames > frames + 10_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2)
      #expect(timeline.foreign == 0)
      #expect(timeline.silence == gaps(within: session.frames))
      #expect(timeline.runs.allSatisfy { UInt64($0.stream.lowerBound) == $0.device })
    }

    @Test("silence that is longer than the buffer is written as the reader frees space, before any newer frame")
    func longSilence() throws {
      // 4096 frames; the gap is twelve thousand.
      let session = try CaptureSession(configuration(), capacity: 16_384)
      session.take { $0.frames > 2_000 }
      testmic_order_overrun(rig.page, 250)
      session.take { $0.microphone.totals.overruns > 0 }
      let frames = session.frames
      session.take { $0.frames > frames + 20_000 }
      session.finish()
      let timeline = Timeline(session.bytes, channels: 2)
      #expect(timeline.silence == gaps(within: session.frames))
      #expect(timeline.silence.first.map { $0.count > 12_000 } == true)
      #expect(timeline.runs.allSatisfy { UInt64($0.stream.lowerBound) == $0.device })
    }

    @Test("with dropOldest, the capture never waits for a slow reader")
    func dropOldest() throws {
      let session = try CaptureSession(configuration(), capacity: 16_384, overflow: .dropOldest)
      let microphone = session.microphone
      rig.wait { _ in microphone.totals.frames > 20_000 }
      #expect(rig.framesLost == 0)
      let oldest = session.consumer.released
      #expect(oldest > 0)
      // The reader begins only when nothing is dropped any more.
      microphone.stop()
      microphone.waitUntilEnded()
      session.finish()
      // The dropped and the kept bytes are the whole capture, and the kept ones are its end.
      #expect(session.bytes.count <= 16_384)
      #expect(session.offset == microphone.totals.frames * 4)
      let first = Int(session.offset) / 4 - session.frames
      let last = session.bytes.suffix(4).withUnsafeBytes { $0.loadUnaligned(as: Int16.self) }
      #expect(last == testmic_sample(1, UInt64(first + session.frames - 1), 0))
    }

    @Test("the levels match the noise on every channel")
    func levels() throws {
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 20_000 }
      let levels = session.microphone.levels()
      session.finish()
      #expect(levels.count == 2)
      for level in levels {
        #expect(level.peak <= 0 && level.peak > -0.1)
        #expect(abs(level.rms - -4.77) < 0.1)
      }
    }
  }
}
