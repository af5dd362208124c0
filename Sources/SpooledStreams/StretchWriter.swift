// One stretch on the spool's thread: bytes from the circular buffer to the file, and back.

internal import EventLoops
internal import Spool
internal import StreamBuffers

/// Owned by the spool's thread; unchecked for that reason.
final class StretchWriter: @unchecked Sendable {
  let file: SpoolFile
  let stretch: SpooledStretch
  /// Where the bytes come from; nil for a stretch whose source is gone.
  let copier: CircularBuffer.Copier?
  let waker: CircularBuffer.ConsumerWaker
  /// What survives this process without having been written; nil where nothing does.
  private let shared: SharedStretch?
  /// The next position to be copied.
  private(set) var position: UInt64
  /// Whether there is something that the last commit did not have.
  private(set) var isDirty = false
  /// What the last commit had.
  private var committedResumption: SpooledStretch.Resumption
  /// Those that an earlier process has left.
  private let oldPauses: [SpoolPause]
  private var committedOldest: UInt64 = 0

  /// What became of a copy.
  enum Copied: Equatable {
    case nothing, some
    /// The file takes no more, for this reason.
    case blocked(SpoolError)
  }

  init(
    file: SpoolFile, stretch: SpooledStretch, copier: CircularBuffer.Copier?, waker: CircularBuffer.ConsumerWaker,
    shared: SharedStretch? = nil
  ) {
    self.file = file
    self.shared = shared
    self.stretch = stretch
    self.copier = copier
    self.waker = waker
    position = file.head
    committedResumption = stretch.resumption
    oldPauses = file.checkpoint.pauses
  }

  /// How many bytes are kept that the server does not have.
  var keptByteCount: UInt64 { file.head - file.oldest }

  /// Whether everything that the source gave was copied.
  var isAtEnd: Bool {
    guard let copier else { return true }
    // In this order: after the producer has finished, the head is final.
    return copier.isFinished && position >= copier.head
  }

  func releaseAcknowledged() {
    let released = stretch.released
    if released > file.released { isDirty = true }
    file.release(upTo: released)
  }

  /// Copies what the circular buffer has, except for what the server has acknowledged by now.
  ///
  /// - Parameters:
  ///   - buffer: for bytes on their way.
  ///   - makeRoom: asked before so many bytes are written; false if there is no room for them.
  func copy(through buffer: UnsafeMutableRawBufferPointer, makeRoom: (UInt64) -> Bool) -> Copied {
    guard let copier else { return .nothing }
    var result = Copied.nothing
    while true {
      position = max(position, min(stretch.released, copier.head))
      // Before the copy: from here on, what the producer takes may be on its way.
      stretch.took(upTo: position.addingSaturated(UInt64(buffer.count)))
      switch copier.copy(at: position, into: buffer) {
      case .empty:
        wrote()
        return result
      // Acknowledged meanwhile, or lost: the consumer finds that where it reads.
      case .overwritten(let oldest):
        position = oldest
        wrote()
      case .bytes(let count):
        let end = position + UInt64(count)
        do throws(SpoolError) {
          guard makeRoom(UInt64(count)) else { throw SpoolError(.full, path: file.path) }
          let bytes = UnsafeRawBufferPointer(rebasing: buffer.prefix(count))
          try file.append(bytes, at: position, time: WallClock.now.sinceEpoch)
        } catch {
          wrote()
          return .blocked(error)
        }
        position = end
        wrote()
        // The rest of it is in this process's memory: the buffer's survives it.
        copier.copied(upTo: min(end, file.writtenPosition))
        (result, isDirty) = (.some, true)
      }
    }
  }

  private func wrote() {
    if stretch.wrote(upTo: file.head) { waker.wake() }
  }

  /// Up to where bytes must go for `count` more: the ring counts a hole, too.
  func leastOldest(for count: UInt64) -> UInt64 {
    let end = position + count
    return min(file.head, SpoolFile.nextBlock(after: end - min(end, file.capacity)))
  }

  /// Has the file keep what was copied, and how to go on with it.
  ///
  /// - Parameter sync: also if the power fails.
  func commit(sync: Bool) throws(SpoolError) {
    // In this order: the consumer notes a pause before it passes it.
    let pauses = copier?.pauses
    let resumption = stretch.resumption
    try file.commit(
      state: resumption.text, pausedByteCount: resumption.pausedByteCount,
      pauses: pauses.map { pauses in
        pauses.filter { $0.number >= resumption.passedPauses }
          .map { SpoolPause(position: $0.pause.position, length: $0.pause.length) }
      } ?? Array(oldPauses.dropFirst(resumption.passedPauses)),
      isFinished: isAtEnd, sync: sync)
    copier?.copied(upTo: position)
    if sync { isDirty = false }
    (committedResumption, committedOldest) = (resumption, file.oldest)
  }

  /// Nothing of the stretch is needed any more.
  func remove() throws(SpoolError) {
    try file.remove()
    shared?.remove()
  }

  /// Everything is in the file.
  func close() {
    file.close()
    shared?.remove()
  }

  /// Whether a commit gives much room back to the file system.
  var holdsRoom: Bool { file.oldest - min(file.oldest, committedOldest) >= 4 << 20 }

  var hasNewResumption: Bool { stretch.resumption != committedResumption }

  /// Loads a piece from `start` on, for the consumer.
  func load(from start: UInt64) {
    let piece = SpoolReadAhead.Piece(start: start)
    var hole: Range<UInt64>?
    reading: while piece.count < SpoolReadAhead.Piece.capacity {
      let place = UnsafeMutableRawBufferPointer(rebasing: piece.memory[piece.count...])
      // What cannot be read is lost, as far as this process can know: a block, and perhaps the next one.
      switch (try? file.read(at: piece.end, into: place)) ?? .missing(next: SpoolFile.nextBlock(after: piece.end)) {
      case .bytes(let count): piece.count += count
      case .missing(let next):
        hole = piece.end..<max(next, piece.end + 1)
        break reading
      case .end: break reading
      }
    }
    stretch.loaded(piece.count > 0 ? piece : nil, hole: hole)
    waker.wake()
  }
}
