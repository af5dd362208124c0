// One stretch on the spool's thread: copies bytes from the circular buffer to the file, and back.

internal import EventLoops
internal import Glibc
internal import Spool
internal import StreamBuffers

/// Owned by the spool's thread; unchecked for that reason.
final class StretchWriter: @unchecked Sendable {
  /// Nil until the disk has space for one. Until then, everything is in the circular buffer.
  private(set) var file: SpoolFile?
  let stretch: SpooledStretch
  /// The source of the bytes. If the stretch's source is gone, it has ended.
  let copier: CircularBuffer.Copier
  /// The part that survives this process without being written; nil if it is unusable and stays unchanged.
  private let shared: SharedStretch?
  private let makeFile: () throws(SpoolError) -> SpoolFile
  /// The next position to be copied.
  private(set) var position: UInt64
  /// Whether there is something that the last commit did not include.
  private(set) var isDirty = false
  /// The resumption data of the last commit.
  private var committedResumption: String
  private var committedPauses = CircularBuffer.Pauses()
  private var committedOldest: UInt64 = 0
  /// Whether the file was removed by others.
  private(set) var isRemoved = false
  /// Whether the last load has failed.
  private(set) var isUnreadable = false
  /// See ``SpoolSettings/readingPatience``.
  private let patience: Duration
  /// The bytes that the disk cannot read, and when this began.
  private var unreadable: (position: UInt64, since: MonotonicInstant)?
  /// Whether recovery would not find the copied bytes, because they are too far behind the last checkpoint's head.
  private var isFarFromCheckpoint = false

  /// The result of a copy.
  enum Copied: Equatable {
    case nothing, some
    /// The file accepts no more, for this reason.
    case blocked(SpoolError)
  }

  /// - Parameters:
  ///   - patience: how long a working disk may fail to read bytes before they count as lost.
  ///   - makeFile: called until it returns one.
  init(
    file: SpoolFile?, stretch: SpooledStretch, copier: CircularBuffer.Copier, shared: SharedStretch?,
    patience: Duration, makeFile: @escaping () throws(SpoolError) -> SpoolFile
  ) {
    self.patience = patience
    self.file = file
    self.shared = shared
    self.stretch = stretch
    self.copier = copier
    self.makeFile = makeFile
    position = file?.head ?? 0
    committedResumption = file?.checkpoint.state ?? ""
    committedOldest = file?.oldest ?? 0
  }

  var waker: CircularBuffer.ConsumerWaker { copier.waker }

  /// How many bytes the file keeps that the server has not stored.
  var keptByteCount: UInt64 { file?.keptByteCount ?? 0 }

  /// Whether all bytes of the source were copied.
  var isAtEnd: Bool {
    // In this order: after the producer has finished, the head is final.
    copier.isFinished && position >= copier.head
  }

  /// How many bytes exist only in the circular buffer.
  var byteCountInMemory: UInt64 {
    let head = copier.head
    return head - min(head, max(file?.head ?? 0, stretch.released, copier.oldest))
  }

  /// Checks whether a later process can still find the file. Returns its path if it was removed since the last check.
  func findRemoval() -> String? {
    guard !isRemoved, let file, file.isRemoved else { return nil }
    isRemoved = true
    return file.path
  }

  /// Checks whether another program has truncated the file, and makes it usable again. If so, returns its path. A
  /// commit must follow.
  func findTruncation() throws(SpoolError) -> String? {
    guard !isRemoved, let file, try file.repairTruncation() else { return nil }
    isDirty = true
    return file.path
  }

  func releaseAcknowledged() {
    guard let file else { return }
    let released = stretch.released
    if released > file.released { isDirty = true }
    file.release(upTo: released)
  }

  func evict(upTo position: UInt64) {
    file?.evict(upTo: position)
    stretch.evicted(upTo: position)
  }

