// Removes the files of a discarded stream: the growing recording, and those into which the stream was split before.
//
// The worker removes the files in slices, because a stream may have any number of them, and a disk needs time for a
// large one. Until the last one is removed, the stream cannot be opened. If that takes more than one slice, or if the
// disk refuses it, a line in the log of the stream records that the stream is discarded. The next server finds this
// line, and completes the removal.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing
internal import Synchronization

/// A stream whose files are being removed. On the worker's thread only.
private final class DiscardedFiles: @unchecked Sendable {
  /// The name of the recording that grows.
  let name: StreamName
  let log: [RecordingPart]
  /// The number of the recording that is removed next. The growing one is the last.
  var next: Int
  /// Whether the log states that the stream is discarded.
  var isMarked: Bool
  /// The error of the first file that the disk did not remove.
  var error: SystemError?
  let ended: @Sendable (SystemError?) -> Void

  init(_ name: StreamName, _ log: [RecordingPart], _ ended: @escaping @Sendable (SystemError?) -> Void) {
    self.name = name.withExtension(log.last.map(\.finalExtension) ?? name.finalExtension).lastRecording(log)
    (self.log, self.ended) = (log, ended)
    next = log.firstDiscarded
    isMarked = log.last?.isDiscarded ?? false
  }
}

extension SystemError {
  /// The stream cannot be opened before its files are removed.
  static let isBeingRemoved = SystemError(operation: "open a stream that is being removed", code: EAGAIN)
}

extension FileStore {
  /// How long one slice may take. Requests that wait for a sync wait for it.
  private static let removalSlice = Duration.milliseconds(5)

  // MARK: Any thread

  /// Removes all recordings of a stream since its beginning, or since a recording of it was closed before its end.
  /// Closed recordings stay, and so does a complete stream.
  ///
  /// - Parameter ended: called on the worker's thread, with the error if the disk refuses the removal. The stream
  ///   cannot be opened until this is called again, and succeeds.
  func remove(_ name: StreamName, _ ended: @escaping @Sendable (SystemError?) -> Void) {
    removals.withLock { _ = $0.insert(name.base) }
    worker.executeSlice { [self] in
      inSlice {
        do throws(SystemError) {
          let files = DiscardedFiles(name, try parts.lines(of: name.base), ended)
          guard try isRemovable(files) else { return endRemoval(files) }
          try removeFirst(files)
        } catch {
          ended(error)
        }
      }
    }
  }

  /// Whether files of the stream are still to be removed.
  func isBeingRemoved(_ name: StreamName, _ log: [RecordingPart]) -> Bool {
    log.last?.isDiscarded == true || removals.withLock { $0.contains(name.base) }
  }

  /// All lines about a stream, the newest last.
  ///
  /// - Throws: ``SystemError``, ``SystemError/isBeingRemoved`` if its files are still to be removed.
  func lines(of name: StreamName) throws(SystemError) -> [RecordingPart] {
    let log = try parts.lines(of: name.base)
    if isBeingRemoved(name, log) { throw .isBeingRemoved }
    return log
  }

  // MARK: On the worker's thread

  /// Does a slice of the work, unless another server may have the directory.
  private func inSlice(_ body: () -> Void) { unlessEnded(body) }

  /// Whether the stream is neither complete nor closed.
  private func isRemovable(_ files: DiscardedFiles) throws(SystemError) -> Bool {
    if files.isMarked { return true }
    var status = stat()
    do throws(SystemError) {
      try retryingInterrupts("look at \(files.name.partial)") {
        fstatat(directory, files.name.partial, &status, AT_SYMLINK_NOFOLLOW)
      }
      return true
    } catch {
      // A server that was killed while it removed a stream may have left what belonged to it.
      guard error.isMissing else { throw error }
      guard files.log.last?.end == nil else { return false }
      return try recordings.find(files.name) == nil
    }
  }

  private func removeFirst(_ files: DiscardedFiles) throws(SystemError) {
    // The other recordings of the stream must not be finished any more.
    let left = splits.withLock { splits in
      splits.filter { $0.key == files.name.base || $0.key.hasPrefix("\(files.name.base)~") }.map(\.value)
    }
    for split in left { split.discard() }
    // If this fails, an empty recording is left.
    if let (growing, _) = try? openExisting(files.name.partial, O_RDONLY) {
      try? removeLeftBeginning(after: files.name, growing)
    }
    guard
      files.next < files.name.part || !files.log.closedParts.isEmpty
        || FileRemoval.isLong(files.name.partial, in: directory)
    else { return removeSlice(files) }
    do throws(SystemError) {
      try mark(files)
    } catch {
      guard error.isFull else { throw error }
      // Without the growing recording, a full disk has space. The next server announces no byte of the other ones.
      _ = try FileRemoval.remove(files.name.partial, in: directory)
      try mark(files)
    }
    // The line is synced first. After a power failure, either the line is there, or all files are.
    worker.executeSlice { [self] in inSlice { removeSlice(files) } }
  }

