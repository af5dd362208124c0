// Creates a spool file, completely or not at all.

internal import EventLoops
internal import Glibc

extension SpoolFile {
  /// Creates a stretch's file: first under a hidden name, and under its final one when all of it is on the disk.
  ///
  /// - Parameters:
  ///   - description: at most 15 KiB of UTF-8 for the process that drains the file.
  ///   - capacity: how many bytes of the stream it can keep before older ones must be released or evicted. Rounded up
  ///     to blocks of 4064, at least four. The file uses only the space that its bytes need.
  package static func create(
    in folder: SpoolFolder, description: String, capacity: UInt64
  ) throws(SpoolError) -> SpoolFile {
    try create(in: folder, StretchIdentity(), description: description, capacity: capacity)
  }

  /// The same for a stretch that began before it had a file.
  ///
  /// - Parameter reach: how many positions the ring spans if this is more, so that holes do not cost older bytes. If
  ///   the file system does not take back the space of released bytes, or refuses a file of that size, it spans
  ///   `capacity`.
  package static func create(
    in folder: SpoolFolder, _ identity: StretchIdentity, description: String, capacity: UInt64, reach: UInt64 = 0
  ) throws(SpoolError) -> SpoolFile {
    let disk = folder.disk
    let name = identity.fileName
    let path = "\(folder.path)/\(name)"
    guard description.utf8.count <= SpoolFormat.longestDescription else { throw SpoolError(.tooLong, path: path) }
    try folder.complete()
    let hidden = "\(folder.path)/.\(name)\(SpoolFolder.unfinished)"
    do throws(SpoolError) {
      let new = try SpoolDescriptor(hidden, flags: O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, disk: disk)
      try new.lockStretch()
      let header = SpoolHeader(
        id: identity.id, created: identity.created, blockCount: try reserve(new, capacity: capacity, reach: reach),
        description: description)
      try new.write(beginning(header), at: 0)
      try new.synchronize()
      try disk.retrying(path) { () throws(SystemError) in try disk.rename(hidden, to: path) }
      new.path = path
      try disk.retrying(path) { () throws(SystemError) in try disk.synchronizeFolder(folder.path) }
      let state = RecoveredState(
        slots: CheckpointSlots(newest: 0, durable: 0, sequence: 1), isSealed: false,
        memoryRecord: MemoryRecord(boot: 0))
      return SpoolFile(descriptor: new, header: header, folder: folder, isReadOnly: false, recovered: state)
    } catch {
      // Removes it under either of its two names. The folder's next owner removes a hidden one that remains.
      try? disk.retrying(path) { () throws(SystemError) in try disk.unlink(hidden) }
      try? disk.retrying(path) { () throws(SystemError) in try disk.unlink(path) }
      throw error
    }
  }

  /// Sets the size of a new file. Returns the number of its blocks.
  private static func reserve(
    _ new: SpoolDescriptor, capacity: UInt64, reach: UInt64
  ) throws(SpoolError) -> UInt64 {
    func blockCount(_ byteCount: UInt64) -> UInt64 {
      let blocks = byteCount / SpoolFormat.payload + (byteCount % SpoolFormat.payload == 0 ? 0 : 1)
      return min(max(blocks, SpoolFormat.smallestBlockCount), SpoolFormat.largestBlockCount)
    }
    let (least, most) = (blockCount(capacity), blockCount(reach))
    if most > least, try accepts(most, new) { return most }
    try new.setSize(to: SpoolFile.size(blockCount: least))
    return least
  }

  /// Sets the size of a new file for a ring that is larger than its content. Returns false if it may not be as large.
  private static func accepts(_ blockCount: UInt64, _ new: SpoolDescriptor) throws(SpoolError) -> Bool {
    do throws(SpoolError) {
      try new.setSize(to: SpoolFile.size(blockCount: blockCount))
    } catch {
      // ftruncate(2) has two errors for a size beyond the file system's maximum.
      guard [EFBIG, EINVAL].contains(error.code) else { throw error }
      return false
    }
    do throws(SpoolError) {
      // Where this fails, the file would grow to that size.
      try new.punchHole(at: SpoolFormat.dataStart, byteCount: UInt64(SpoolFormat.blockSize))
      return true
    } catch {
      return false
    }
  }

  /// Everything before the blocks: two headers, one checkpoint, and space for two more. That space is written, so that
  /// a full disk is detected now and not at a later checkpoint. The record shows that nothing is in memory yet.
  private static func beginning(_ header: SpoolHeader) -> [UInt8] {
    func region(_ bytes: [UInt8]) -> [UInt8] {
      bytes + [UInt8](repeating: 0, count: SpoolFormat.regionSize - bytes.count)
    }
    let first = StoredCheckpoint(sequence: 1, checkpoint: SpoolCheckpoint()).encoded(seed: header.seed)
    var head = region(header.encoded())
    head.replaceSubrange(
      SpoolFormat.regionSize - MemoryRecord.size..<SpoolFormat.regionSize,
      with: MemoryRecord(boot: 0).encoded(seed: header.seed))
    return head + region(first) + region([]) + region([]) + region(header.encoded())
  }
}