  /// Copies the bytes of the circular buffer, except those that the server has acknowledged by now.
  ///
  /// - Parameters:
  ///   - buffer: for bytes that are being copied.
  ///   - limit: how many bytes to copy. A little more may be copied.
  ///   - makeRoom: called before that number of bytes is written. Returns false if there is no space for them.
  func copy(
    through buffer: UnsafeMutableRawBufferPointer, atMost limit: Int, makeRoom: (UInt64, SpoolFile) -> Bool
  ) -> Copied {
    var result = Copied.nothing
    var rest = limit
    // First, because the disk may refuse everything.
    findLoss()
    do throws(SpoolError) {
      if file == nil { try createFile() }
      guard let file else { return .nothing }
      while true {
        position = max(position, min(stretch.released, copier.head))
        // Before the copy: from here on, bytes that the producer takes may be on their way.
        stretch.took(upTo: position.addingSaturated(UInt64(buffer.count)))
        switch copier.copy(at: position, into: buffer) {
        case .empty:
          wrote(file)
          return result
        // Acknowledged meanwhile, or lost.
        case .overwritten(let oldest):
          stretch.lost(from: position, to: oldest)
          position = oldest
          wrote(file)
        case .bytes(let count):
          defer { wrote(file) }
          // Only these are on their way. The disk may not answer for long.
          stretch.took(upTo: position + UInt64(count))
          // Again if it was settled. Before anything else, because the disk may refuse the bytes themselves.
          try file.noteMemory(isNeeded: true)
          guard makeRoom(UInt64(count), file) else { throw SpoolError(.full, path: file.path) }
          let bytes = UnsafeRawBufferPointer(rebasing: buffer.prefix(count))
          if position - min(position, file.head) >= Self.longestJump { isFarFromCheckpoint = true }
          let discarded = file.discardedByteCount
          try file.append(bytes, at: position, time: SpoolThread.captureTime)
          // The first of them, if they follow a hole closely.
          stretch.lost(from: position, to: position + (file.discardedByteCount - discarded))
          position += UInt64(count)
          if isFarFromCheckpoint { try commit(sync: false) }
          // The rest is in this process's memory, but the buffer's memory survives the process.
          copier.copied(upTo: min(position, file.writtenPosition))
          (result, isDirty) = (.some, true)
          rest -= count
          guard rest > 0 else { return result }
        }
      }
    } catch {
      return .blocked(error)
    }
  }

  /// Notes which bytes the buffer has dropped before they were copied.
  private func findLoss() { stretch.lost(from: position, to: copier.oldest) }

  /// The stretch is over, and the disk has refused its last bytes. Only those in the buffer survive this process.
  func findLossAtEnd() {
    findLoss()
    if let file { stretch.lost(from: file.survivingHead, to: copier.oldest) }
  }

  /// Recovery searches for blocks up to this distance from the head of the newest checkpoint, and a little further.
  private static let longestJump: UInt64 = 8 << 20

  private func createFile() throws(SpoolError) {
    file = try makeFile()
    isDirty = true
    shared?.removeDescription()
  }

  private func wrote(_ file: SpoolFile) {
    if stretch.wrote(upTo: file.head) { waker.wake() }
  }

  /// The position up to which bytes must be dropped for `count` more. The ring spans holes, too.
  func leastOldest(for count: UInt64, in file: SpoolFile) -> UInt64 {
    let end = position + count
    return min(file.head, SpoolFile.nextBlock(after: end - min(end, file.capacity)))
  }

  /// Makes the file keep the copied bytes and the resumption data.
  ///
  /// - Parameter sync: whether they must also survive a power failure.
  func commit(sync: Bool) throws(SpoolError) {
    guard let file else { return }
    releaseAcknowledged()
    let pauses = pauses(file)
    let resumption = stretch.resumption
    try file.commit(
      state: resumption, pausedByteCount: pauses.byteCountBefore,
      pauses: pauses.ahead.map { SpoolPause(position: $0.position, length: $0.length) },
      // An unreadable buffer may contain more.
      isFinished: isAtEnd && shared != nil, sync: sync)
    isFarFromCheckpoint = false
    copier.copied(upTo: position)
    if sync {
      isDirty = false
      stretch.synchronized(upTo: file.head)
    }
    (committedResumption, committedOldest, committedPauses) = (resumption, file.oldest, pauses)
  }

  /// Syncs the complete blocks to the disk, if that is equivalent to a commit.
  ///
  /// This costs the disk less, because it needs no checkpoint. Bytes after the last complete block wait for the next
  /// time.
  ///
  /// - Parameter start: the incomplete block must begin here or later.
  /// - Returns: false if a commit is necessary.
  func synchronizeBlocks(from start: UInt64) throws(SpoolError) -> Bool {
    guard let file, file.writtenPosition >= start, position == file.head, position >= copier.head, !isAtEnd,
      !hasNewResumption, file.canSynchronizeBlocks, pauses(file) == committedPauses
    else { return false }
    stretch.synchronized(upTo: try file.synchronizeBlocks())
    return true
  }

  /// Whether anything else has changed than added bytes.
  var needsCommit: Bool { hasNewResumption || stretch.released > (file?.checkpoint.released ?? 0) }

  /// These are the pauses after the bytes that the file counts as released, whatever the consumer does meanwhile.
  private func pauses(_ file: SpoolFile) -> CircularBuffer.Pauses {
    var pauses = copier.pauses(from: file.released)
    while pauses.ahead.count > Self.mostPauses {
      pauses.byteCountBefore = pauses.byteCountBefore.addingSaturated(pauses.ahead.removeFirst().length)
    }
    return pauses
  }

