// CRC-32 of zlib, and numbers in little endian order.

internal import CZlib

/// CRC-32 (ISO 3309, as zlib and PNG compute it) of `bytes`, continued from `seed`.
func checksum(_ bytes: UnsafeRawBufferPointer, from seed: UInt32 = 0) -> UInt32 {
  guard let start = bytes.baseAddress, !bytes.isEmpty else { return seed }
  return UInt32(
    truncatingIfNeeded: crc32_z(uLong(seed), start.assumingMemoryBound(to: Bytef.self), bytes.count))
}

func checksum(_ bytes: [UInt8], from seed: UInt32 = 0) -> UInt32 { bytes.withUnsafeBytes { checksum($0, from: seed) } }

extension UnsafeRawBufferPointer {
  /// The number at `offset`, which the caller knows to be in range.
  func integer<Number: FixedWidthInteger>(at offset: Int, as type: Number.Type = Number.self) -> Number {
    Number(littleEndian: loadUnaligned(fromByteOffset: offset, as: type))
  }
}

extension UnsafeMutableRawBufferPointer {
  func set<Number: FixedWidthInteger>(_ number: Number, at offset: Int) {
    storeBytes(of: number.littleEndian, toByteOffset: offset, as: Number.self)
  }
}

extension [UInt8] {
  mutating func append<Number: FixedWidthInteger>(number: Number) {
    Swift.withUnsafeBytes(of: number.littleEndian) { append(contentsOf: $0) }
  }
}
