// The bytes of every stream: noise in which any four bytes identify their offset.

/// A stream of words, each different from all others within 16 GiB.
enum OffsetNoise {
  private static func word(_ index: UInt32) -> UInt32 {
    // A bijection of 32 bits (the last step of MurmurHash3).
    var mixed = index ^ 0x5EED_0FF5
    mixed = (mixed ^ mixed >> 16) &* 0x85EB_CA6B
    mixed = (mixed ^ mixed >> 13) &* 0xC2B2_AE35
    return mixed ^ mixed >> 16
  }

  /// Longer than any stream of the matrix.
  private static let all: [UInt8] = {
    var bytes: [UInt8] = []
    bytes.reserveCapacity(longest)
    for index in 0..<UInt32(longest / 4) {
      let word = word(index)
      bytes.append(UInt8(truncatingIfNeeded: word))
      bytes.append(UInt8(truncatingIfNeeded: word >> 8))
      bytes.append(UInt8(truncatingIfNeeded: word >> 16))
      bytes.append(UInt8(truncatingIfNeeded: word >> 24))
    }
    return bytes
  }()
  private static let longest = 6 << 20

  static func bytes(from offset: UInt64, count: Int) -> [UInt8] { Array(all[Int(offset)..<Int(offset) + count]) }

  /// The offset at which the first eight of `bytes` are; 0 if there are none.
  static func offset(of bytes: [UInt8]) -> UInt64? {
    let first = bytes.prefix(8)
    return (0...longest - first.count).first { all[$0...].starts(with: first) }.map(UInt64.init)
  }

  /// The first of `bytes`, which begin at `offset`, that is wrong.
  static func firstDifference(_ bytes: [UInt8], at offset: UInt64) -> UInt64? {
    guard bytes.count <= longest, offset <= UInt64(longest - bytes.count) else { return offset }
    if all[Int(offset)...].starts(with: bytes) { return nil }
    return bytes.indices.first { bytes[$0] != all[Int(offset) + $0] }.map { offset + UInt64($0) }
  }
}
