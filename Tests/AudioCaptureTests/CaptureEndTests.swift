// How a capture ends in each state of its device, and the other users of the device.

import EventLoops
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("The list of devices")
  struct DeviceListTests {
    @Test("the list has capture devices with their descriptions, and no playback devices")
    func directions() {
      _ = AlsaConfiguration.path
      let devices = CaptureDevice.list()
      #expect(!devices.contains { $0.name == "testmic_player" })
      #expect(devices.filter { $0.name == "testmic_recorder" }.map(\.description) == ["Records only"])
      #expect(!devices.contains { $0.name == "null" || $0.name == "lavrate" })
    }
  }

  @Suite("The end of a capture")
  struct CaptureEndTests {
    let rig = TestMicrophone()

    private func configuration(frames: UInt64? = nil) -> MicrophoneConfiguration {
      var configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 2, format: .s16LE, period: .milliseconds(5),
        buffer: .milliseconds(100))
      configuration.maximumFrames = frames
      return configuration
    }

    @Test("a capture that ends while its device is gone reports a loss from the moment when the device disappeared")
    func away() throws {
      let session = try CaptureSession(configuration())
      session.take { $0.frames > 5_000 }
      testmic_set_absent(rig.page, true)
      session.take { $0.microphone.totals.deviceLosses == 1 }
      let frames = session.frames
      session.take { $0.frames > frames + 20_000 }
      session.finish()
      let losses = session.events.compactMap { event -> (UInt64, UInt64, Bool)? in
        if case .neverReturned(let offset, let lost, let filled) = event { (offset, lost, filled) } else { nil }
      }
      #expect(losses.count == 1)
      let gone = session.events.compactMap { event -> UInt64? in
        if case .deviceLost(let offset, ENODEV) = event { offset } else { nil }
      }
      guard let loss = losses.first else { return }
      #expect(gone == [loss.0] && loss.2)
      // Silence from there to the end.
      #expect(loss.0 + loss.1 * 4 == UInt64(session.bytes.count))
      #expect(session.bytes[Int(loss.0)...].allSatisfy { $0 == 0 })
      #expect(session.microphone.totals.framesLost == loss.1)
      #expect(session.events.last == .stopped(frames: UInt64(session.frames)))
    }

    @Test("a capture that ends before its lost device is missed reports no empty loss")
    func nothingLost() throws {
      for _ in 0..<3 {
        let rig = TestMicrophone()
        var configuration = configuration()
        configuration.device = rig.name()
        let session = try CaptureSession(configuration)
        session.take { $0.frames > 500 }
        testmic_set_absent(rig.page, true)
        session.take { $0.microphone.totals.deviceLosses == 1 }
        session.finish()
        for case .neverReturned(_, let lost, _) in session.events { #expect(lost > 0) }
      }
    }

    @Test("a capture that is stopped when its device has overrun reports the missing frames")
    func overrun() throws {
      var configuration = configuration()
      configuration.device = rig.name("testmic_stopping")
      configuration.period = .milliseconds(50)
      let session = try CaptureSession(configuration)
      session.take { $0.frames > 5_000 }
      // The order to stop usually wakes the thread, which then finds the overrun in its last read.
      testmic_order_overrun(rig.page, 100)
      session.finish()
      let totals = session.microphone.totals
      // The ring and the time after it, except for the margin of a loss that only the clock shows.
      #expect(totals.overruns >= 1 && totals.framesLost > 8_000)
      #expect(session.events.compactMap(\.loss).reduce(0) { $0 + $1.frames } == totals.framesLost)
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(timeline.foreign == 0)
      #expect(timeline.silence.reduce(0) { $0 + $1.count } == Int(totals.framesLost))
    }

    @Test("a capture that is stopped between wake-ups without a frame has the frames that have arrived meanwhile")
    func lastFrames() throws {
      var configuration = configuration()
      (configuration.period, configuration.buffer) = (.milliseconds(40), .milliseconds(400))
      let session = try CaptureSession(configuration)
      let microphone = session.microphone
      session.take { $0.frames > 5_000 }
      let spurious = microphone.totals.spuriousWakeUps
      testmic_set_silent(rig.page, true, true)
      rig.wait { _ in microphone.totals.spuriousWakeUps > spurious + 5 }
      let (frames, unread) = (microphone.totals.frames, testmic_unread_frames(rig.page))
      testmic_set_silent(rig.page, false, false)
      session.finish()
      #expect(unread > 0 && UInt64(session.frames) >= frames + unread)
    }

    enum Ending: CaseIterable { case lengthAway, stopAway, stopSuspended }

    @Test(
      "a capture that ends without its device reports all missing frames and ends at a byte, whatever its buffer contains",
      arguments: Ending.allCases, [4_096, 1 << 14, 1 << 20])
    func lastByte(ending: Ending, capacity: Int) throws {
      let session = try CaptureSession(
        configuration(frames: ending == .lengthAway ? 60_000 : nil), capacity: capacity, overflow: .dropOldest,
        allowsPauses: true)
      let microphone = session.microphone
      session.take { $0.frames > 5_000 }
      switch ending {
      case .lengthAway:
        testmic_set_absent(rig.page, true)
        session.take { $0.isFinished && $0.hasStopped }
        microphone.waitUntilEnded()
        #expect(microphone.totals.frames == 60_000)
      case .stopAway:
        testmic_set_absent(rig.page, true)
        rig.wait { _ in microphone.totals.framesLost > 30_000 }
        session.finish()
      case .stopSuspended:
        testmic_set_suspended(rig.page, true)
        let prepares = testmic_prepares(rig.page)
        // Each attempt is later than the previous one, so after the fifth, half a second has passed.
        rig.wait { testmic_prepares($0) >= prepares + 5 }
        // Silence must not displace unread bytes.
        session.takeBytes()
        session.finish()
        #expect(microphone.totals.framesLost > 10_000)
      }
      var (left, position) = (UInt64(0), UInt64(0))
      while let pause = session.consumer.nextPause {
        (left, position) = (left + pause.length, pause.position)
        session.consumer.passPause()
      }
      #expect(left > 0 || capacity == 1 << 20, "\(session.events)")
      #expect(position < session.offset)
      #expect(session.offset + left == microphone.totals.frames * 4)
      #expect(session.events.compactMap(\.loss).reduce(0) { $0 + $1.frames } == microphone.totals.framesLost)
    }

    /// A buffer for 1,024 frames that drops the oldest bytes.
    private func smallBuffer() throws -> CircularBuffer.Ends {
      try CircularBuffer.make(capacity: .bytes(4_096), overflow: .dropOldest, memory: .kept, allowsPauses: true)
    }

    /// The capture thread's state, for a test that performs its steps.
    private func captureLoop(into producer: consuming CircularBuffer.Producer) throws -> CaptureLoop {
      let configuration = configuration()
      let device = try Negotiation(configuration: configuration).open(explains: false)
      return CaptureLoop(
        device: device, configuration: configuration, shared: try CaptureShared(configuration), producer: producer,
        sleepClock: .system)
    }

    @Test(
      "silence that just fills the buffer does not keep the rest of a loss from being omitted at the end",
      arguments: [-2, -1, 0, 1, 2], [0, 1_000])
    func filledExactly(_ difference: Int, _ unread: Int) throws {
      let ends = try smallBuffer()
      var loop = try captureLoop(into: ends.producer)
      let consumer = ends.consumer
      if unread > 0 { _ = loop.write(frames: unread) { $0.count } }
      let room = 1_024 - unread
      #expect(loop.stored == UInt64(unread))
      loop.leave(ENODEV)
      loop.lose(UInt64(room + difference))
      loop.fillWhileAway()
      #expect(consumer.released == 0, "unread bytes stay")
      loop.lose(60_000)
      loop.settleAtEnd()
      #expect(loop.owed == 0 && consumer.released == 0)
      #expect(loop.stored == UInt64(unread + room + difference + 60_000))
      #expect(consumer.head + loop.pausedBytes == loop.stored * 4)
      let pause = consumer.nextPause
      #expect((pause?.position ?? .max) < consumer.head, "the stream ends with a byte")
    }

    @Test("at the end, silence displaces no byte of a buffer that is full of unread ones, and counts as not filled")
    func fullAtTheEnd() throws {
      let ends = try smallBuffer()
      var loop = try captureLoop(into: ends.producer)
      let consumer = ends.consumer
      _ = loop.write(frames: 1_024) { $0.count }
      #expect(loop.stored == 1_024)
      loop.leave(ENODEV)
      loop.lose(60_000)
      loop.settleAtEnd()
      #expect(loop.owed == 60_000 && loop.stored == 1_024 && !loop.isFilled)
      #expect(consumer.released == 0 && consumer.head == 4_096)
      let pause = consumer.nextPause
      #expect(pause == nil)
    }

    @Test("a capture with a duration ends on time while its device is gone, and reports no loss beyond its end")
    func longEnough() throws {
      let session = try CaptureSession(configuration(frames: 40_000))
      session.take { $0.frames > 5_000 }
      testmic_set_absent(rig.page, true)
      session.take { $0.isFinished && $0.hasStopped }
      session.microphone.waitUntilEnded()
      #expect(session.frames == 40_000)
      let losses = session.events.compactMap(\.loss)
      #expect(losses.last.map { $0.filled && $0.streamOffset + $0.frames * 4 == 160_000 } == true)
      #expect(losses.reduce(0) { $0 + $1.frames } == session.microphone.totals.framesLost)
    }

    @Test("the wait returns when the end has come, and a stop is not a spurious wake-up")
    func join() throws {
      for _ in 0..<5 {
        let session = try CaptureSession(configuration())
        session.take { $0.frames > 500 }
        let spurious = session.microphone.totals.spuriousWakeUps
        session.microphone.stop()
        session.microphone.waitUntilEnded()
        var events: [CaptureEvent] = []
        while let event = session.microphone.nextEvent() { events.append(event) }
        #expect(events.last?.isLast == true && session.consumer.isFinished)
        #expect(session.microphone.totals.spuriousWakeUps == spurious)
      }
    }

    @Test("a second wait for the end does not wait for another thread that has the same id")
    func joinedTwice() throws {
      let session = try CaptureSession(configuration(frames: 500))
      session.microphone.waitUntilEnded()
      let mayEnd = try EventCounter()
      let descriptor = mayEnd.descriptor
      // The C library gives them the memory of the thread that has ended.
      let others = try (0..<4).map { _ in
        try NamedThread("test thread") {
          var entry = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
          poll(&entry, 1, 600_000)
        }
      }
      session.microphone.waitUntilEnded()
      mayEnd.signal()
      for thread in others { thread.join() }
    }

    @Test("the report of real-time priority agrees with the kernel")
    func priority() throws {
      for wanted in [false, true] {
        var configuration = configuration(frames: 1_000)
        configuration.realTimePriority = wanted
        let session = try CaptureSession(configuration)
        session.take { $0.isFinished && $0.hasStopped }
        session.microphone.waitUntilEnded()
        switch session.events.first {
        case .started(.granted(let priority)): #expect(wanted && priority == 20)
        case .started(.refused(let code)): #expect(wanted && code == EPERM)
        case .started(.notRequested): #expect(!wanted)
        default: Issue.record("\(session.events)")
        }
      }
    }
  }
}

