// What a killed server or a power failure leaves of a stream that was just split.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing

extension FileStore {
  /// Checks what a killed server or a power failure has left of a stream that was split. Any thread.
  ///
  /// The bytes of a recording that has not got its final name may not be on the disk, so whoever waits for a sync of the
  /// stream waits for them, too. The log may have reached the disk before them. If the disk lacks some of them, the
  /// split is undone if the next recording has no bytes yet. Otherwise this records that the stream cannot be relied on.
  ///
  /// - Returns: whether the log has changed.
  @discardableResult
  func checkSplits(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> Bool {
    guard try !tornParts(name, log).isEmpty else { return false }
    // The thread that looks for such recordings may do this at the same time.
    return try tornLock.withLock { (_) throws(SystemError) in
      let log = try parts.lines(of: name.base)
      let torn = try tornParts(name, log)
      for part in torn where try noteTorn(part, name, log) { break }
      return !torn.isEmpty
    }
  }

  /// The recordings that earlier servers have split off and whose files lack bytes. Each ends where its file does.
  private func tornParts(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> [RecordingPart] {
    guard let growing = log.last, growing.series != nil, growing.number > 1 else { return [] }
    var torn: [RecordingPart] = []
    // The recordings get their final names in their order, and only with all of their bytes.
    for number in stride(from: growing.number - 1, through: 1, by: -1) {
      var earlier = name
      earlier.part = number
      guard var part = log.last(where: { $0.number == number }), part.isSplit, let end = part.end,
        splits.withLock({ $0[earlier.fileBase] == nil }), let size = try fileSize(of: earlier.partial)
      else { break }
      part.end = min(end, part.start + (size - min(size, part.headerLength)))
      if part.end != end {
        torn.append(part)
      } else if durability != .none {
        disk.sync(.named(earlier.partial, in: directory), "fdatasync \(earlier.partial)") { [refusals, earlier] error in
          if let error { refusals.add(error, earlier) }
        }
      }
    }
    return torn
  }

  /// - Parameter part: ends where its file does.
  /// - Returns: whether the split was undone.
  private func noteTorn(
    _ part: RecordingPart, _ name: StreamName, _ log: [RecordingPart]
  ) throws(SystemError) -> Bool {
    guard let growing = log.last, let end = part.end else { return false }
    var (earlier, next) = (name, name)
    (earlier.part, next.part) = (part.number, growing.number)
    if part.number == growing.number - 1, growing.end == nil,
      try fileSize(of: next.partial) ?? 0 <= growing.headerLength, try findComplete(next) == nil
    {
      try undoSplit(name, to: GrowthExtent(part: part.number, length: end))
      return true
    }
    try note(GapRecord(offset: end, length: 0, cause: .notSynced), earlier)
    if growing.end == nil { try note(GapRecord(offset: growing.start, length: 0, cause: .notSynced), next) }
    // From now on, the log does not promise more than the disk has. The last line stays the last one.
    try parts.append(part, growing, to: name.base)
    for name in [earlier, next] { syncGaps(of: name) }
    syncLog(name)
    return false
  }

  /// The size of a file in the directory; nil if there is none.
  private func fileSize(of file: String) throws(SystemError) -> UInt64? {
    var status = stat()
    do throws(SystemError) {
      try retryingInterrupts("look at \(file)") { fstatat(directory, file, &status, AT_SYMLINK_NOFOLLOW) }
      return UInt64(max(0, status.st_size))
    } catch {
      if error.isMissing { return nil }
      throw error
    }
  }

  /// The header with which the growing recording of a stream begins, if the recording before it was split and is there.
  /// Nil if not, or if the growing one is closed.
  func splitHead(_ name: StreamName, _ log: [RecordingPart]) -> [UInt8]? {
    guard let growing = log.last, growing.end == nil, growing.series != nil,
      let split = log.last(where: { $0.number < growing.number && $0.isSplit && $0.end == growing.start }),
      UInt64(split.head.count) == growing.headerLength
    else { return nil }
    var name = name
    name.part = split.number
    return isThere(name.partial) || isThere(split.file) ? split.head : nil
  }

  /// Makes the file of the growing recording again, which a power failure has destroyed before it had a byte. Nil if
  /// the recording before it was not split.
  func beginAgain(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> StreamFile? {
    guard let head = splitHead(name, log), let last = log.last else { return nil }
    let name = name.withExtension(last.finalExtension)
    let file = try create(name)
    unlinkat(directory, name.gaps, 0)
    try writeBeginning(head, file, name)
    return try StreamFile(self, name, file, part: last, size: UInt64(head.count))
  }
}
