// Detects whether a single flipped bit explains a wrong checksum.

/// CRC-32 is linear: a flipped bit changes the sum of a block in the same way, whatever the block contains. No two bits
/// change it alike.
enum SingleBitErrors {
  /// - Parameter difference: the stored checksum, exclusive or the computed one.
  /// - Returns: whether one flipped bit in a block, its checksum included, explains it.
  static func explain(_ difference: UInt32) -> Bool {
    difference.nonzeroBitCount == 1 || syndromes.contains(difference)
  }

  /// The differences that each bit after the checksum causes: 32,736 numbers, computed on first use.
  private static let syndromes: Set<UInt32> = {
    var all = Set<UInt32>()
    // The reversed polynomial of ISO 3309, as in zlib. The block's last bit comes first: bit 7 of the last byte.
    var difference: UInt32 = 0xEDB8_8320
    for _ in 0..<(SpoolFormat.blockSize - 4) * 8 {
      all.insert(difference)
      difference = difference & 1 == 1 ? difference >> 1 ^ 0xEDB8_8320 : difference >> 1
    }
    return all
  }()
}
