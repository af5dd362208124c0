// What a killed server or a power failure leaves of a stream that was just split.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing

/// A recording that an earlier server has split off, and whose file lacks its final name.
private struct LeftSplit {
  var name: StreamName
  /// Ends where its file does.
  var part: RecordingPart
  /// Whether the log promises more bytes than the file contains.
  var isTorn: Bool
}

extension FileStore {
  /// Checks what a killed server or a power failure has left of a stream that was split. Any thread.
  ///
  /// A killed server may not have synced a recording that lacks its final name. So the first check of this server
  /// queues a sync of its file. The worker performs syncs in their order, and remembers what the disk refuses. So a
  /// request that waits for a later sync of the stream waits for these bytes, too, and does not announce them if the
  /// disk has refused them. Nobody appends to such a file as long as its stream continues in another, so one sync is
  /// enough.
  ///
  /// After a power failure, the log may promise bytes that the disk lacks, or that are zeros: ``DiskFiles/SyncedMark``.
  /// The split is undone if the next recording contains no bytes yet. Otherwise this records that the stream is
  /// unreliable.
  ///
  /// - Parameter outlivesLoop: whether another server may use the directory meanwhile. That one then does the rest.
  /// - Returns: whether the caller's log is outdated.
  @discardableResult
  func checkSplits(
    _ name: StreamName, _ log: [RecordingPart], outlivesLoop: Bool = false
  ) throws(SystemError) -> Bool {
    let left = try leftSplits(name, log, outlivesLoop: outlivesLoop)
    for split in left { syncOnce(split) }
    guard left.contains(where: \.isTorn) else { return false }
    // The thread that looks for such recordings may do this at the same time.
    return try tornLock.withLock { (_) throws(SystemError) in
      let log = try parts.lines(of: name.base)
      for split in try leftSplits(name, log, outlivesLoop: outlivesLoop) where split.isTorn {
        if try noteTorn(split, name, log, outlivesLoop: outlivesLoop) { break }
      }
      // Even if the other thread has corrected it: the caller's log is outdated.
      return true
    }
  }

  /// The recordings that earlier servers have split off and that this one does not finish yet, the newest first.
  private func leftSplits(
    _ name: StreamName, _ log: [RecordingPart], outlivesLoop: Bool
  ) throws(SystemError) -> [LeftSplit] {
    guard let growing = log.last, growing.series != nil, growing.number > 1 else { return [] }
    var left: [LeftSplit] = []
    // The recordings get their final names in their order, and only with all of their bytes. A number without a line
    // belongs to a file that is not of this stream.
    for number in Set(log.map(\.number)).filter({ $0 < growing.number }).sorted(by: >) {
      let earlier = name.recording(number)
      guard var part = log.last(where: { $0.number == number }), part.isSplit, let end = part.end,
        splits.withLock({ $0[earlier.fileBase] == nil }), try exists(earlier.partial), try !isForeign(earlier, part),
        let size = try settledSize(of: earlier.partial, outlivesLoop: outlivesLoop)
      else { break }
      part.end = min(end, part.start + (size - min(size, part.headerLength)))
      left.append(LeftSplit(name: earlier, part: part, isTorn: part.end != end))
    }
    return left
  }

  /// Queues a sync of a recording that an earlier server has split off, unless this server has queued one already.
  private func syncOnce(_ split: LeftSplit) {
    let (name, start) = (split.name, split.part.start)
    guard durability != .none, !syncedSplits.withLock({ $0.contains(name.fileBase) }) else { return }
    let file = DiskSync.File.named(name.partial, in: directory)
    disk.sync(file, "fdatasync \(name.partial)", growth: .continuesElsewhere) { [self] error in
      if let error { unlessEnded { noteBroken(name, from: start, error) } }
    }
    // Another thread that finds this entry relies on the sync being in the queue. Two threads may both queue one, which
    // does no harm.
    syncedSplits.withLock { _ = $0.insert(name.fileBase) }
  }

