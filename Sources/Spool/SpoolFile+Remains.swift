// Bytes of a stretch that its process left elsewhere when it was killed.

extension SpoolFile {
  /// Has a stretch of an earlier process take bytes once more, until the next commit: those that this process left in
  /// memory.
  package func acceptRemains() {
    if !isReadOnly, !checkpoint.isFinished { isSealed = false }
  }

  /// Whether the newest checkpoint says that nothing was captured behind it.
  package var wasSealed: Bool { hadSealedCheckpoint }

  /// Everything before it is in the file; what follows is in this process's memory until the next commit.
  package var writtenPosition: UInt64 { SpoolFormat.start(ofBlock: SpoolFormat.blockIndex(head)) }

  /// The first position of the block behind the one that `position` is in: what cannot be read ends there at the
  /// earliest.
  package static func nextBlock(after position: UInt64) -> UInt64 {
    SpoolFormat.start(ofBlock: SpoolFormat.blockIndex(position)) + SpoolFormat.payload
  }
}
