// The header of a stream, byte by byte, according to "Multiple channel audio data and WAVE files".

import AudioCapture
import Testing

@Suite("The WAV header")
struct WAVHeaderTests {
  /// Everything before the format: both sizes are open, and a chunk reserves space for `ds64`.
  private static let beginning: [UInt8] =
    Array("RIFF".utf8) + [255, 255, 255, 255] + Array("WAVEJUNK".utf8) + [28, 0, 0, 0]
    + [UInt8](repeating: 0, count: 28) + Array("fmt ".utf8)
  private static let guid: [UInt8] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71]

  @Test("16 bits: the plain form")
  func plain() {
    let expected =
      Self.beginning
      + [16, 0, 0, 0, 1, 0, 2, 0, 0x44, 0xAC, 0, 0, 0x10, 0xB1, 2, 0, 4, 0, 16, 0]
      + Array("data".utf8) + [255, 255, 255, 255]
    #expect(WAVHeader(rate: 44_100, channels: 2, format: .s16LE).bytes == expected)
    #expect(expected.count == 80)
  }

  @Test("floating point: with the maximum number of frames")
  func float() {
    let expected =
      Self.beginning
      + [18, 0, 0, 0, 3, 0, 1, 0, 0x80, 0xBB, 0, 0, 0, 0xEE, 2, 0, 4, 0, 32, 0, 0, 0]
      + Array("fact".utf8) + [4, 0, 0, 0, 255, 255, 255, 255] + Array("data".utf8) + [255, 255, 255, 255]
    #expect(WAVHeader(rate: 48_000, channels: 1, format: .floatLE).bytes == expected)
    #expect(expected.count == 94)
  }

  @Test("more than two channels, or 24 bits: the extensible form")
  func extensible() {
    func header(_ tag: UInt8, _ channels: UInt8, _ rate: [UInt8], _ perSecond: [UInt8], _ frame: UInt8, _ bits: UInt8)
      -> [UInt8]
    {
      Self.beginning
        + ([40, 0, 0, 0, 0xFE, 0xFF, channels, 0] as [UInt8]) + rate + perSecond
        + ([frame, 0, bits, 0, 22, 0, bits, 0, 0, 0, 0, 0, tag, 0] as [UInt8]) + Self.guid
        + Array("data".utf8) + [255, 255, 255, 255]
    }
    #expect(
      WAVHeader(rate: 8000, channels: 1, format: .s24_3LE).bytes
        == header(1, 1, [0x40, 0x1F, 0, 0], [0xC0, 0x5D, 0, 0], 3, 24))
    #expect(
      WAVHeader(rate: 8000, channels: 3, format: .s16LE).bytes
        == header(1, 3, [0x40, 0x1F, 0, 0], [0x80, 0xBB, 0, 0], 6, 16))
    #expect(
      WAVHeader(rate: 8000, channels: 8, format: .floatLE).bytes
        == header(3, 8, [0x40, 0x1F, 0, 0], [0, 0xE8, 3, 0], 32, 32))
    #expect(WAVHeader(rate: 8000, channels: 8, format: .floatLE).bytes.count == 104)
  }
}
