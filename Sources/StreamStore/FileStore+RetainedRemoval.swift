// Removes the recordings that `FileStore+Retention.swift` has selected.
//
// Before a recording is removed, it is moved into `.removing/`: first its sidecar, then its gaps, then the recording.
// As long as the recording has its final name, no other one of that name begins. It counts as removed, and is logged,
// once it is moved. If a server is killed before that, the next one moves the rest back.
//
// No other server uses the directory during any of these steps (`unlessEnded`). The search for what an earlier server
// has left runs on another thread, and does not see a removal half done either.

internal import CLinux
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing
internal import Synchronization

extension FileStore {
  private static let removingName = ".removing"

  /// - Parameter madeRoom: whether a recording was already removed because the disk had too little free space.
  func remove(
    _ removals: ArraySlice<RetentionLedger.Removal>, _ retention: RetentionState, madeRoom: Bool = false
  ) {
    worker.executeSlice { [self] in
      guard !isEnded.load(ordering: .acquiring) else { return }
      guard let removal = removals.first else {
        // A disk may free less space than a recording took.
        let more = madeRoom && lackingSpace(retention.rules) > 0 ? dueRemovals(retention) : []
        guard more.isEmpty else { return remove(more[...], retention) }
        retention.isAtWork = false
        return
      }
      // Others may have made space meanwhile.
      let isWanted = removal.cause != .freeSpace || lackingSpace(retention.rules) > 0
      var isRemoved = false
      guard unlessEnded({ isRemoved = isWanted && remove(removal, retention) }) else { return }
      // The removal must be visible in the free space.
      purge { [self, isRemoved] in
        remove(
          removals.dropFirst(), retention, madeRoom: madeRoom || isRemoved && removal.cause == .freeSpace)
      }
    }
  }

  /// Returns false if it was not removed.
  private func remove(_ removal: RetentionLedger.Removal, _ retention: RetentionState) -> Bool {
    let fileBase = removal.recording.fileBase
    let found: (RetentionLedger.Recording, RecordingSidecar)?
    do throws(SystemError) { found = try removable(fileBase, retention) } catch { return false }
    guard let (recording, sidecar) = found, recording.size == removal.recording.size else {
      // It has changed since, and is checked again when it is listed again.
      retention.ledger.remove(fileBase)
      return false
    }
    do throws(SystemError) {
      try moveAway(fileBase, sidecar.file)
    } catch {
      restoreHalfRemoved()
      if retention.refused.insert(fileBase).inserted {
        retention.emit(ServerEvent(.warning, reason: "cannot remove \(sidecar.file): \(error)"))
      }
      return false
    }
    unlink(sidecar)
    retention.ledger.remove(fileBase)
    retention.refused.remove(fileBase)
    var event = ServerEvent(.removed)
    event.stream = sidecar.stream
    event.file = sidecar.file
    event.bytes = recording.size
    event.reason = reason(removal.cause, sidecar, retention.rules)
    retention.emit(event)
    return true
  }

  private func reason(_ cause: RetentionLedger.Cause, _ sidecar: RecordingSidecar, _ rules: RecordingRetention)
    -> String
  {
    switch cause {
    case .age:
      let age = (rules.longestAge ?? .zero).nanoseconds / 1_000_000_000
      return "older than \(age) s: \(sidecar.firstSeen.map { "first seen \($0)" } ?? "ended \(sidecar.ended ?? "")")"
    case .size: return "the oldest of more than \(rules.largestSize ?? 0) bytes of recordings"
    case .freeSpace: return "the oldest one, and the disk has too little free space"
    }
  }

  /// Moves a recording and what belongs to it to where it is removed later: ``purge(_:)``.
  private func moveAway(_ fileBase: String, _ file: String) throws(SystemError) {
    let (sidecar, gaps) = (fileBase + RecordingSidecar.fileExtension, fileBase + ".gaps")
    do throws(SystemError) {
      try makeDirectory(Self.removingName, in: directory)
    } catch {
      guard error.isFull else { throw error }
      return try removeInPlace(fileBase, file)
    }
    let removing = try removingDirectory()
    defer { close(removing) }
    // Without a sidecar, a half-moved recording could not be moved back, so its file is moved first.
    for name in isThere(sidecar) ? [sidecar, gaps, file] : [file, gaps] {
      // What another program has put there stays.
      if name == gaps, try !areOwnGaps(gaps) { continue }
      do throws(SystemError) {
        try retryingInterrupts("move \(name)") { renameat(directory, name, removing, name) }
        retention?.unpurged[name] = nil
      } catch {
        // Most recordings have no gaps.
        if name != gaps || !error.isMissing { throw error }
      }
    }
  }

