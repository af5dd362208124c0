// Compares a captured stream with the test microphone's sound: each sample at its position, and silence for missing
// frames.

import AudioCapture
import TestDeviceControl
import TestRigs
import Testing

/// The content of each frame in a stream of the test microphone's noise (seed 1).
struct Timeline {
  /// Consecutive frames of noise: the stream frames `stream`, which are the device's frames from `device` on.
  struct Run: Equatable {
    var stream: Range<Int>
    var device: UInt64
  }

  private(set) var runs: [Run] = []
  /// Ranges of zero stream frames between runs, or after the last one.
  private(set) var silence: [Range<Int>] = []
  /// Frames that are neither.
  private(set) var foreign = 0
  /// The number of device frames in all runs of the stream.
  var deviceFrames: UInt64 { runs.reduce(0) { $0 + UInt64($1.stream.count) } }

  /// Reads a stream frame by frame. After an interruption, it searches for the noise at the expected frame, and up to
  /// `tolerance` device frames around it. Without silence in between, it searches at any later frame.
  init(_ bytes: [UInt8], channels: Int, format: SampleFormat = .s16LE, tolerance: Int = 0, skips: Int = 0) {
    let frameBytes = channels * format.bytesPerSample
    let frames = bytes.count / frameBytes
    var at = 0
    /// Device frame minus stream frame.
    var shift = 0
    bytes.withUnsafeBytes { bytes in
      func isNoise(_ stream: Int, _ device: Int) -> Bool {
        device >= 0
          && (0..<channels).allSatisfy { channel in
            Self.matches(
              bytes, stream * frameBytes + channel * format.bytesPerSample, format, UInt64(device), UInt32(channel))
          }
      }
      /// Four consecutive frames, because a single one may match by chance.
      func isNoiseFrom(_ stream: Int, _ device: Int) -> Bool {
        (0..<min(4, frames - stream)).allSatisfy { isNoise(stream + $0, device + $0) }
      }
      func isSilent(_ stream: Int) -> Bool {
        bytes[stream * frameBytes..<(stream + 1) * frameBytes].allSatisfy { $0 == 0 }
      }
      while at < frames {
        if let found = ([0] + (1...max(1, tolerance + skips)).flatMap { $0 <= tolerance ? [$0, -$0] : [$0] })
          .prefix(1 + 2 * tolerance + skips).first(where: { isNoiseFrom(at, at + shift + $0) })
        {
          shift += found
          let start = at
          while at < frames, isNoise(at, at + shift) { at += 1 }
          runs.append(Run(stream: start..<at, device: UInt64(start + shift)))
        } else if isSilent(at) {
          let start = at
          while at < frames, isSilent(at), !isNoiseFrom(at, at + shift) { at += 1 }
          silence.append(start..<at)
        } else {
          foreign += 1
          at += 1
        }
      }
    }
  }

  static func matches(
    _ bytes: UnsafeRawBufferPointer, _ at: Int, _ format: SampleFormat, _ frame: UInt64, _ channel: UInt32
  ) -> Bool {
    switch format {
    case .s16LE:
      bytes.loadUnaligned(fromByteOffset: at, as: Int16.self) == testmic_sample(1, frame, channel)
    case .s24_3LE:
      withUnsafeBytes(of: testmic_sample32(1, frame, channel)) {
        $0[1] == bytes[at] && $0[2] == bytes[at + 1] && $0[3] == bytes[at + 2]
      }
    case .s32LE:
      bytes.loadUnaligned(fromByteOffset: at, as: Int32.self) == testmic_sample32(1, frame, channel)
    case .floatLE:
      bytes.loadUnaligned(fromByteOffset: at, as: Float.self) == Float(testmic_sample(1, frame, channel)) / 32768
    }
  }
}
