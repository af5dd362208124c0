// Writes received bytes to the disk, and gives a complete recording its final name.

internal import CLinux
internal import DiskFiles
package import EventLoops
internal import Glibc
package import StreamServing
internal import Synchronization

/// Why a recording does not have its final name.
struct FinishFailure {
  enum Stage {
    /// The disk may have lost bytes of it.
    case bytes
    /// The disk has refused to sync what describes it.
    case description
    /// A step failed. Its bytes are on the disk as far as configured.
    case step
  }

  var error: SystemError
  var stage: Stage
}

extension FileStore {
  /// Gives a complete stream its final name, after making it as durable as configured. `completion` is called on the
  /// loop's thread, either immediately or when the disk has finished.
  ///
  /// - Parameters:
  ///   - sha256: the SHA-256 of the whole recording as it was received; nil if it is unknown.
  ///   - forgetsLog: whether nothing about the stream need be known once it is complete.
  func finish(
    _ stream: StreamFile, _ ending: RecordingEnding, sha256: [UInt8]? = nil, forgetsLog: Bool, loop: EventLoop,
    completion: @escaping (UnfinishedStream?) -> Void
  ) {
    let finishing = FinishingRecording(
      name: stream.name, start: stream.start, length: stream.length, size: stream.position(of: stream.length),
      ending: ending, sha256: sha256)
    // Only the loop's thread uses it. The worker merely passes it back.
    nonisolated(unsafe) let completion = completion
    let isSynced = durability != .none
    complete(finishing, stream.stored, forgetsLog: forgetsLog) { failure in
      let failure = failure.map { failure in
        UnfinishedStream(
          error: failure.error, isNameRefused: failure.stage == .step, mayLackBytes: failure.stage == .bytes)
      }
      // If nothing is synced, this is the loop's thread.
      if isSynced { loop.execute { completion(failure) } } else { completion(failure) }
    }
  }

  /// - Parameters:
  ///   - outlivesLoop: whether another server may use the directory when the steps are over.
  ///   - guarding: wraps each step.
  ///   - completion: called immediately if nothing is synced, and otherwise on the worker's thread.
  func complete(
    _ finishing: FinishingRecording, _ file: OpenFile, forgetsLog: Bool, outlivesLoop: Bool = false,
    guarding: (@escaping DiskSync.Step) -> DiskSync.Step = { $0 },
    completion: @escaping @Sendable (FinishFailure?) -> Void
  ) {
    let (name, size) = (finishing.name, finishing.size)
    let areBytesSynced = Lock(false)
    // This is checked before the recording gets its name: a complete recording contains exactly the acknowledged bytes.
    let check: DiskSync.Step = { [self] () throws(SystemError) in
      let refusal: SystemError? =
        switch finishing.ending {
        case .live, .file: refusals.ofAny(name)
        case .split: refusals.ofRecording(name)
        // It states that it is unreliable.
        case .interrupted: nil
        }
      if let refusal { throw refusal }
      areBytesSynced.withLock { $0 = true }
      try file.check(length: size)
      disk.markEnded(file, length: size)
      return DiskSync.Touched()
    }
    let naming: DiskSync.Step = { [self] () throws(SystemError) in
      // Opened before the rename: a closed file is reopened by its old name.
      let descriptor: Int32? = if durability != .none { try? file.acquire() } else { nil }
      defer { if descriptor != nil { file.release() } }
      try rename(name, forgetsLog: forgetsLog)
      // Now it cannot grow any more. Before this, the recording could still continue, and the mark must exclude what a
      // power failure leaves of later bytes. If this fails, only the attribute remains.
      if let descriptor { try? SyncedMark.remove(descriptor) }
      return DiskSync.Touched(directory: directory)
    }
    // An earlier server may have described the recording. Nobody would complete that sidecar.
    let removingDescription: DiskSync.Step = { [self] in
      unlinkat(directory, name.pendingSidecar, 0)
      return DiskSync.Touched()
    }
    let steps =
      (hasSidecars ? [check] + sidecarSteps(finishing, file) + [naming] : [check, naming, removingDescription])
      .map(guarding)
    // Runs on the worker's thread, unless nothing is synced.
    let finished: @Sendable (SystemError?, _ hasStepFailed: Bool) -> Void = { [self] error, hasStepFailed in
      // The continuation of a recording that was closed does not depend on it.
      if error == nil, finishing.ending == .interrupted { refusals.forgetAll(name) }
      let stage: FinishFailure.Stage =
        if !areBytesSynced.withLock({ $0 }) { .bytes } else if hasStepFailed { .step } else { .description }
      if let error, stage == .bytes, finishing.ending != .split { refusals.add(error, name) }
      if hasSidecars {
        if error == nil {
          completeSidecar(name)
        } else if error?.code != ECANCELED {
          // A discarded recording is missing, or belongs to another server by now.
          try? restoreHead(name, outlivesLoop: outlivesLoop)
        }
      }
      completion(error.map { FinishFailure(error: $0, stage: stage) })
    }
    if durability == .none {
      let error = attempt { () throws(SystemError) in
        for step in steps { _ = try step() }
      }
      return finished(error, true)
    }
    let hasStepFailed = Lock(false)
    let stepFailed: @Sendable () -> Void = { hasStepFailed.withLock { $0 = true } }
    let growth: DiskSync.Growth = finishing.ending == .split ? .continuesElsewhere : .ended
    disk.sync(
      .open(file), "fdatasync \(name.partial)", steps, stepFailed: stepFailed, growth: growth
    ) { error in
      finished(error, hasStepFailed.withLock { $0 })
    }
  }