  /// Removes a recording directly, if there is no space for a directory. This makes space.
  ///
  /// Its other files are hidden until it is gone, which takes no space. A hidden sidecar with digests belongs to no
  /// other operation. ``endRemovalInPlace(of:_:)`` on another thread must not take this for the removal of a server
  /// that was killed, so both are within ``unlessEnded(_:)``.
  private func removeInPlace(_ fileBase: String, _ file: String) throws(SystemError) {
    let gaps = fileBase + ".gaps"
    let companions = [fileBase + RecordingSidecar.fileExtension] + (try areOwnGaps(gaps) ? [gaps] : [])
    let names = companions.map { renameat(directory, $0, directory, ".\($0)") == 0 ? ".\($0)" : $0 }
    do throws(SystemError) {
      try retryingInterrupts("remove \(file)") { unlinkat(directory, file, 0) }
    } catch {
      for (name, hidden) in zip(companions, names).reversed() where name != hidden {
        renameat(directory, hidden, directory, name)
      }
      throw error
    }
    for name in names.reversed() { unlinkat(directory, name, 0) }
  }

  /// Completes the removal of a recording in its place, during which a server was killed. If the recording still
  /// exists, it stays. Call it within ``unlessEnded(_:)``.
  func endRemovalInPlace(of name: StreamName, _ sidecar: RecordingSidecar) {
    let isThere = isThere(sidecar.file)
    if !isThere { unlink(sidecar) }
    for (hidden, shown) in [(name.hiddenGaps, name.gaps), (name.pendingSidecar, name.sidecar)] {
      _ = isThere ? renameat(directory, hidden, directory, shown) : unlinkat(directory, hidden, 0)
    }
  }

  /// What describes a recording that is about to be moved.
  func removedSidecar(of name: StreamName) -> String { "\(Self.removingName)/\(name.sidecar)" }

  private func removingDirectory() throws(SystemError) -> Int32 {
    try files.open("open \(Self.removingName)") {
      openat(directory, Self.removingName, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    }
  }

  /// Moves back the files of a recording that still has its final name. Call it within ``unlessEnded(_:)``.
  func restoreHalfRemoved() {
    guard let removing = try? removingDirectory() else { return }
    defer { close(removing) }
    guard let names = try? DirectoryNames(of: removing) else { return }
    while let moved = try? names.next(Self.retentionSlice), !moved.isEmpty {
      for file in moved {
        guard let base = try? halfRemoved(file, in: removing), file == base + RecordingSidecar.fileExtension else {
          continue
        }
        for name in [base + ".gaps", file] { try? moveUnlessThere(name, in: removing, to: name) }
      }
    }
  }

  /// The name without extension of a file in `.removing/` whose recording still has its final name; nil otherwise.
  ///
  /// - Throws: ``SystemError`` if this is unknown, because the disk does not answer. The file must then stay.
  private func halfRemoved(_ file: String, in removing: Int32) throws(SystemError) -> String? {
    guard let (base, _) = StreamName.parts(ofFile: file[...]),
      let sidecar = try knownSidecar(base + RecordingSidecar.fileExtension, in: removing),
      try knownStatus(sidecar.file, in: removing) == nil,
      try knownStatus(sidecar.file, in: directory).map({ UInt64($0.st_size) }) == sidecar.stored?.bytes
    else { return nil }
    return String(base)
  }

  /// Removes what was moved away, in slices, and then calls `completion`, unless another server may use the directory.
  /// On the worker's thread, and not within ``unlessEnded(_:)``.
  func purge(_ completion: @escaping @Sendable () -> Void) {
    guard let removing = try? removingDirectory() else { return completion() }
    defer { close(removing) }
    guard let names = try? DirectoryNames(of: removing) else { return completion() }
    while let moved = try? names.next(Self.retentionSlice), !moved.isEmpty {
      // A sidecar is removed first. Otherwise it would indicate that its recording still has to be moved.
      for file in moved.sorted(by: { a, b in Self.isSidecar(a) && !Self.isSidecar(b) }) {
        do throws(SystemError) {
          var isOver = false
          let isDone = try unlessEnded { () throws(SystemError) in isOver = try purge(file, in: removing) }
          guard isDone else { return }
          if isOver {
            retention?.unpurged[file] = nil
            continue
          }
          return worker.executeSlice { [self] in
            if !isEnded.load(ordering: .acquiring) { purge(completion) }
          }
        } catch {
          if let retention, retention.unpurged.updateValue(error, forKey: file) != error {
            retention.emit(ServerEvent(.warning, reason: "removed recordings still take room: \(error)"))
          }
        }
      }
    }
    completion()
  }

  /// Removes a file that was moved away. Returns false if a part of a large one is left.
  private func purge(_ file: String, in removing: Int32) throws(SystemError) -> Bool {
    // A file that could not be moved back is all that is known of a recording.
    if try halfRemoved(file, in: removing) != nil { return true }
    // A server may have been killed before it removed the link.
    if Self.isSidecar(file), let sidecar = sidecar(file, in: removing) { unlink(sidecar) }
    return try FileRemoval.remove(file, in: removing)
  }

  private static func isSidecar(_ file: String) -> Bool { file.hasSuffix(RecordingSidecar.fileExtension) }
}
