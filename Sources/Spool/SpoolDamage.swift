// The damage of a spool file, with its location.

extension SpoolDamage.Kind {
  /// Whether bytes may be lost, although nothing shows which. The file is then kept until an operator removes it.
  package var leavesDoubt: Bool { isDoubtfulCheckpoint || self == .lostMemory }

  /// Whether the memory of the process that captured would show which bytes are lost.
  var isDoubtfulCheckpoint: Bool { self == .allCheckpoints || self == .newestCheckpoint }
}

/// A part of a file that differs from what was written.
///
/// Damage need not mean loss: a checkpoint that was being written when the power failed has an older one beside it, and
/// a header has its copy. ``lostPositions`` names the bytes of the stream that are lost.
public struct SpoolDamage: Equatable, Sendable {
  /// What is wrong.
  public enum Kind: String, Equatable, Sendable, CaseIterable {
    /// The header or its copy has a wrong checksum. The other one was used.
    case header
    /// A checkpoint has a wrong checksum: a torn write, or flipped bits. A newer one is intact, or the newest intact
    /// one has the end of the stream, or the memory of the process that captured shows what the file lacks.
    case checkpoint
    /// The same, but it may be newer than the intact ones. The commit that wrote it never ended, or flipped bits
    /// destroyed it. This affects at most the bytes of the block that contains the head.
    case newestCheckpoint
    /// No checkpoint is intact. The blocks show the file's content, but the released position and the state are
    /// unknown.
    case allCheckpoints
    /// The process that captured was killed, and its memory, which may have had later bytes, was removed or changed
    /// before another process read it. ``lostPositions`` is empty, and begins where bytes may be missing.
    case lostMemory
    /// The file ends before the ring does.
    case truncated
    /// Blocks have a wrong checksum: part of them was written, or several bits differ.
    case torn
    /// One bit of a block differs.
    case flippedBit
    /// Expected blocks are zeros or of an earlier lap, because their write never reached the disk.
    case unwritten
    /// Newer blocks have replaced these. Their bytes were released or evicted after the checkpoint that was used.
    case overwritten
    /// The disk failed to read blocks twice.
    case unreadable
  }

  /// What is wrong.
  public var kind: Kind
  /// Where in the file, in bytes.
  public var fileOffset: UInt64
  /// The stream positions that are gone; empty when nothing is lost.
  public var lostPositions: Range<UInt64>
  /// How many bytes are lost. Positions of a damaged file may be so far apart that the range's own `count` would trap.
  package var lostByteCount: UInt64 { lostPositions.upperBound - lostPositions.lowerBound }

  /// Creates damage at an offset of the file.
  public init(_ kind: Kind, fileOffset: UInt64, lostPositions: Range<UInt64> = 0..<0) {
    self.kind = kind
    self.fileOffset = fileOffset
    self.lostPositions = lostPositions
  }
}