  /// As many as fit in a checkpoint.
  private static let mostPauses = 16

  /// Whether bytes of the file may be lost, although nothing shows which.
  var mayLackBytes: Bool { file?.mayLackBytes == true }

  /// None of the stretch is needed any more. A file of which bytes may be lost stays, without anything to send.
  func remove() throws(SpoolError) {
    guard let file else {
      shared?.remove()
      return
    }
    if file.mayLackBytes {
      stretch.noteWithRelease("")
      file.release(upTo: file.head)
      try commit(sync: true)
      close()
      shared?.remove()
      return
    }
    // The file refers to the unreadable buffer.
    guard shared != nil || file.needsNoMemory else { return close() }
    do throws(SpoolError) {
      // In this order, so that the remains after a failure are complete. A power failure, after which the file may
      // reappear, clears the memory as well.
      try file.remove { shared?.remove() }
    } catch {
      // Others have removed or moved the file.
      guard error.code == ENOENT else { throw error }
      close()
      shared?.remove()
    }
  }

  /// Everything is in the file permanently. From now on, only commits store the resumption data.
  func leaveMemory() throws(SpoolError) {
    stretch.keepsWords(in: nil)
    do throws(SpoolError) {
      if hasNewResumption { try commit(sync: true) }
      if shared != nil { try file?.noteMemory(isNeeded: false) }
    } catch {
      stretch.keepsWords(in: copier.note)
      throw error
    }
    shared?.remove()
  }

  /// If all captured bytes are in the file or acknowledged, records that none is only in memory. The next copy records
  /// the opposite.
  func settleMemory() throws(SpoolError) {
    guard shared != nil, let file, file.checkpoint.head == file.head, !hasNewResumption,
      max(file.head, stretch.released) >= copier.head
    else { return }
    try file.noteMemory(isNeeded: false)
  }

  /// Whether the file records that bytes may be only in memory, so that further ones need no new record.
  var isMemoryNoted: Bool { file?.needsMemory == true }

  /// Another process continues.
  func close() { file?.close() }

  /// Whether a commit would return much space to the file system.
  var holdsRoom: Bool {
    guard let file else { return false }
    return file.oldest - min(file.oldest, committedOldest) >= 4 << 20
  }

  /// Whether bytes were evicted or acknowledged since the last commit.
  var holdsEviction: Bool { file.map { $0.oldest > committedOldest } ?? false }

  var hasNewResumption: Bool { stretch.resumption != committedResumption }

  /// Loads a piece from `start` on, for the consumer.
  ///
  /// - Returns: the error if the disk cannot read the bytes now. Then nothing is loaded, and this is called again
  ///   later.
  func load(from start: UInt64) -> SpoolError? {
    let piece = SpoolReadAhead.Piece(start: start)
    var hole: Range<UInt64>?
    var error: SpoolError?
    reading: while let file, piece.count < SpoolReadAhead.Piece.capacity {
      let place = UnsafeMutableRawBufferPointer(rebasing: piece.memory[piece.count...])
      do throws(SpoolError) {
        switch try file.read(at: piece.end, into: place) {
        case .bytes(let count): piece.count += count
        case .missing(let next):
          hole = piece.end..<max(next, piece.end + 1)
          break reading
        case .unreadable(let next, let isProven):
          if isLost(piece.end, isDiskProven: isProven) {
            hole = piece.end..<max(next, piece.end + 1)
          } else {
            error = SpoolError(.system(SystemError(operation: "read \(file.path)", code: EIO)), path: file.path)
          }
          break reading
        case .end: break reading
        }
      } catch let failure {
        error = failure
        break reading
      }
    }
    isUnreadable = error != nil && piece.count == 0
    if isUnreadable { return error }
    stretch.loaded(piece.count > 0 ? piece : nil, hole: hole)
    waker.wake()
    return nil
  }

  /// Whether the disk has failed to read these bytes for too long, and works otherwise.
  ///
  /// - Parameter isDiskProven: whether the disk has just read other bytes.
  private func isLost(_ position: UInt64, isDiskProven: Bool) -> Bool {
    guard let unreadable, unreadable.position == position else {
      unreadable = (position, .now)
      return false
    }
    guard unreadable.since + patience <= .now else { return false }
    // No other bytes are nearby. A disk that is gone refuses a checkpoint, too.
    if isDiskProven { return true }
    do throws(SpoolError) {
      try commit(sync: true)
      return true
    } catch {
      return false
    }
  }
}