  /// Records that the stream is discarded.
  private func mark(_ files: DiscardedFiles) throws(SystemError) {
    guard !files.isMarked else { return }
    var line = files.log.last ?? RecordingPart(file: files.name.final)
    line.isDiscarded = true
    try parts.append(line, to: files.name.base)
    files.isMarked = true
    syncLog(files.name)
  }

  private func removeSlice(_ files: DiscardedFiles) {
    let end = MonotonicInstant.now + Self.removalSlice
    while files.next < files.name.part, MonotonicInstant.now < end {
      do throws(SystemError) {
        guard try removeSplit(files) else { break }
      } catch {
        // The other files occupy space, too.
        files.error = files.error ?? error
      }
      files.next += 1
    }
    if files.next == files.name.part {
      // If the other files are not all removed, the growing one shows the next server that the removal is incomplete.
      if files.error != nil { return endRemoval(files) }
      do throws(SystemError) {
        if try removeLast(files) { return endRemoval(files) }
      } catch {
        files.error = error
        return endRemoval(files)
      }
    }
    worker.executeSlice { [self] in inSlice { removeSlice(files) } }
  }

  private func endRemoval(_ files: DiscardedFiles) {
    if files.error == nil {
      removals.withLock { _ = $0.remove(files.name.base) }
    } else {
      // If this server does not remove the rest, the next one does.
      try? mark(files)
    }
    files.ended(files.error)
  }

  /// Removes a recording into which the stream was split. Returns false if a part of a large file is left.
  private func removeSplit(_ files: DiscardedFiles) throws(SystemError) -> Bool {
    let name = files.name.recording(files.next)
    let line = files.log.last { $0.number == name.part }
    guard try isSplit(name, line) else { return true }
    splits.withLock { $0.removeValue(forKey: name.fileBase) }?.discard()
    if let sidecar = try knownSidecar(name.sidecar, in: directory) { unlink(sidecar) }
    // The log keeps the line about a recording without its final name.
    if let line, try !isForeign(name, line) {
      guard try FileRemoval.remove(name.partial, in: directory) else { return false }
    }
    guard try FileRemoval.remove(name.final, in: directory) else { return false }
    try removeGaps(of: name)
    // The sidecar comes last, because the recording is found by it.
    for file in [name.newSidecar, name.pendingSidecar, name.sidecar] {
      _ = try FileRemoval.remove(file, in: directory)
    }
    accounts?.remove(name)
    return true
  }

  /// Whether a recording is one into which the stream was split. If it was finished long ago, the log has no line about
  /// it any more, but its sidecar has this state.
  ///
  /// - Throws: ``SystemError`` if this is unknown, because the disk does not read its sidecar. It must not stay then.
  private func isSplit(_ name: StreamName, _ line: RecordingPart?) throws(SystemError) -> Bool {
    if let line { return line.isSplit }
    let pending = try knownSidecar(name.pendingSidecar, in: directory)
    if let pending { return pending.state == .split }
    return try knownSidecar(name.sidecar, in: directory)?.state == .split
  }

  /// Removes the growing recording, and then the records of the stream. Returns false if a part of a large file is
  /// left.
  private func removeLast(_ files: DiscardedFiles) throws(SystemError) -> Bool {
    guard try removeGrowing(files.name) else { return false }
    let rest = files.log.closedParts.isEmpty ? [] : files.log.filter { $0.number < files.log.firstDiscarded }
    if rest.isEmpty {
      try parts.forget(files.name.base)
      owners.forget(files.name)
    } else {
      try parts.rewrite(rest, of: files.name.base, isSynced: durability != .none)
    }
    return true
  }

  /// Removes the growing recording. Returns false if a part of a large file is left. Bytes on
  /// the disk count against the quotas.
  func removeGrowing(_ name: StreamName) throws(SystemError) -> Bool {
    guard try FileRemoval.remove(name.partial, in: directory) else { return false }
    accounts?.remove(name)
    try removeGaps(of: name)
    for file in [name.newSidecar, name.pendingSidecar] { _ = try FileRemoval.remove(file, in: directory) }
    refusals.forgetAll(name)
    return true
  }
}

extension [RecordingPart] {
  /// The recordings that were closed before their streams ended, by their numbers.
  var closedParts: [Int: RecordingPart] { current.filter { $0.value.end != nil && !$0.value.isSplit } }

  /// The number of the first recording that is removed with the stream: the beginning of its series. Recordings that
  /// were closed before it are kept.
  var firstDiscarded: Int { last { $0.series == nil }?.number ?? 1 }
}
