// One stretch of a stream on disk.

internal import EventLoops

/// The bytes that one process captured without interruption, in a file that survives the process and power failures.
///
/// The file is a ring of blocks with two alternating checkpoints. `docs/spool-format.md` describes it. Bytes are
/// addressed by *position*, counted from the first byte of the stretch.
///
/// - ``append(_:at:time:)`` adds bytes at the head. ``commit(state:pausedByteCount:pauses:isFinished:sync:)`` makes
///   them survive SIGKILL, and also a power failure if it syncs. ``synchronizeBlocks()`` does so with fewer writes.
/// - ``release(upTo:)`` and ``evict(upTo:)`` free space at the other end.
/// - ``read(at:into:)`` returns bytes exactly as they were written, and reports missing ones.
///
/// A failed call changes nothing that a later call or a recovery relies on, so it can be repeated, or other calls can
/// be made. One thread at a time may use a file. It closes itself when dropped.
package final class SpoolFile: @unchecked Sendable {
  // Unchecked, because the owner passes it between threads and uses it on one at a time.

  /// The file's path.
  package let path: String
  let descriptor: SpoolDescriptor
  let disk: any SpoolDisk
  let header: SpoolHeader
  let seed: UInt32
  /// Keeps the folder locked.
  let folder: SpoolFolder?
  let isReadOnly: Bool
  /// Whether the process that captured is gone, or the stream has ended.
  var isSealed: Bool

  /// The position after the last byte.
  package internal(set) var head: UInt64
  /// The server has acknowledged everything before it.
  package internal(set) var released: UInt64
  /// Everything before it is released or evicted.
  package internal(set) var oldest: UInt64
  /// The last commit, or the recovered checkpoint.
  package internal(set) var checkpoint: SpoolCheckpoint
  /// The damage found since the file was opened: by the recovery, by reads, and after a failed sync.
  package internal(set) var damage: [SpoolDamage]
  /// Whether the recovered checkpoint states that nothing follows.
  let hadSealedCheckpoint: Bool
  /// The damage found by the recovery.
  private(set) var recoveredDamage: [SpoolDamage]
  /// Nil if there is none, as in a file of an earlier version.
  var memoryRecord: MemoryRecord?

  /// The holes of at least ``SpoolFormat/smallestHole`` that are not completely before ``oldest``, in order.
  var holes: [Range<UInt64>] = []
  /// How many bytes were discarded after a hole since the file was opened: see ``append(_:at:time:)``.
  package internal(set) var discardedByteCount: UInt64 = 0
  /// False if a hole may have had bytes that a power failure has lost.
  var areHolesIntended = true
  var tail: SpoolTail
  var slots: CheckpointSlots
  /// The first block that a failed sync may have lost.
  var unsyncedBlock: UInt64
  var hasFailedSync = false
  /// The head's block at the last good sync, of which the durable checkpoint has a copy.
  var durableTail = SpoolTail(index: 0)
  /// Blocks before it were returned to the file system.
  var returnedBlock: UInt64 = 0
  var canPunchHoles = true
  /// Space was requested for the blocks before it.
  var allocatedBlock: UInt64 = 0
  var canAllocate = true
  let reader: BlockReader

  init(
    descriptor: SpoolDescriptor, header: SpoolHeader, folder: SpoolFolder?, isReadOnly: Bool, recovered: RecoveredState
  ) {
    path = descriptor.path
    self.descriptor = descriptor
    disk = descriptor.disk
    self.header = header
    seed = header.seed
    self.folder = folder
    self.isReadOnly = isReadOnly
    isSealed = recovered.isSealed
    checkpoint = recovered.checkpoint
    head = recovered.checkpoint.head
    released = recovered.checkpoint.released
    oldest = recovered.checkpoint.oldest
    damage = recovered.damage
    recoveredDamage = recovered.damage
    memoryRecord = recovered.memoryRecord
    hadSealedCheckpoint = recovered.hasSealedCheckpoint
    tail = recovered.tail
    slots = recovered.slots
    unsyncedBlock = recovered.unsyncedBlock
    reader = BlockReader(descriptor, header)
    reader.substitutes = recovered.substitutes
    // Blocks before the oldest known one may contain what an operator looks for.
    if mayLackBytes { returnedBlock = SpoolFormat.blockIndex(oldest) }
  }

  /// 1 MiB of memory for the blocks that a step reads or writes.
  var scratch: UnsafeMutableRawBufferPointer { reader.scratch }

  /// 16 random bytes.
  package var id: [UInt8] { header.id }
  /// The file's name in its folder.
  package var name: String { path.split(separator: "/").last.map(String.init) ?? path }
  /// When the file was created, by the wall clock, in milliseconds since 1970.
  package var created: Int64 { header.created }
  /// The text passed at its creation.
  package var description: String { header.description }
  /// How many positions the ring spans, and how many bytes fit at most.
  package var capacity: UInt64 { header.blockCount * SpoolFormat.payload }
  /// How many bytes the file uses on disk.
  package var diskByteCount: UInt64 {
    get throws(SpoolError) { try descriptor.status().diskByteCount }
  }
  /// Whether the file was removed by others, so that no later process finds it.
  package var isRemoved: Bool { (try? descriptor.status())?.hasName == false }

  /// Whether bytes may be lost, although nothing shows which. Each commit records this.
  package var mayLackBytes: Bool { doubt != nil }

  var doubt: SpoolDamage.Kind? {
    let kinds: [SpoolDamage.Kind] = [.allCheckpoints, .newestCheckpoint, .lostMemory]
    return kinds.first { kind in damage.contains { $0.kind == kind } }
  }

  /// Something else has shown which bytes the file lacks.
  package func forgetDoubt() {
    for index in damage.indices where damage[index].kind.isDoubtfulCheckpoint { damage[index].kind = .checkpoint }
    for index in recoveredDamage.indices where recoveredDamage[index].kind.isDoubtfulCheckpoint {
      recoveredDamage[index].kind = .checkpoint
    }
  }

  /// The memory that may have had bytes after ``head`` is gone. Each later commit records this.
  package func noteLostMemory() {
    guard !hasLostMemory else { return }
    let lost = SpoolDamage(.lostMemory, fileOffset: MemoryRecord.offset, lostPositions: head..<head)
    damage.append(lost)
    recoveredDamage.append(lost)
  }

  /// The server has acknowledged everything before `position`, so it need not be kept. Never beyond the head.
  package func release(upTo position: UInt64) {
    released = max(released, min(position, head))
    oldest = max(oldest, released)
  }

  /// Drops the oldest bytes to make space, although the server has not stored them. Never beyond the head.
  package func evict(upTo position: UInt64) { oldest = max(oldest, min(position, head)) }

  /// Closes the file. The folder stays locked while others refer to it.
  package func close() { descriptor.close() }

  /// Removes the file from its folder, durably, and closes it.
  ///
  /// - Parameter unlinked: called when the file has lost its name, before this is durable.
  /// - Throws: ``SpoolError``. After an error of the second step, the file is gone, but may reappear after a power
  ///   failure.
  package func remove(unlinked: () -> Void = {}) throws(SpoolError) {
    guard !isReadOnly else { throw SpoolError(.readOnly, path: path) }
    try disk.retrying(path) { () throws(SystemError) in try disk.unlink(path) }
    close()
    unlinked()
    try disk.retrying(path) { () throws(SystemError) in try disk.synchronizeFolder(SpoolFolder.folder(of: path)) }
  }
}

/// The roles of the three checkpoints.
struct CheckpointSlots: Equatable {
  /// The one with the largest number; nil if none is intact.
  var newest: Int?
  /// The newest one that is certainly on the disk.
  var durable: Int?
  /// The number of the newest.
  var sequence: UInt64
  /// A damaged one. It may be the only place of some bytes, so it is overwritten last.
  var damaged: Int?

  /// Where the next one is written: never over the newest, which must survive SIGKILL, nor over the durable one, which
  /// must survive a power failure.
  var next: Int {
    let free = SpoolFormat.checkpointOffsets.indices.filter { $0 != newest && $0 != durable }
    return free.first { $0 != damaged } ?? free.first ?? 0
  }

  mutating func wrote(_ slot: Int) {
    newest = slot
    sequence &+= 1
  }
}
