// The end of a microphone whose buffer is full, with real ALSA, if the policy is to stop then.

import AudioCapture
import EventLoops
import NetworkTesting
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing
import UploadClient

@testable import LiveStreaming
@testable import MicrophoneStreaming

@Suite("The end of a microphone with a full buffer", .serialized)
struct FullMicrophoneTests {
  private let rig = TestMicrophone()
  /// It does not run, so only the stream's question about a failure reads the events of the microphone.
  private let loop: EventLoop
  private let reports: EventLog<SourceEvent>
  private let source: MicrophoneSource
  private let live: LiveSource

  /// Captures until the buffer is full.
  init() throws {
    let (loop, reports) = (try EventLoop(), try EventLog<SourceEvent>())
    let microphone = MicrophoneConfiguration(device: rig.name(), period: .milliseconds(5), buffer: .seconds(1))
    let source = MicrophoneSource(try Microphone(microphone))
    var configuration = LiveStreamConfiguration(request: UploadRequest(url: "http://host/x"))
    (configuration.buffer, configuration.overflow, configuration.resumable) = (.bytes(4_096), .stop, .always)
    let live = try LiveSource(source, configuration)
    let failure = live.failure
    let context = SourceContext(
      loop: loop, overflow: .stop, report: { reports.append($0) }, fail: { _ = failure.note($0) })
    try live.start(on: loop, context: context, dataArrived: {})
    (self.loop, self.reports, self.source, self.live) = (loop, reports, source, live)
    rig.wait { testmic_unread_frames($0) > 10_000 }
  }

  @Test("a stream that sees its end also sees that the buffer was full, although the loop has read no event before")
  func endsByItself() {
    source.microphone.stop()
    source.microphone.waitUntilEnded()
    #expect(live.writer.isFinished && live.failure.error == nil)
    let hasFailed = live.writer.hasSourceFailed()
    #expect(hasFailed && live.failure.error?.kind == .overflow)
    live.stop(on: loop)
  }

  @Test("it does not fail if its stream finishes, and the frames for which there is no room count as lost")
  func finishes() {
    live.finish()
    source.microphone.waitUntilEnded()
    let hasFailed = live.writer.hasSourceFailed()
    #expect(live.writer.isFinished && !hasFailed)
    let lost = reports.all.reduce(0) { $0 + $1.lost }
    #expect(lost > 0)
    live.stop(on: loop)
  }
}
