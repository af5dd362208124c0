// Computes the digests of complete recordings in the background, and gives their sidecars the final names. This is the
// last step of `FileStore+Sidecars.swift`.
//
// If the SHA-256 of the received bytes is known, it is compared with the one of the stored bytes. A recording that was
// damaged before it was complete must not be certified, and nothing may remove the other copies of its bytes.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
package import StreamServing
internal import Synchronization

/// Whether a recording contains the bytes that were received.
package enum RecordingProof: Sendable {
  /// No known digest contradicts it.
  case undisputed
  /// A digest of the received bytes is known, and is not compared yet.
  case pending
  /// The stored bytes differ from the received ones.
  case damaged
  /// It has no sidecar.
  case unknown
}

extension FileStore {
  /// Completes a hidden sidecar of an earlier server. If the recording has its final name, the digests are missing.
  func completeLeftSidecar(_ name: StreamName) {
    var lacksDigests = false
    do throws(SystemError) {
      try unlessEnded { () throws(SystemError) in
        guard try !exists(name.partial), let sidecar = try pendingOfComplete(name) else { return }
        if sidecar.isFinished { return endRemovalInPlace(of: name, sidecar) }
        lacksDigests = try exists(sidecar.file)
        if !lacksDigests { unlinkat(directory, name.pendingSidecar, 0) }
      }
    } catch {
      return finishLater(name, after: error)
    }
    if lacksDigests { completeSidecar(name) } else { settle(name) }
  }

  /// Computes the digests of a complete recording in the background, and gives its sidecar its final name.
  ///
  /// A byte after a large hole makes a recording that takes half a minute to hash, so nobody may wait for the digests
  /// of others. They are computed after all other work, the shortest recording first.
  func completeSidecar(_ name: StreamName) {
    worker.executeSlice { [self] in
      guard !isEnded.load(ordering: .acquiring), let stored = pendingSidecarNowOrLater(name)?.stored
      else { return }
      worker.executeUnhurried(remaining: stored.bytes) { [self] in beginDigests(name) }
    }
  }

  /// Like ``readPending(_:)``, for a recording with its final name, if there is one.
  ///
  /// - Throws: ``SystemError``, also if the recording cannot get its digests because the file cannot be parsed, or is
  ///   not a regular file. An operator must then decide what the recording is.
  private func pendingOfComplete(_ name: StreamName) throws(SystemError) -> RecordingSidecar? {
    if let sidecar = try readPending(name) { return sidecar }
    guard try exists(name.pendingSidecar), try findComplete(name) != nil else { return nil }
    throw SystemError(operation: "parse \(name.pendingSidecar)", code: EBADMSG)
  }

  /// Like ``pendingOfComplete(_:)``, but nil if it cannot be read now. Its recording is then completed later.
  private func pendingSidecarNowOrLater(_ name: StreamName) -> RecordingSidecar? {
    do throws(SystemError) {
      return try pendingOfComplete(name)
    } catch {
      finishLater(name, after: error)
      return nil
    }
  }

  private func beginDigests(_ name: StreamName) {
    guard !isEnded.load(ordering: .acquiring), let sidecar = pendingSidecarNowOrLater(name),
      let stored = sidecar.stored, let (file, size) = openFinished(sidecar.file, name)
    else { return }
    guard size == stored.bytes else {
      // A later attempt succeeds if the operator restores the recording.
      let change = "something else has changed \(sidecar.file) (\(size) bytes instead of \(stored.bytes))"
      return finishLater(name, after: SystemError(operation: change, code: ESTALE), file: sidecar.file)
    }
    guard let reading = FileReading([FileStretch(file, 0..<size)]) else { return }
    readSlice(name, sidecar, reading, RecordingDigests(receivedHead: sidecar.receivedHead, fileLength: size))
  }

  /// Whether the recording that a hidden sidecar describes still exists. A discarded stream may have begun again.
  private func isDescribed(by pending: RecordingSidecar, _ name: StreamName) throws(SystemError) -> Bool {
    // A disk that does not answer has not lost the recording.
    guard isThere(pending.file) else { return false }
    return try readPending(name) == pending
  }

  /// nil if the recording does not exist or cannot be opened now. Its sidecar is then completed later.
  private func openFinished(_ file: String, _ name: StreamName) -> (OpenFile, UInt64)? {
    do throws(SystemError) {
      return try openExisting(file, O_RDONLY)
    } catch {
      finishLater(name, after: error, file: file)
      return nil
    }
  }

