// Computes the digests of complete recordings in the background, and gives their sidecars the final names. This is the
// last step of `FileStore+Sidecars.swift`.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing
internal import Synchronization

extension FileStore {
  /// Completes a hidden sidecar of an earlier server. If the recording has its final name, the digests are missing.
  func completeLeftSidecar(_ name: StreamName) {
    var lacksDigests = false
    do throws(SystemError) {
      try unlessEnded { () throws(SystemError) in
        guard try !exists(name.partial), let sidecar = try readPending(name) else { return }
        if sidecar.stored?.sha256 != nil { return endRemovalInPlace(of: name, sidecar) }
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

  /// Like ``readPending(_:)``, but nil if it cannot be read now. Its recording is then completed later.
  private func pendingSidecarNowOrLater(_ name: StreamName) -> RecordingSidecar? {
    do throws(SystemError) {
      return try readPending(name)
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
    readSlice(name, sidecar, reading, RecordingDigests(receivedHead: sidecar.receivedHead))
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
      _ = try reading.next(RecordingDigests.slice, digests.update)
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
    let (received, stored) = digests.values()
    var complete = sidecar
    complete.received?.sha256 = received.hexadecimal
    complete.stored?.sha256 = stored.hexadecimal
    replacePending(sidecar, by: complete, name)
  }

  /// Replaces the hidden sidecar of a finished recording by the one with the digests. On the worker's thread.
  private func replacePending(_ pending: RecordingSidecar, by complete: RecordingSidecar, _ name: StreamName) {
    var written: RecordingSidecar?
    // If this fails, the hidden file stays, and is completed later or by the next server. That server uses the same
    // temporary name.
    do throws(SystemError) {
      try unlessEnded { () throws(SystemError) in
        guard try isDescribed(by: pending, name) else { return }
        var sidecar = complete
        sidecar.link = link(sidecar, name)
        try writeNew(sidecar, name)
        written = sidecar
        if durability == .none { _ = try nameSidecar(sidecar, insteadOf: pending, name) }
      }
    } catch {
      return finishLater(name, after: error, file: pending.file)
    }
    guard durability != .none, let sidecar = written else { return }
    let naming: DiskSync.Step = { [self] () throws(SystemError) in
      var touched = DiskSync.Touched()
      try unlessEnded { () throws(SystemError) in
        touched = try nameSidecar(sidecar, insteadOf: pending, name)
      }
      return touched
    }
    disk.sync(.named(name.newSidecar, in: directory), "fdatasync \(name.newSidecar)", [naming]) { [self] error in
      if let error { finishLater(name, after: error, file: pending.file) }
    }
  }

  /// Gives a written sidecar its name, unless the recording was discarded meanwhile.
  private func nameSidecar(
    _ sidecar: RecordingSidecar, insteadOf pending: RecordingSidecar, _ name: StreamName
  ) throws(SystemError) -> DiskSync.Touched {
    guard try isDescribed(by: pending, name) else {
      settle(name)
      unlink(sidecar)
      unlinkat(directory, name.newSidecar, 0)
      return DiskSync.Touched()
    }
    try retryingInterrupts("rename \(name.newSidecar)") {
      renameat(directory, name.newSidecar, directory, name.sidecar)
    }
    unlinkat(directory, name.pendingSidecar, 0)
    settle(name)
    countRetained(name)
    return DiskSync.Touched(directory: directory)
  }
}

/// The digests of a file in its stored and its received form. One thread at a time.
private final class RecordingDigests: @unchecked Sendable {
  /// How many bytes are read before other work gets its turn, about 10 ms of hashing.
  static let slice: UInt64 = 8 << 20

  private let receivedHead: [UInt8]
  private var stored: RunningDigest
  private var received: RunningDigest?

  /// - Parameter receivedHead: empty if the file is stored as received.
  init(receivedHead: [UInt8]) {
    self.receivedHead = receivedHead
    stored = RunningDigest(.sha256)
    if !receivedHead.isEmpty {
      received = RunningDigest(.sha256)
      received?.update(receivedHead.span.bytes)
    }
  }

  func update(_ bytes: Span<UInt8>) {
    if received != nil {
      let head = UInt64(receivedHead.count)
      let skipped = Int(head - min(head, stored.byteCount))
      if skipped < bytes.count { received?.update(bytes.extracting(skipped...).bytes) }
    }
    stored.update(bytes.bytes)
  }

  func values() -> (received: Digest, stored: Digest) {
    let value = stored.value()
    return (received?.value() ?? value, value)
  }
}
