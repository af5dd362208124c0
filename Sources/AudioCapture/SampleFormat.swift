// The four encodings of a sample that Sluice captures.

internal import CALSA

/// The encoding of one sample of one channel, with ALSA's names. All are little-endian and interleaved.
public enum SampleFormat: String, CaseIterable, Sendable {
  /// Signed 16 bits.
  case s16LE = "S16_LE"
  /// Signed 24 bits in three bytes. (S24_LE, without the 3, is another: four bytes, of which one is padding.)
  // swift-format-ignore: AlwaysUseLowerCamelCase
  case s24_3LE = "S24_3LE"
  /// Signed 32 bits.
  case s32LE = "S32_LE"
  /// IEEE 754 single precision, full scale ±1.
  case floatLE = "FLOAT_LE"

  /// ALSA's name, such as `S16_LE`. `SampleFormat(rawValue:)` is the inverse.
  public var name: String { rawValue }

  /// The number of bytes of one sample of one channel.
  public var bytesPerSample: Int {
    switch self {
    case .s16LE: 2
    case .s24_3LE: 3
    case .s32LE, .floatLE: 4
    }
  }

  /// Whether samples are floating-point numbers.
  public var isFloat: Bool { self == .floatLE }

  var alsaFormat: snd_pcm_format_t {
    switch self {
    case .s16LE: SND_PCM_FORMAT_S16_LE
    case .s24_3LE: SND_PCM_FORMAT_S24_3LE
    case .s32LE: SND_PCM_FORMAT_S32_LE
    case .floatLE: SND_PCM_FORMAT_FLOAT_LE
    }
  }

  /// The other formats, the nearest substitute first: lossless ones before lossy ones, smaller ones before larger ones.
  var substitutes: [SampleFormat] {
    switch self {
    case .s16LE: [.s24_3LE, .s32LE, .floatLE]
    case .s24_3LE: [.s32LE, .floatLE, .s16LE]
    case .s32LE: [.floatLE, .s24_3LE, .s16LE]
    case .floatLE: [.s32LE, .s24_3LE, .s16LE]
    }
  }
}
