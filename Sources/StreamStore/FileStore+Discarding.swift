// What is discarded of a stream: the recording that grows, and those that the stream was divided into before.
//
// A stream may have been divided into any number of recordings. So the loop only writes into the stream's log that it
// is discarded. The files go in slices on the worker's thread, where also sidecars get their names. Until the last one
// is gone the stream cannot be opened. A server that comes after a kill finds the line, and finishes the removal.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing
internal import Synchronization

/// What became of the removal of a recording.
package enum StreamRemoval {
  /// It stays, because it is not what was asked for, or because the disk did not let it be found or removed.
  case refused
  case done
  /// The stream cannot be opened until it is over.
  case underWay
}

/// A stream whose files are being removed. On the worker's thread only.
private final class DiscardedFiles: @unchecked Sendable {
  /// The name of the recording that grows.
  var name: StreamName
  let log: [RecordingPart]
  /// Of the recordings that the stream was divided into: the next one to be removed.
  var next: Int

  init(_ name: StreamName, _ log: [RecordingPart]) {
    self.name = name.withExtension(log.last.map(\.finalExtension) ?? name.finalExtension)
    self.name.part = log.last?.number ?? 1
    self.log = log
    next = log.firstDiscarded
  }
}

extension FileStore {
  /// How many recordings are removed in one slice: some milliseconds.
  private static let discardedAtOnce = 50

  // MARK: Beginning

  /// Removes what has come of a stream since it began, or since a recording of it was closed before its end. What was
  /// closed stays, and so does a stream that is complete.
  ///
  /// - Parameter removed: called when a removal that is under way is over. Any thread.
  func remove(_ name: StreamName, _ removed: @escaping @Sendable () -> Void) -> StreamRemoval {
    guard let log = try? parts.lines(of: name.base) else { return .refused }
    if isBeingRemoved(name, log) { return continueRemoval(name, removed) }
    var name = name
    name.part = log.last?.number ?? 1
    var status = stat()
    if fstatat(directory, name.partial, &status, AT_SYMLINK_NOFOLLOW) != 0 {
      // A server that was killed while it removed a stream may have left what belonged to it.
      guard errno == ENOENT else { return .refused }
      guard log.last?.end == nil else { return .done }
      // Nobody knows after an error: then it stays.
      do { guard try recordings.find(name) == nil else { return .done } } catch { return .refused }
    }
    guard var growing = log.last, log.firstDiscarded < name.part || !log.closedParts.isEmpty else {
      guard removeGrowing(name) else { return .refused }
      parts.forget(name.base)
      owners.forget(name)
      return .done
    }
    discardSplits(of: name)
    growing.isDiscarded = true
    do throws(SystemError) {
      try parts.append(growing, to: name.base)
      return continueRemoval(name, removed)
    } catch {
      // A disk that is full gets room by the removal.
      return continueRemoval(name, log: log, removed)
    }
  }

  /// None of the recordings that the stream was divided into is finished any more.
  private func discardSplits(of name: StreamName) {
    let left = splits.withLock { splits in
      splits.filter { $0.key == name.base || $0.key.hasPrefix("\(name.base)~") }.map(\.value)
    }
    for split in left { split.discard() }
  }

  /// Whether files of the stream are still to be removed.
  func isBeingRemoved(_ name: StreamName, _ log: [RecordingPart]) -> Bool {
    log.last?.isDiscarded == true || removals.withLock { $0[name.base] != nil }
  }

  /// All lines about a stream, the newest last.
  ///
  /// - Throws: ``SystemError``, `EAGAIN` if its files are still to be removed. That goes on then.
  func lines(of name: StreamName) throws(SystemError) -> [RecordingPart] {
    let log = try parts.lines(of: name.base)
    guard isBeingRemoved(name, log) else { return log }
    _ = continueRemoval(name) {}
    throw SystemError(operation: "open a stream that is being removed", code: EAGAIN)
  }

