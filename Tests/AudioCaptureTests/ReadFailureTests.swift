// Reads that fail although the device has announced frames. Each errno has its own reaction, and no message reaches the
// terminal.

import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

@testable import AudioCapture

extension RealALSA {
  @Suite("A microphone whose reads fail")
  struct ReadFailureTests {
    private let rig = TestMicrophone()

    /// The expected reaction to a failure.
    enum Answer: Sendable { case nothing, spuriousWakeUp, overrun, suspend, loss }

    @Test(
      "a failed read is handled by its error code, and every frame is at its position",
      arguments: [
        (EAGAIN, 1, Answer.spuriousWakeUp), (EINTR, 1, .nothing), (EPIPE, 1, .overrun), (EBADFD, 1, .overrun),
        (EPIPE, (CaptureStateMachine.fruitlessRestartsAllowed + 1), .loss), (ESTRPIPE, 1, .suspend),
        (ENODEV, 1, .loss), (EIO, 1, .loss),
      ])
    func codes(code: Int32, times: Int, answer: Answer) throws {
      let configuration = MicrophoneConfiguration(
        device: rig.name(), rate: 48_000, channels: 2, period: .milliseconds(5), buffer: .milliseconds(100))
      let session = try CaptureSession(configuration)
      let microphone = session.microphone
      session.take { $0.frames > 2_000 }
      let spurious = microphone.totals.spuriousWakeUps
      let printed = printing {
        testmic_order_read_failures(rig.page, UInt32(times), code)
        #expect(rig.wait { testmic_orders_pending($0) == 0 })
        session.take { session in
          switch answer {
          case .nothing: true
          case .spuriousWakeUp: microphone.totals.spuriousWakeUps > spurious
          case .overrun: microphone.totals.overruns == 1
          case .suspend: microphone.totals.suspends == 1
          case .loss: session.events.contains { if case .deviceReturned = $0 { true } else { false } }
          }
        }
      }
      #expect(!printed.contains("as ordered"))
      let frames = session.frames
      session.take { $0.frames > frames + 5_000 }
      session.finish()
      let totals = microphone.totals
      let timeline = Timeline(session.bytes, channels: 2, tolerance: 3)
      #expect(timeline.foreign == 0)
      for run in timeline.runs { #expect(abs(Int(run.device) - run.stream.lowerBound) <= 3) }
      #expect(Int(totals.framesLost) == timeline.silence.reduce(0) { $0 + $1.count })
      #expect(totals.suspends == (answer == .suspend ? 1 : 0))
      let codes = session.events.compactMap { event -> Int32? in
        if case .deviceLost(_, let code) = event { code } else { nil }
      }
      #expect(codes == (answer == .loss ? [code] : []))
      switch answer {
      case .nothing, .spuriousWakeUp: #expect(timeline.silence.isEmpty && rig.framesLost == 0)
      case .overrun, .suspend: #expect(timeline.silence.count == 1 && testmic_opens(rig.page) == 1)
      case .loss: #expect(timeline.silence.count == 1 && testmic_opens(rig.page) == 2)
      }
    }

    /// The text that is written to standard error while `body` runs. It is written there afterwards.
    private func printing(_ body: () -> Void) -> String {
      let scratch = ScratchDirectory()
      let file = open(scratch.file("stderr"), O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
      let terminal = fcntl(2, F_DUPFD_CLOEXEC, 3)
      dup2(file, 2)
      body()
      dup2(terminal, 2)
      close(terminal)
      close(file)
      let bytes = scratch.read("stderr")
      _ = bytes.withUnsafeBytes { write(2, $0.baseAddress, $0.count) }
      return String(decoding: bytes, as: UTF8.self)
    }
  }
}
