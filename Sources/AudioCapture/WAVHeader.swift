// The header of a WAV file of unknown length.

/// A RIFF/WAVE header for a stream that continues until it is stopped.
///
/// Both sizes are 0xFFFFFFFF, which players (ffmpeg, sox, VLC, aplay, mpv) interpret as "to the end of the file". A
/// `JUNK` chunk leaves room for the `ds64` chunk that a file of more than 4 GiB requires (EBU Tech 3306). PCM uses
/// `WAVE_FORMAT_PCM` or `WAVE_FORMAT_IEEE_FLOAT`. More than two channels or 24 bits use `WAVE_FORMAT_EXTENSIBLE`, as
/// Microsoft's "Multiple channel audio data and WAVE files" requires.
public struct WAVHeader: Equatable, Sendable {
  /// The bytes of the header: 80, 94 for floating point, or 104 for the extensible form.
  public let bytes: [UInt8]

  /// Creates the header for a stream of `rate` frames per second.
  public init(rate: Int, channels: Int, format: SampleFormat) {
    let bytesPerFrame = channels * format.bytesPerSample
    let bits = UInt16(format.bytesPerSample * 8)
    let isExtensible = channels > 2 || format == .s24_3LE
    let tag: UInt16 = format.isFloat ? 3 : 1

    var fmt: [UInt8] = []
    fmt += (isExtensible ? 0xFFFE : tag).littleEndianBytes
    fmt += UInt16(channels).littleEndianBytes
    fmt += UInt32(rate).littleEndianBytes
    fmt += UInt32(rate * bytesPerFrame).littleEndianBytes
    fmt += UInt16(bytesPerFrame).littleEndianBytes
    fmt += bits.littleEndianBytes
    if isExtensible {
      fmt += UInt16(22).littleEndianBytes
      fmt += bits.littleEndianBytes
      // No speaker positions, because the device defines the channels.
      fmt += UInt32(0).littleEndianBytes
      // KSDATAFORMAT_SUBTYPE_PCM or _IEEE_FLOAT: the tag, then a fixed tail.
      fmt += tag.littleEndianBytes
      fmt += [0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x80, 0x00, 0x00, 0xAA, 0x00, 0x38, 0x9B, 0x71]
    } else if format.isFloat {
      fmt += UInt16(0).littleEndianBytes
    }

    var header = Array("RIFF".utf8) + UInt32.max.littleEndianBytes + Array("WAVE".utf8)
    // Reserves space for a ds64 chunk without a table, which must come before all others.
    header += Array("JUNK".utf8) + UInt32(28).littleEndianBytes + [UInt8](repeating: 0, count: 28)
    header += Array("fmt ".utf8) + UInt32(fmt.count).littleEndianBytes + fmt
    if format.isFloat, !isExtensible {
      // A format other than PCM must state the number of frames, so use the maximum.
      header += Array("fact".utf8) + UInt32(4).littleEndianBytes + UInt32.max.littleEndianBytes
    }
    bytes = header + Array("data".utf8) + UInt32.max.littleEndianBytes
  }
}

extension FixedWidthInteger {
  fileprivate var littleEndianBytes: [UInt8] {
    (0..<Self.bitWidth / 8).map { UInt8(truncatingIfNeeded: self >> (8 * $0)) }
  }
}