  private func readSlice(
    _ name: StreamName, _ sidecar: RecordingSidecar, _ reading: FileReading, _ digests: RecordingDigests
  ) {
    guard !isEnded.load(ordering: .acquiring) else { return }
    do throws(SystemError) {
      _ = try reading.next(RecordingDigests.slice) { digests.update($0.bytes) }
    } catch {
      // Also after ESTALE. The next attempt opens the file again, which helps if only the handle of a file server was
      // stale, and finds out whether something else has changed the recording.
      return finishLater(name, after: error, file: sidecar.file)
    }
    guard reading.isAtEnd else {
      return worker.executeUnhurried(remaining: reading.remaining) { [self] in
        readSlice(name, sidecar, reading, digests)
      }
    }
    var complete = sidecar
    complete.finish(digests.values())
    replacePending(sidecar, by: complete, name)
  }

  /// Replaces the hidden sidecar of a finished recording by the one with the digests. On the worker's thread.
  private func replacePending(_ pending: RecordingSidecar, by complete: RecordingSidecar, _ name: StreamName) {
    var written: RecordingSidecar?
    var isNamed = false
    // If this fails, the hidden file stays, and is completed later or by the next server. That server uses the same
    // temporary name.
    do throws(SystemError) {
      try unlessEnded { () throws(SystemError) in
        guard try isDescribed(by: pending, name) else { return }
        var sidecar = complete
        sidecar.link = link(sidecar, name)
        try writeNew(sidecar, name)
        written = sidecar
        if durability == .none { isNamed = try nameSidecar(sidecar, insteadOf: pending, name) }
      }
    } catch {
      return finishLater(name, after: error, file: pending.file)
    }
    guard let sidecar = written else { return }
    if isNamed { reportFinished(sidecar, name) }
    guard durability != .none else { return }
    let naming: DiskSync.Step = { [self] () throws(SystemError) in
      var isNamed = false
      try unlessEnded { () throws(SystemError) in
        isNamed = try nameSidecar(sidecar, insteadOf: pending, name)
      }
      guard isNamed else { return DiskSync.Touched() }
      reportFinished(sidecar, name)
      return DiskSync.Touched(directory: directory)
    }
    disk.sync(.named(name.newSidecar, in: directory), "fdatasync \(name.newSidecar)", [naming]) { [self] error in
      if let error { finishLater(name, after: error, file: pending.file) }
    }
  }

  /// Gives a written sidecar its name. Returns false if the recording was discarded meanwhile.
  private func nameSidecar(
    _ sidecar: RecordingSidecar, insteadOf pending: RecordingSidecar, _ name: StreamName
  ) throws(SystemError) -> Bool {
    guard try isDescribed(by: pending, name) else {
      settle(name)
      unlink(sidecar)
      unlinkat(directory, name.newSidecar, 0)
      return false
    }
    try nameNewSidecar(of: name)
    unlinkat(directory, name.pendingSidecar, 0)
    settle(name)
    countRetained(name)
    return true
  }

  // MARK: Damage

  /// Reports a finished sidecar, and the damage that it states. On the worker's thread.
  private func reportFinished(_ sidecar: RecordingSidecar, _ name: StreamName) {
    let finished = finishedSidecars.withLock { $0 }
    finished?(name, sidecar.isDamaged ? .damaged : .undisputed)
    guard sidecar.isDamaged else { return }
    var event = ServerEvent(
      .warning,
      reason: "\(sidecar.file) is damaged: its stored bytes differ from the received ones. Its sidecar states the "
        + "SHA-256 of the received bytes. Check the disk, and get the recording from its sender or from a copy.")
    event.file = sidecar.file
    let emit = reports.withLock { $0 }
    emit?(event)
  }

  /// Reports each finished sidecar, until ``unlock()``.
  ///
  /// - Parameter finished: called on any thread.
  package func reportSidecars(to finished: @escaping @Sendable (StreamName, RecordingProof) -> Void) {
    finishedSidecars.withLock { $0 = finished }
  }

  /// Whether a complete recording contains the bytes that were received, as far as its sidecar states it.
  package func proof(of name: StreamName) -> RecordingProof {
    do throws(SystemError) {
      // The hidden one is read first, because the other exists before it is removed.
      if let pending = try readPending(name), !pending.isFinished {
        return pending.received?.sha256 == nil ? .undisputed : .pending
      }
      guard let sidecar = try knownSidecar(name.sidecar, in: directory) else { return .unknown }
      return sidecar.isDamaged ? .damaged : .undisputed
    } catch {
      // The disk may answer later.
      return .pending
    }
  }
}
