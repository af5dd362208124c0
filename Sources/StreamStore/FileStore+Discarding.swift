// What is discarded of a stream: the recording that grows, and those that the stream was divided into before.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing
internal import Synchronization

extension FileStore {
  /// Removes what has come of a stream since it began, or since a recording of it was closed before its end. What was
  /// closed stays, and so does a stream that is complete.
  ///
  /// - Returns: false if the disk did not let the growing recording be found or removed. It stays then, and so does what
  ///   is known of it.
  @discardableResult
  func remove(_ name: StreamName) -> Bool {
    guard let log = try? parts.lines(of: name.base) else { return false }
    var name = name
    name.part = log.last?.number ?? 1
    var status = stat()
    if fstatat(directory, name.partial, &status, AT_SYMLINK_NOFOLLOW) != 0 {
      // A server that was killed while it removed a stream may have left what belonged to it.
      guard errno == ENOENT else { return false }
      guard log.last?.end == nil else { return true }
      // Nobody knows after an error: then it stays.
      do { guard try recordings.find(name) == nil else { return true } } catch { return false }
    }
    let closed = log.closedParts
    let first = (closed.keys.filter { $0 < name.part }.max() ?? 0) + 1
    if first < name.part, var growing = log.last {
      // A server that comes after this one must not call the rest of the stream complete. The line is not synced,
      // because the loop must not wait for the disk. It guards against a kill. After a power cut it is there if the file system
      // keeps the order of renames and removals, as ext4 does.
      growing.isDiscarded = true
      try? parts.rewrite(log + [growing], of: name.base, isSynced: false)
    }
    // The growing one last: until then a server that comes after this one finds that there is something to remove.
    discardSplits(of: name, first..<name.part, log)
    do throws(SystemError) {
      try retryingInterrupts("unlink \(name.partial)") { unlinkat(directory, name.partial, 0) }
    } catch {
      guard error.isMissing else { return false }
    }
    for file in [name.gaps, name.pendingSidecar] { unlinkat(directory, file, 0) }
    accounts?.remove(name)
    brokenSplits.withLock { $0[name.base] = nil }
    let rest = log.filter { $0.number < first }
    guard !closed.isEmpty, !rest.isEmpty else {
      parts.forget(name.base)
      owners.forget(name)
      return true
    }
    // If the disk refuses it, the stream continues in a part of a higher number.
    try? parts.rewrite(rest, of: name.base, isSynced: durability != .none)
    return true
  }

  /// All lines about a stream, the newest last, after the removal is finished in which an earlier server was killed.
  func lines(of name: StreamName) throws(SystemError) -> [RecordingPart] {
    let log = try parts.lines(of: name.base)
    guard log.last?.isDiscarded == true else { return log }
    remove(name)
    let rest = try parts.lines(of: name.base)
    // A line that stays would remove what comes next.
    if rest.last?.isDiscarded == true {
      throw SystemError(operation: "write \(StreamParts.path(name.base))", code: ENOSPC)
    }
    return rest
  }

  /// - Parameter numbers: of the recordings between the last one that was closed and the one that grows.
  private func discardSplits(of name: StreamName, _ numbers: Range<Int>, _ log: [RecordingPart]) {
    guard !numbers.isEmpty else { return }
    let finalExtension = log.last?.finalExtension ?? name.finalExtension
    var discarded: [StreamName] = []
    for number in numbers {
      var split = name.withExtension(finalExtension)
      split.part = number
      if isSplit(split, log.last { $0.number == number }) {
        discard(split)
        discarded.append(split)
      }
    }
    worker.executeSlice { [self, discarded] in
      guard !isEnded.load(ordering: .acquiring) else { return }
      // The worker may have been about to describe them.
      for split in discarded where !isThere(split.final) {
        guard let sidecar = sidecar(split.sidecar) else { continue }
        unlink(sidecar)
        unlinkat(directory, split.sidecar, 0)
      }
      purge {}
    }
  }

  /// Whether a recording is one that the stream was divided into. The log forgets those that were finished long ago, but
  /// their sidecars tell.
  private func isSplit(_ name: StreamName, _ line: RecordingPart?) -> Bool {
    if let line { return line.isSplit }
    return (sidecar(name.sidecar) ?? pendingSidecar(name))?.state == .split
  }

  private func discard(_ name: StreamName) {
    splits.withLock { $0.removeValue(forKey: name.fileBase) }?.discard()
    if unlinkat(directory, name.partial, 0) == 0 {
      unlinkat(directory, name.gaps, 0)
    } else {
      if let sidecar = sidecar(name.sidecar) { unlink(sidecar) }
      // Somebody may have moved it away. What cannot be moved stays.
      try? moveAway(name.fileBase, name.final)
    }
    unlinkat(directory, name.pendingSidecar, 0)
  }
}

extension [RecordingPart] {
  /// The recordings that were closed before their streams had ended, by their numbers. The last line about one says how
  /// it stands.
  var closedParts: [Int: RecordingPart] {
    var closed: [Int: RecordingPart] = [:]
    for part in self { closed[part.number] = part.end == nil || part.isSplit ? nil : part }
    return closed
  }
}
