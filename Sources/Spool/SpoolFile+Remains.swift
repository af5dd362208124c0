// Bytes of a stretch that its process left in memory when it was killed.

extension SpoolFile {
  /// Lets a stretch of an earlier process accept more bytes until the next commit: those that its process left in
  /// memory.
  package func acceptRemains() {
    if !isReadOnly, !checkpoint.isFinished { isSealed = false }
  }

  /// Whether the newest checkpoint states that nothing was captured after it.
  package var wasSealed: Bool { hadSealedCheckpoint }

  /// Everything before it is in the file. Later bytes are in this process's memory until the next commit.
  package var writtenPosition: UInt64 { SpoolFormat.start(ofBlock: SpoolFormat.blockIndex(head)) }

  /// The head that the next process finds if nothing more is written. Of the last block, only the part in the newest
  /// checkpoint survives this process.
  package var survivingHead: UInt64 { max(checkpoint.head, writtenPosition) }

  /// The first position of the block after the one that contains `position`. An unreadable range ends there at the
  /// earliest.
  package static func nextBlock(after position: UInt64) -> UInt64 {
    SpoolFormat.start(ofBlock: SpoolFormat.blockIndex(position)) + SpoolFormat.payload
  }
}
