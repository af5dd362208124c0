// Whether a wrong checksum comes from one flipped bit.

/// CRC-32 is linear: one flipped bit changes the sum of a block in the same way, whatever the block holds. No two bits
/// of a block change it alike.
enum SingleBitErrors {
  /// - Parameter difference: the stored checksum, exclusive or the computed one.
  /// - Returns: whether one flipped bit in a block, its checksum included, explains it.
  static func explain(_ difference: UInt32) -> Bool {
    difference.nonzeroBitCount == 1 || syndromes.contains(difference)
  }

  /// By the difference that each bit behind the checksum makes: 32,736 numbers, computed on first use.
  private static let syndromes: Set<UInt32> = {
    var all = Set<UInt32>()
    // The reversed polynomial of ISO 3309, as zlib has it. The last bit of the block comes first: bit 7 of the last
    // byte.
    var difference: UInt32 = 0xEDB8_8320
    for _ in 0..<(SpoolFormat.blockSize - 4) * 8 {
      all.insert(difference)
      difference = difference & 1 == 1 ? difference >> 1 ^ 0xEDB8_8320 : difference >> 1
    }
    return all
  }()
}