  func synchronize(
    _ stream: StreamFile, loop: EventLoop, completion: @escaping (SystemError?) -> Void
  ) {
    // Only the loop's thread uses both. The worker merely passes them back.
    nonisolated(unsafe) let carried = (stream: stream, completion: completion)
    // The bytes of a new file cannot be found without its name (fsync(2)).
    let unsynced = stream.isNameSynced ? nil : directory
    let (name, file) = (stream.name, stream.stored)
    disk.sync(.open(file), "fdatasync of a stream", in: unsynced, growth: .continues) { [self] error in
      let error = result(error, of: name)
      loop.execute {
        // It may continue in another file by now.
        if error == nil, carried.stream.stored === file { carried.stream.isNameSynced = true }
        carried.completion(error)
      }
    }
  }

  /// A complete recording was synced when it ended, if that was configured.
  package func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    // Only the loop's thread uses it. The worker merely passes it back.
    nonisolated(unsafe) let completion = completion
    // If the stream's file is unknown, the disk is still asked to sync. But after a shortage, the file can be marked
    // later.
    var (file, growing) = (DiskSync.File.unknown, name)
    do throws(SystemError) {
      growing = name.lastRecording(try parts.lines(of: name.base))
      file = .named(growing.partial, in: directory)
    } catch {
      if durability == .always || isCollected, error.isShortage {
        return loop.execute { [error] in completion(error) }
      }
    }
    disk.sync(file, "fdatasync \(name.partial)", in: directory, growth: .continues) { [self, growing] error in
      let error = result(error, of: growing)
      loop.execute { completion(error) }
    }
  }

  /// The result of a sync of a growing recording. If it has no mark for its bytes, its upload may end before the next
  /// sync.
  private func result(_ error: SystemError?, of name: StreamName) -> SystemError? {
    if error?.isShortage == true { markLater(name) }
    return refusals.result(error, of: name)
  }

  /// Why the disk refused to sync a recording of the stream; nil if it did not.
  package func syncRefusal(of name: StreamName) -> SystemError? { refusals.ofAny(name) }

  func attempt(_ body: () throws(SystemError) -> Void) -> SystemError? {
    do throws(SystemError) {
      try body()
      return nil
    } catch {
      return error
    }
  }

  private func rename(_ name: StreamName, forgetsLog: Bool) throws(SystemError) {
    try rename(name)
    if forgetsLog { try? parts.forget(name.base) }
  }

  private func rename(_ name: StreamName) throws(SystemError) {
    // Another program put a recording there while this one grew. A stream has only one recording, whatever its type.
    if let found = try recordings.findKnown(name) {
      throw SystemError(
        operation: "rename \(name.partial): the stream has the complete recording \(found.final) already", code: EEXIST)
    }
    try moveUnlessThere(name.partial, in: directory, to: name.final)
    recordings.add(name)
  }

  /// Gives a file its name in the directory of recordings, unless a file of that name exists.
  func moveUnlessThere(_ file: String, in parent: Int32, to name: String) throws(SystemError) {
    if renameat2(parent, file, directory, name, SLUICE_RENAME_NOREPLACE) == 0 { return }
    guard errno == EINVAL else { throw .last("rename \(file) to \(name)") }
    // Some network file systems do not support the flag. The directory is locked, so no other server can interfere.
    guard !isThere(name) else {
      throw SystemError(operation: "rename \(file) to \(name)", code: EEXIST)
    }
    try retryingInterrupts("rename \(file)") { renameat(parent, file, directory, name) }
  }
}