@Suite("Users of the microphone")
struct DeviceHolderTests {
  @Test("the message names all programs that capture, and none that play")
  func holders() {
    let root = ScratchDirectory()
    func file(_ path: String, _ text: String) {
      var directory = root.file("")
      for part in path.split(separator: "/").dropLast() {
        directory += "\(part)/"
        mkdir(directory, 0o700)
      }
      _ = root.write(text, to: path)
    }
    #expect(DeviceHolder.find(in: root.file("nothing")) == nil)
    file("asound/card0/pcm0c/sub0/status", "state: RUNNING\nowner_pid   : 4711\ntrigger_time: 1.2\n")
    file("asound/card0/pcm0p/sub0/status", "state: RUNNING\nowner_pid   : 12\n")
    file("asound/card0/pcm1c/sub0/status", "closed\n")
    file("asound/card0/id", "x")
    file("asound/seq/status", "owner_pid   : 13\n")
    file("4711/comm", "arecord\n")
    #expect(DeviceHolder.find(in: root.file("")) == "arecord (pid 4711)")
    file("asound/card1/pcm0c/sub0/status", "state: RUNNING\nowner_pid   : 4712\n")
    let both = DeviceHolder.find(in: root.file(""))?.split(separator: ", ").sorted()
    #expect(both == ["a program (pid 4712)", "arecord (pid 4711)"])
  }
}
