// The fields of the header, format by format.

import AudioCapture
import Testing

@Suite("The head of a WAV file without a length")
struct WAVHeaderFieldTests {
  /// Bytes in the notation of the specification's tables.
  private func hex(_ text: String) -> [UInt8] {
    text.split { $0 == " " || $0 == "\n" }.map { UInt8($0, radix: 16) ?? 0 }
  }

  @Test("16 bits, mono, 48 kHz: both sizes are open, and a chunk reserves space for those of RF64")
  func plain() {
    #expect(
      WAVHeader(rate: 48_000, channels: 1, format: .s16LE).bytes
        == hex(
          """
          52 49 46 46 FF FF FF FF 57 41 56 45 4A 55 4E 4B 1C 00 00 00 00 00 00 00
          00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
          66 6D 74 20 10 00 00 00 01 00 01 00
          80 BB 00 00 00 77 01 00 02 00 10 00 64 61 74 61 FF FF FF FF
          """))
  }

  @Test("32 bits, stereo, 44.1 kHz")
  func wide() {
    let bytes = WAVHeader(rate: 44_100, channels: 2, format: .s32LE).bytes
    #expect(Array(bytes[56..<72]) == hex("01 00 02 00 44 AC 00 00 20 62 05 00 08 00 20 00"))
    #expect(bytes.count == 80)
  }

  @Test("floating point has its format tag, and the maximum number of frames")
  func float() {
    let bytes = WAVHeader(rate: 48_000, channels: 2, format: .floatLE).bytes
    #expect(bytes.count == 94)
    #expect(Array(bytes[52..<58]) == hex("12 00 00 00 03 00") && Array(bytes[72..<74]) == [0, 0])
    #expect(Array(bytes[74..<86]) == hex("66 61 63 74 04 00 00 00 FF FF FF FF"))
  }

  @Test("24 bits, or more than two channels, use the extensible form")
  func extensible() {
    for (channels, format, bits) in [(1, SampleFormat.s24_3LE, 24), (4, .s16LE, 16)] as [(Int, SampleFormat, UInt8)] {
      let bytes = WAVHeader(rate: 48_000, channels: channels, format: format).bytes
      #expect(bytes.count == 104)
      #expect(Array(bytes[52..<58]) == hex("28 00 00 00 FE FF"))
      #expect(Array(bytes[70..<80]) == [bits, 0, 22, 0, bits, 0, 0, 0, 0, 0])
      // KSDATAFORMAT_SUBTYPE_PCM, 00000001-0000-0010-8000-00AA00389B71.
      #expect(Array(bytes[80..<96]) == hex("01 00 00 00 00 00 10 00 80 00 00 AA 00 38 9B 71"))
    }
  }
}