  /// - Returns: whether the split was undone.
  private func noteTorn(
    _ torn: LeftSplit, _ name: StreamName, _ log: [RecordingPart], outlivesLoop: Bool
  ) throws(SystemError) -> Bool {
    let (earlier, part) = (torn.name, torn.part)
    guard let growing = log.last, let end = part.end else { return false }
    let next = name.recording(growing.number)
    let isPrevious = !log.contains { part.number < $0.number && $0.number < growing.number }
    if isPrevious, growing.end == nil,
      try settledSize(of: next.partial, outlivesLoop: outlivesLoop) ?? 0 <= growing.headerLength,
      try findComplete(next) == nil
    {
      try unlessEnded(outlivesLoop: outlivesLoop) { () throws(SystemError) in
        try undoSplit(name, to: GrowthExtent(part: part.number, length: end))
      }
      // The file grows again.
      syncedSplits.withLock { _ = $0.remove(earlier.fileBase) }
      return true
    }
    let isNoted = try unlessEnded(outlivesLoop: outlivesLoop) { () throws(SystemError) in
      try note(GapRecord(offset: end, length: 0, cause: .notSynced), earlier)
      if growing.end == nil { try note(GapRecord(offset: growing.start, length: 0, cause: .notSynced), next) }
      // From now on, the log does not promise more than the disk has. The last line stays the last one.
      try parts.append(part, growing, to: name.base)
    }
    guard isNoted else { return false }
    // These are queued afterwards, because a worker that has no thread syncs immediately.
    for name in [earlier, next] { syncGaps(of: name) }
    syncLog(name)
    return false
  }

  /// The size of a recording without its final name; nil if there is none. Removes the bytes that were not synced
  /// before a power failure.
  private func settledSize(of file: String, outlivesLoop: Bool) throws(SystemError) -> UInt64? {
    guard let (opened, length) = try openExisting(file, Self.growing) else { return nil }
    try unlessEnded(outlivesLoop: outlivesLoop) { () throws(SystemError) in
      _ = try disk.settle(opened, length: length)
    }
    // Another thread may have removed these bytes since the file was opened.
    return try knownStatus(file, in: directory).map { UInt64(max(0, $0.st_size)) }
  }

  /// Whether something that no server has made has the name under which a recording grew that was split off. It is
  /// reported once, and left alone.
  ///
  /// - Parameter part: the line about the recording.
  func isForeign(_ name: StreamName, _ part: RecordingPart) throws(SystemError) -> Bool {
    // The recording may get its final name at any moment. So its own file is gone if it is looked for after that name.
    let finished = try knownStatus(part.file, in: directory)
    if try knownStatus(name.partial, in: directory) != nil {
      guard let finished, UInt64(max(0, finished.st_size)) == part.endLength else { return false }
    } else if try !exists(name.partial) {
      return false
    }
    reportForeign(
      name.partial,
      "\(name.partial) does not belong to its stream, whose recording of that name is complete. The server ignores it. "
        + "Move it to another directory.")
    return true
  }

  /// Removes the file of a next part that a server had begun when it was killed, before the log stated that the stream
  /// continues there. Call it only while the stream cannot be split.
  ///
  /// - Parameters:
  ///   - name: the growing recording.
  ///   - growing: its file.
  func removeLeftBeginning(after name: StreamName, _ growing: OpenFile) throws(SystemError) {
    var next = name.recording(name.part + 1)
    // Only such a stream is split. The extension of a stream from an earlier server may be unknown.
    guard ["", ".wav"].contains(name.finalExtension), try exists(next.partial), let head = wavHead(of: growing)
    else { return }
    // The split has passed over the files that do not belong to the stream.
    while try exists(next.partial), try !removeBeginning(next, of: head.bytes) { next.part += 1 }
  }

  /// Removes the file of a part that contains no more than the header with which the part was to begin, and its
  /// sidecar.
  ///
  /// - Returns: false for any other file, which stays.
  func removeBeginning(_ name: StreamName, of head: [UInt8]) throws(SystemError) -> Bool {
    guard isThere(name.partial), !hasContent(name, beyond: head) else { return false }
    // The file comes last, because the sidecar is found by it.
    for file in [name.newSidecar, name.pendingSidecar, name.partial] {
      _ = try FileRemoval.remove(file, in: directory)
    }
    accounts?.remove(name)
    return true
  }

  /// The header with which the growing recording of a stream begins, if the recording before it was split and is there.
  /// Nil if not, or if the growing one is closed.
  func splitHead(_ name: StreamName, _ log: [RecordingPart]) -> [UInt8]? {
    guard let growing = log.last, growing.end == nil, growing.series != nil,
      let split = log.last(where: { $0.number < growing.number && $0.isSplit && $0.end == growing.start }),
      UInt64(split.head.count) == growing.headerLength
    else { return nil }
    return isThere(name.recording(split.number).partial) || isThere(split.file) ? split.head : nil
  }

  /// Makes the file of the growing recording again, which a power failure has destroyed before it contained a byte. Nil
  /// if the recording before it was not split.
  func beginAgain(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> StreamFile? {
    guard let head = splitHead(name, log), let last = log.last else { return nil }
    let name = name.withExtension(last.finalExtension)
    try clearCompanions(of: name)
    let file = try create(name)
    try writeBeginning(head, file, name)
    return try StreamFile(self, name, file, part: last, size: UInt64(head.count))
  }
}
