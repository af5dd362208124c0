// One stretch of a stream on disk.

internal import EventLoops

/// What one process captured without interruption, in a file that survives the process and the power.
///
/// The file is a ring of blocks with two alternating checkpoints. `docs/spool-format.md` describes it. Bytes are
/// addressed by *position*, counted from the first byte of the stretch.
///
/// - ``append(_:at:time:)`` adds bytes at the head, ``commit(state:pausedByteCount:pauses:isFinished:sync:)`` makes
///   them survive SIGKILL, and the power too when it synchronizes. ``synchronizeBlocks()`` does so with fewer writes.
/// - ``release(upTo:)`` and ``evict(upTo:)`` make room at the other end.
/// - ``read(at:into:)`` returns bytes that are as they were written, and names those that are missing.
///
/// A failed call changes nothing that a later call or a recovery relies on: it can be repeated, or others can be made.
/// One thread at a time uses a file. It closes itself when dropped.
package final class SpoolFile: @unchecked Sendable {
  // Unchecked: the owner hands it from thread to thread, and uses it on one at a time.

  /// The file's path.
  package let path: String
  let descriptor: SpoolDescriptor
  let disk: any SpoolDisk
  let header: SpoolHeader
  let seed: UInt32
  /// Keeps the folder locked.
  let folder: SpoolFolder?
  let isReadOnly: Bool
  /// Whether the process that captured is gone, or the stream at its end.
  var isSealed: Bool

  /// The position behind the last byte.
  package internal(set) var head: UInt64
  /// The server has acknowledged everything before it.
  package internal(set) var released: UInt64
  /// Everything before it is released or evicted.
  package internal(set) var oldest: UInt64
  /// What the last commit wrote, or what was recovered.
  package internal(set) var checkpoint: SpoolCheckpoint
  /// What was found to be wrong since the file was opened: by the recovery, by reads, and after a failed
  /// synchronization.
  package internal(set) var damage: [SpoolDamage]
  /// Whether the checkpoint that was recovered says that nothing follows.
  let hadSealedCheckpoint: Bool
  /// What the recovery found.
  let recoveredDamage: [SpoolDamage]

  var tail: SpoolTail
  var slots: CheckpointSlots
  /// The first block that a failed synchronization may have lost.
  var unsyncedBlock: UInt64
  var hasFailedSync = false
  /// The head's block at the last good synchronization, of which the durable checkpoint has a copy.
  var durableTail = SpoolTail(index: 0)
  /// Blocks before it were given back.
  var returnedBlock: UInt64 = 0
  var canPunchHoles = true
  /// Blocks before it have room in the file system, or were refused it.
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
    hadSealedCheckpoint = recovered.hasSealedCheckpoint
    tail = recovered.tail
    slots = recovered.slots
    unsyncedBlock = recovered.unsyncedBlock
    reader = BlockReader(descriptor, header)
    reader.substitutes = recovered.substitutes
  }

  /// 1 MiB of memory for the blocks that a step reads or writes.
  var scratch: UnsafeMutableRawBufferPointer { reader.scratch }

  /// 16 random bytes.
  package var id: [UInt8] { header.id }
  /// The file's name in its folder.
  package var name: String { path.split(separator: "/").last.map(String.init) ?? path }
  /// When the file was created, by the wall clock, in milliseconds since 1970.
  package var created: Int64 { header.created }
  /// The text that it was created with.
  package var description: String { header.description }
  /// How many bytes fit, at most.
  package var capacity: UInt64 { header.blockCount * SpoolFormat.payload }
  /// How many bytes the file takes on disk.
  package var diskByteCount: UInt64 {
    get throws(SpoolError) { try descriptor.status().diskByteCount }
  }
  /// Whether somebody has removed the file, so that no later process finds it.
  package var isRemoved: Bool { (try? descriptor.status())?.hasName == false }

  /// The server has acknowledged everything before `position`: it need not be kept. Never beyond the head.
  package func release(upTo position: UInt64) {
    released = max(released, min(position, head))
    oldest = max(oldest, released)
  }

  /// The oldest bytes make room, although the server does not have them. Never beyond the head.
  package func evict(upTo position: UInt64) { oldest = max(oldest, min(position, head)) }

  /// Closes the file. The folder stays locked while others refer to it.
  package func close() { descriptor.close() }

  /// Removes the file from its folder, durably, and closes it.
  ///
  /// - Throws: ``SpoolError``. After an error of the second step, the file is gone, but may be back after a power cut.
  package func remove() throws(SpoolError) {
    guard !isReadOnly else { throw SpoolError(.readOnly, path: path) }
    try disk.retrying(path) { () throws(SystemError) in try disk.unlink(path) }
    close()
    try disk.retrying(path) { () throws(SystemError) in try disk.synchronizeFolder(SpoolFolder.folder(of: path)) }
  }
}

/// Which of the three checkpoints are which.
struct CheckpointSlots: Equatable {
  /// The one with the largest number; nil if none is intact.
  var newest: Int?
  /// The newest one that is on the disk for sure.
  var durable: Int?
  /// The number of the newest.
  var sequence: UInt64

  /// Where the next one goes: never on the newest, which SIGKILL must leave, nor on the durable one, which the power
  /// must.
  var next: Int { (0..<SpoolFormat.checkpointOffsets.count).first { $0 != newest && $0 != durable } ?? 0 }

  mutating func wrote(_ slot: Int) {
    newest = slot
    sequence &+= 1
  }
}
