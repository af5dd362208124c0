// The layout of a spool file. docs/spool-format.md describes it byte by byte.

/// The constants of the format, version 1. All numbers in a file are little endian.
enum SpoolFormat {
  static let version: UInt32 = 1
  /// The space for the header, for its copy, and for each checkpoint, in bytes.
  static let regionSize = 16_384
  static let headerOffset: UInt64 = 0
  /// Two checkpoints alternate between syncs. The third is the last one that is certainly on the disk.
  static let checkpointOffsets: [UInt64] = [16_384, 32_768, 49_152]
  static let headerCopyOffset: UInt64 = 65_536
  static let dataStart: UInt64 = 81_920

  static let blockSize = 4096
  static let blockHeaderSize = 32
  /// Bytes of a stream per block.
  static let payloadSize = 4064
  static let payload = UInt64(payloadSize)

  /// Files of up to 4 PiB, far below any overflow of an offset.
  static let largestBlockCount: UInt64 = 1 << 40
  static let smallestBlockCount: UInt64 = 4
  /// No stream reaches it, and arithmetic with a few of them cannot overflow.
  static let largestPosition: UInt64 = 1 << 60

  static let longestDescription = 15_360
  static let longestState = 8192
  static let mostPauses = 16

  /// Blocks per read, write or step of a search: 1 MiB.
  static let blocksPerStep = 256
  /// The number of blocks without a valid one after which the search for blocks after the checkpoint ends: 16 MiB.
  static let longestGapInSearch: UInt64 = 4096
  /// How many blocks one read searches for the next bytes: 64 MiB.
  static let longestSearch: UInt64 = 16_384
  /// Released ranges are returned in steps of at least this many blocks (1 MiB).
  static let smallestReturn: UInt64 = 256
  /// Without a sync, they are returned in steps of at least this many blocks (64 MiB).
  static let smallestUnsyncedReturn: UInt64 = 16_384

  /// The maximum number of blocks between the newest checkpoint and the head (4 MiB), because a recovery reads them
  /// all.
  static let farthestFromCheckpoint: UInt64 = 1024
  /// Shorter holes count as bytes.
  static let smallestHole: UInt64 = 64 << 10
  /// Space is allocated ahead of the head in steps of as many blocks as the file keeps, from 256 KiB to 64 MiB.
  static let smallestAllocation: UInt64 = 64
  static let largestAllocation: UInt64 = 16_384

  static func blockIndex(_ position: UInt64) -> UInt64 { position / payload }
  /// The offset of a position in its block's payload.
  static func place(_ position: UInt64) -> Int { Int(position % payload) }
  /// The first position of a block. Indices are below 2^60, which no caller can exceed (``largestPosition``).
  static func start(ofBlock index: UInt64) -> UInt64 { index * payload }

  static func blockOffset(_ index: UInt64, blockCount: UInt64) -> UInt64 {
    dataStart + (index % blockCount) * UInt64(blockSize)
  }
}
