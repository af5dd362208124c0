// A microphone's stream in one call, with real ALSA and the real server.

import EventLoops
import NetworkTesting
import TestRigs
import Testing

@testable import AudioCapture
@testable import LiveStreaming
@testable import MicrophoneStreaming

@Suite("A microphone that a task streams", .serialized, .timeLimit(.minutes(5)))
struct MicrophoneStreamTests {
  private let rig = TestMicrophone()

  private func microphone(frames: UInt64?) throws -> Microphone {
    try Microphone(MicrophoneConfiguration(device: rig.name(), maximumFrames: frames))
  }

  private func contents(_ server: StreamServer) throws -> [UInt8] {
    let name = try #require(server.directory.names.first)
    return try server.directory.contents(name)
  }

  @Test("every frame arrives after a WAV header, and the events report the capture")
  func arrives() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let stream = try session.stream(try microphone(frames: 12_000), to: server.url + "/kitchen")
    var kinds: [String] = []
    for await event in stream.events {
      if case .source(let event) = event { kinds.append(event.kind) }
    }
    let summary = try await stream.value
    #expect(kinds.first == "capture" && summary.sourceLost == 0)
    let header = WAVHeader(rate: 48_000, channels: 1, format: .s16LE).bytes
    #expect(summary.progress.acknowledged == header.count + 24_000)
    #expect(try contents(server).count == header.count + 24_000)
  }

  @Test("the sidecar of its recording states the device and its format")
  func sidecar() async throws {
    let server = try StreamServer()
    let stream = try UploadSession().stream(try microphone(frames: 4_800), to: server.url + "/kitchen")
    let name = try #require(try await stream.value.storedName)
    let base = name.dropLast(".wav".count)
    rig.wait { _ in (try? server.directory.contents("\(base).sidecar")) != nil }
    let text = String(decoding: try server.directory.contents("\(base).sidecar"), as: UTF8.self)
    #expect(text.contains("\"device\"") && text.contains("S16_LE") && text.contains("48000"), "\(text)")
  }

  @Test("an endless one stops when it finishes, and when its last reference is released")
  func stops() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let stream = try session.stream(try microphone(frames: nil), to: server.url + "/kitchen")
    for await event in stream.events {
      if case .acknowledged = event { break }
    }
    stream.finish()
    let summary = try await stream.value
    #expect(summary.progress.acknowledged == summary.progress.captured && summary.progress.lost == 0)
    let dropped = DroppedMicrophone(try microphone(frames: nil))
    if let microphone = dropped.microphone { _ = try session.stream(microphone, to: server.url + "/hall") }
    rig.wait { _ in dropped.microphone == nil }
    #expect(dropped.microphone == nil)
  }

  @Test("one that is cancelled leaves its microphone to the one who holds it, and other streams are not affected")
  func held() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    for _ in 0..<20 {
      let microphone = try microphone(frames: nil)
      do {
        let stream = try session.stream(microphone, to: server.url + "/kitchen")
        for await event in stream.events {
          if case .acknowledged = event { break }
        }
        stream.cancel()
        _ = try? await stream.value
      }
      // Its last event comes when the stream is gone.
      microphone.waitUntilEnded()
    }
    let stream = try session.stream(try microphone(frames: 4_800), to: server.url + "/hall")
    #expect(try await stream.value.progress.lost == 0)
  }

  /// Holds a microphone until it is taken, and then observes whether anything else retains it.
  private final class DroppedMicrophone {
    private var kept: Microphone?
    private weak var watched: Microphone?

    init(_ microphone: Microphone) { (kept, watched) = (microphone, microphone) }

    var microphone: Microphone? {
      defer { kept = nil }
      return watched
    }
  }

  @Test("the time left in the buffer is true after the machine has slept for hours")
  func bufferTimeAfterSleep() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let asleep = SleepTime()
    let microphone = try Microphone(
      MicrophoneConfiguration(device: rig.name()), sleepClock: SleepClock { asleep.value.nanoseconds })
    let stream = try session.stream(microphone, to: server.url + "/kitchen")
    let hours = Duration.seconds(3 * 3_600)
    var left: Duration?
    for await progress in stream.progress {
      if progress.captured > 0 { asleep.value = hours }
      guard progress.captured > UInt64(hours.seconds) * 96_000 else { continue }
      left = progress.bufferTimeLeft
      break
    }
    // The buffer has room for at least a minute.
    #expect(try #require(left) > .seconds(30))
    stream.cancel()
    _ = try? await stream.value
  }

  /// The time that the machine has slept, as the test sets it.
  private final class SleepTime: Sendable {
    private let lock = Lock(Duration.zero)
    var value: Duration {
      get { lock.withLock { $0 } }
      set { lock.withLock { $0 = newValue } }
    }
  }

  @Test("a device that does not exist is an error before anything is sent")
  func missing() {
    #expect(throws: MicrophoneError.self) { try Microphone(device: "hw:nobody") }
  }
}
