// The header of a spool file, which is written once at its creation.

/// The header, which also has a copy after the checkpoints.
struct SpoolHeader: Equatable {
  /// 16 random bytes, with which the checksums of this file begin, so that a block of another file never matches.
  var id: [UInt8]
  /// Wall clock, in milliseconds since 1970.
  var created: Int64
  var blockCount: UInt64
  /// Text for the process that drains the file. This module does not interpret it.
  var description: String

  static let magic = Array("SLUSPOOL".utf8)
  static let fixedSize = 72

  /// The initial value for the checksums of checkpoints and blocks.
  var seed: UInt32 { checksum(id) }

  /// The header as stored in the file, without the zeros after it.
  func encoded() -> [UInt8] {
    let text = Array(description.utf8)
    var bytes = Self.magic
    bytes.append(number: SpoolFormat.version)
    bytes.append(number: UInt32(0))
    bytes.append(number: UInt32(SpoolFormat.blockSize))
    bytes.append(number: UInt32(SpoolFormat.payloadSize))
    bytes.append(number: blockCount)
    bytes.append(number: SpoolFormat.dataStart)
    bytes.append(number: created)
    bytes += id
    bytes.append(number: UInt32(text.count))
    bytes.append(number: UInt32(0))
    bytes += text
    let sum = bytes.withUnsafeBytes { Self.sum(of: $0) }
    bytes.withUnsafeMutableBytes { $0.set(sum, at: 12) }
    return bytes
  }

  enum Decoding: Equatable {
    case header(SpoolHeader)
    /// A header of an unknown version.
    case unsupportedVersion(UInt32)
    /// All bits of the region are zero, or it is missing.
    case empty
    /// It begins with other bytes than a spool file's.
    case foreign
    /// The checksum is wrong, or a field is invalid.
    case damaged
  }

  /// - Parameter region: the first ``SpoolFormat/regionSize`` bytes, or fewer for a truncated file.
  static func decoded(_ region: UnsafeRawBufferPointer) -> Decoding {
    guard region.contains(where: { $0 != 0 }) else { return .empty }
    guard region.count >= fixedSize else { return .damaged }
    let isOurs = region.prefix(8).elementsEqual(magic)
    let length = region.integer(at: 64, as: UInt32.self)
    guard length <= UInt32(SpoolFormat.longestDescription), region.count >= fixedSize + Int(length) else {
      return isOurs ? .damaged : .foreign
    }
    let end = fixedSize + Int(length)
    guard isOurs, sum(of: UnsafeRawBufferPointer(rebasing: region[..<end])) == region.integer(at: 12) else {
      return isOurs ? .damaged : .foreign
    }
    let version = region.integer(at: 8, as: UInt32.self)
    guard version == SpoolFormat.version else { return .unsupportedVersion(version) }
    let blockCount = region.integer(at: 24, as: UInt64.self)
    guard region.integer(at: 16, as: UInt32.self) == UInt32(SpoolFormat.blockSize),
      region.integer(at: 20, as: UInt32.self) == UInt32(SpoolFormat.payloadSize),
      region.integer(at: 32, as: UInt64.self) == SpoolFormat.dataStart,
      (SpoolFormat.smallestBlockCount...SpoolFormat.largestBlockCount).contains(blockCount)
    else { return .damaged }
    return .header(
      SpoolHeader(
        id: Array(region[48..<64]), created: region.integer(at: 40), blockCount: blockCount,
        description: String(decoding: region[fixedSize..<end], as: UTF8.self)))
  }

  /// The checksum of everything except the checksum field.
  private static func sum(of bytes: UnsafeRawBufferPointer) -> UInt32 {
    checksum(
      UnsafeRawBufferPointer(rebasing: bytes[16...]),
      from: checksum(UnsafeRawBufferPointer(rebasing: bytes[..<12])))
  }
}
