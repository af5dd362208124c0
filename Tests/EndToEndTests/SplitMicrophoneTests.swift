// A microphone whose stream is divided into files, with a killed server in between. They add up to what it captured.

import CommandTesting
import Glibc
import NetworkTesting
import TestDeviceControl
import TestRigs
import Testing

@Suite("A microphone with --split")
struct SplitMicrophoneTests {
  private let microphone = TestMicrophone()
  private let scratch = ScratchDirectory()

  /// Stereo, S16_LE.
  private static let frameLength = 4
  /// With `--split 1MB`: whole frames beside the header.
  private static let fullLength = (1_000_000 - MicrophoneStream.headerLength) / frameLength * frameLength

  @Test("the files of a stream contain every captured frame once, even when the server is killed between two splits")
  func split() throws {
    let first = try ServeProcess(scratch.path)
    // A file per 1.3 s, because the least size is 1 MB.
    let client = try StreamProcess(
      microphone: microphone, to: first.url,
      more: [
        "--stream-id", "s", "--rate", "192000", "--channels", "2", "--split", "1MB", "--resumable", "always",
        "--retry-ceiling", "500ms", "--buffer", "30s",
      ])
    try first.event("split") { $0.text("file") == "take-s~2.wav" }
    first.kill()
    let server = try ServeProcess(scratch.path, address: first.address)
    try server.event("split") { $0.text("file") == "take-s~4.wav" }
    let summary = try client.finish()
    let ended = try server.event("ended")
    #expect(summary.integer("lost") == 0 && summary.integer("source_lost_frames") == 0)
    #expect(summary.integer("outages") ?? 0 >= 1)

    // The last recording has no number beyond those of the splits.
    let last = try #require(ended.text("file"))
    var names = ["take-s.wav"]
    while names.last != last, names.count < 100 { names.append("take-s~\(names.count + 1).wav") }
    #expect(names.count >= 5)
    var samples: [UInt8] = []
    for name in names {
      let bytes = try StoredStream.contents("\(scratch.path)/\(name)")
      let length = bytes.count - MicrophoneStream.headerLength
      #expect(name == last ? length <= Self.fullLength : length == Self.fullLength, "\(name): \(length)")
      #expect(bytes.starts(with: Array("RIFF".utf8)))
      let size = bytes.prefix(MicrophoneStream.headerLength).suffix(4).reversed().reduce(0) { $0 << 8 | Int($1) }
      #expect(size == length, "\(name)")
      samples += bytes.dropFirst(MicrophoneStream.headerLength)
    }
    #expect(summary.integer("captured") == MicrophoneStream.headerLength + samples.count)
    // Two channels.
    let noise = (0..<samples.count / 2).map { testmic_sample(1, UInt64($0 / 2), UInt32($0 % 2)) }
    let isEqual = noise.withUnsafeBytes { noise in
      samples.withUnsafeBytes { samples in
        // Neither is empty, so both have an address.
        noise.count == samples.count && memcmp(noise.baseAddress!, samples.baseAddress!, samples.count) == 0
      }
    }
    #expect(isEqual, "the samples of \(names.count) files are not those of the microphone")
  }
}