  /// - Parameter log: what the stream's log says, if it lacks the line that the stream is discarded.
  func continueRemoval(
    _ name: StreamName, log: [RecordingPart]? = nil, _ removed: @escaping @Sendable () -> Void
  ) -> StreamRemoval {
    let isFirst = removals.withLock { removals in
      defer { removals[name.base, default: []].append(removed) }
      return removals[name.base] == nil
    }
    guard isFirst else { return .underWay }
    // After a power cut the line is there, or all files are.
    let line = StreamParts.path(name.base)
    if log == nil, durability != .none { disk.sync(.named(line, in: directory), "fdatasync \(line)") { _ in } }
    worker.executeSlice { [self] in
      // Whoever asked may have read it before an earlier removal was over.
      guard let log = log ?? (try? parts.lines(of: name.base)).flatMap({ $0.last?.isDiscarded == true ? $0 : nil })
      else { return endRemoval(name) }
      removeSlice(DiscardedFiles(name, log))
    }
    return .underWay
  }

  // MARK: On the worker's thread

  private func removeSlice(_ files: DiscardedFiles) {
    let end = min(files.next + Self.discardedAtOnce, files.name.part)
    let isPermitted = unlessEnded {
      var split = files.name
      for number in files.next..<end {
        split.part = number
        if isSplit(split, files.log.last { $0.number == number }) { discard(split) }
      }
      files.next = end
      if end == files.name.part { removeLast(files) }
    }
    guard isPermitted else { return }
    purge { [self] in
      if end < files.name.part { worker.executeSlice { [self] in removeSlice(files) } } else { endRemoval(files.name) }
    }
  }

  /// The growing recording goes last, and then the line.
  private func removeLast(_ files: DiscardedFiles) {
    let name = files.name
    // If the disk refuses this, the line stays. The next request for the stream, or the next start, continues.
    guard removeGrowing(name) else { return }
    let rest = files.log.filter { $0.number < files.log.firstDiscarded }
    guard !files.log.closedParts.isEmpty, !rest.isEmpty else {
      parts.forget(name.base)
      return owners.forget(name)
    }
    // If the disk refuses it, the stream cannot be opened until it does not.
    try? parts.rewrite(rest, of: name.base, isSynced: durability != .none)
  }

  private func endRemoval(_ name: StreamName) {
    for removed in removals.withLock({ $0.removeValue(forKey: name.base) }) ?? [] { removed() }
  }

  /// False if the disk did not let it be removed. It stays then, and so does what is known of it.
  private func removeGrowing(_ name: StreamName) -> Bool {
    do throws(SystemError) {
      try retryingInterrupts("unlink \(name.partial)") { unlinkat(directory, name.partial, 0) }
    } catch {
      guard error.isMissing else { return false }
    }
    for file in [name.gaps, name.pendingSidecar] { unlinkat(directory, file, 0) }
    accounts?.remove(name)
    brokenSplits.withLock { $0[name.base] = nil }
    return true
  }

  /// Whether a recording is one that the stream was divided into. The log forgets those that were finished long ago, but
  /// their sidecars tell.
  private func isSplit(_ name: StreamName, _ line: RecordingPart?) -> Bool {
    if let line { return line.isSplit }
    // A server that was killed may have moved the sidecar, and not yet the recording.
    return (pendingSidecar(name) ?? sidecar(name.sidecar) ?? sidecar(removedSidecar(of: name)))?.state == .split
  }

  private func discard(_ name: StreamName) {
    splits.withLock { $0.removeValue(forKey: name.fileBase) }?.discard()
    unlinkat(directory, name.partial, 0)
    if let sidecar = sidecar(name.sidecar) { unlink(sidecar) }
    // Somebody may have moved it away. What cannot be moved stays.
    try? moveAway(name.fileBase, name.final)
    if !isThere(name.final) { for file in [name.gaps, name.sidecar] { unlinkat(directory, file, 0) } }
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

  /// The number of the first recording that goes when the stream is discarded: those stay that were closed before.
  var firstDiscarded: Int {
    let last = last?.number ?? 1
    return Swift.min(last, (closedParts.keys.filter { $0 < last }.max() ?? 0) + 1)
  }
}
