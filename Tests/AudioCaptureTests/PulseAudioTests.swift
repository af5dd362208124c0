// The microphone through a sound server: PulseAudio's null sink, captured in real time by ALSA's `pulse` plugin.

import AudioCapture
import EventLoops
import Glibc
import StreamBuffers
import TestDeviceControl
import TestRigs
import Testing

extension RealALSA {
  @Suite("A microphone behind PulseAudio")
  struct PulseAudioTests {
    private func configuration(_ server: PrivatePulseAudio) -> MicrophoneConfiguration {
      MicrophoneConfiguration(device: server.captureName, rate: 48_000, channels: 1, period: .milliseconds(10))
    }

    @Test("twenty seconds of playback are captured bit by bit, without a lost or repeated sample")
    func bitExact() throws {
      let server = try PrivatePulseAudio()
      let played = (0..<22 * 48_000).map { testmic_sample(1, UInt64($0), 0) }
      // PulseAudio drops the first millisecond of the played audio when it starts its sink, before our microphone.
      let signal = Array(played.dropFirst(24_000))
      let session = try CaptureSession(configuration(server))
      // The silence of the sink arrives, so the path is established.
      session.take { $0.frames > 4_800 }
      let player = try server.play(played)
      var heard: Int?
      var searched = 0
      session.take(limit: .seconds(60)) { session in
        if heard == nil {
          heard = Self.find(Array(signal.prefix(12)), in: session.bytes, from: searched)
          searched = max(0, session.bytes.count - 24)
        }
        return heard.map { session.bytes.count >= $0 + 2 * signal.count } ?? false
      }
      #expect(player.waitUntilExit() == 0)
      session.finish()
      let start = try #require(heard)
      let captured = session.bytes[start..<start + 2 * signal.count]
      #expect(captured == signal.withUnsafeBytes { Array($0) }[...])
      #expect(session.microphone.totals.framesLost == 0)
    }

    @Test("the stream keeps pace with the clock while its server crashes and restarts")
    func serverCrash() throws {
      let server = try PrivatePulseAudio()
      let session = try CaptureSession(configuration(server))
      session.take { $0.frames > 4_800 }
      let before = (time: MonotonicInstant.now, frames: session.frames)
      server.crash()
      session.take { $0.microphone.totals.deviceLosses >= 1 }
      try server.restart()
      session.take { session in
        session.events.contains { if case .deviceReturned = $0 { true } else { false } }
      }
      let frames = session.frames
      session.take { $0.frames > frames + 48_000 }
      let after = (time: MonotonicInstant.now, frames: session.frames)
      session.finish()
      let elapsed = (after.time - before.time).seconds
      // PulseAudio has no time stamps and delivers in pieces. Its own latency is within this limit.
      #expect(abs(Double(after.frames - before.frames) / 48_000 - elapsed) < 0.25)
      #expect(session.microphone.totals.framesLost > 0)
    }

    @Test("a capture begins at once and loses nothing, in each of many starts")
    func manyStarts() throws {
      // The plugin's descriptor may be readable before there is a period. Checking again without a pause, at real-time
      // priority, would keep the plugin's own thread from filling it.
      let server = try PrivatePulseAudio()
      for _ in 0..<20 {
        let session = try CaptureSession(configuration(server))
        session.take(limit: .seconds(5)) { $0.frames > 4_800 }
        session.finish()
        let totals = session.microphone.totals
        #expect(totals.framesLost == 0 && totals.overruns == 0, "\(session.events)")
      }
    }

    @Test("without a server, the error states this")
    func noServer() throws {
      _ = AlsaConfiguration.path
      do throws(MicrophoneError) {
        _ = try Microphone(.init(device: "monitor:SERVER=/nonexistent/native"))
        Issue.record("it was opened")
      } catch {
        guard case .system(_, ECONNREFUSED, _) = error else {
          Issue.record("\(error)")
          return
        }
        #expect("\(error)".contains("no sound server is running"))
      }
    }

    /// Byte offset of the first occurrence of these samples.
    private static func find(_ samples: [Int16], in bytes: [UInt8], from: Int) -> Int? {
      bytes.withUnsafeBytes { bytes in
        (from / 2..<max(from / 2, bytes.count / 2 - samples.count + 1)).first { start in
          samples.indices.allSatisfy {
            bytes.loadUnaligned(fromByteOffset: 2 * (start + $0), as: Int16.self) == samples[$0]
          }
        }.map { 2 * $0 }
      }
    }
  }
}
