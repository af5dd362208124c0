// The whole path in real time: a sound server plays a known signal, and the resulting file must contain it.

import CommandTesting
import Glibc
import TestDeviceControl
import TestRigs
import Testing

@Suite("A signal played and stored")
struct PlayedSignalTests {
  @Test("more than 20 s of PulseAudio playback are captured, streamed and stored, and match sample by sample")
  func bitExact() throws {
    let sound = try PrivatePulseAudio()
    let scratch = ScratchDirectory()
    let server = try ServeProcess(scratch.path)
    let client = try StreamProcess("mic", server.url, more: ["--device", sound.captureName])
    // The silence of the sink arrives, so the path is established.
    try client.acknowledged(9_600)
    let played = (0..<22 * 48_000).map { testmic_sample(1, UInt64($0), 0) }
    let player = try sound.play(played)
    #expect(player.waitUntilExit() == 0)
    // More than PulseAudio's own latency.
    try client.acknowledged(client.captured + 2 * 96_000)
    let summary = try client.finish()
    let ended = try server.event("ended")

    let stored = try StoredStream(scratch.path, try #require(ended.text("file")))
    #expect(stored.isWAV)
    #expect(stored.fileName.hasSuffix(".wav"))
    #expect(stored.holes.isEmpty)
    #expect(summary.integer("captured") == stored.bytes.count)
    #expect(summary.integer("source_lost_frames") == 0, "\(client.events("overrun").prefix(5))")
    // PulseAudio drops the first moments of the played audio while it starts its sink.
    let signal = played.dropFirst(24_000).withUnsafeBytes { Array($0) }
    let start = try #require(Self.find(signal.prefix(64), in: stored.bytes))
    #expect(signal.count >= 20 * 96_000)
    #expect(stored.bytes[start...].starts(with: signal))
  }

  /// Offset of the first occurrence of `wanted` at a whole sample.
  private static func find(_ wanted: ArraySlice<UInt8>, in bytes: [UInt8]) -> Int? {
    wanted.withUnsafeBytes { wanted in
      bytes.withUnsafeBytes { bytes in
        stride(from: MicrophoneStream.headerLength, through: bytes.count - wanted.count, by: 2).first {
          // Neither is empty, so both have an address.
          memcmp(bytes.baseAddress! + $0, wanted.baseAddress!, wanted.count) == 0
        }
      }
    }
  }
}
