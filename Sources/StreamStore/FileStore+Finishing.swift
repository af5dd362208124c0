// Writes received bytes to the disk, and gives a complete recording its final name.

internal import CLinux
internal import DiskFiles
package import EventLoops
internal import Glibc
package import StreamServing
internal import Synchronization

extension FileStore {
  /// Gives a complete stream its final name, after making it as durable as configured. `completion` is called on the
  /// loop's thread, either immediately or when the disk has finished.
  ///
  /// - Parameter forgetsLog: whether nothing about the stream need be known once it is complete.
  func finish(
    _ stream: StreamFile, _ ending: RecordingEnding, forgetsLog: Bool, loop: EventLoop,
    completion: @escaping (UnfinishedStream?) -> Void
  ) {
    let finishing = FinishingRecording(
      name: stream.name, start: stream.start, length: stream.length, size: stream.position(of: stream.length),
      ending: ending)
    // Only the loop's thread uses it. The worker merely passes it back.
    nonisolated(unsafe) let completion = completion
    let isSynced = durability != .none
    complete(finishing, stream.stored, forgetsLog: forgetsLog) { error, isNameRefused in
      let failure = error.map { UnfinishedStream(error: $0, isNameRefused: isNameRefused) }
      // If nothing is synced, this is the loop's thread.
      if isSynced { loop.execute { completion(failure) } } else { completion(failure) }
    }
  }

  /// - Parameters:
  ///   - guarding: wraps each step.
  ///   - dataSynced: called when the disk has the recording's bytes as far as configured, before anything else is done.
  ///   - completion: called with the error, and whether a step failed rather than a sync. It is called immediately if
  ///     nothing is synced, and otherwise on the worker's thread.
  func complete(
    _ finishing: FinishingRecording, _ file: OpenFile, forgetsLog: Bool,
    guarding: (@escaping DiskSync.Step) -> DiskSync.Step = { $0 },
    dataSynced: @escaping @Sendable () -> Void = {},
    completion: @escaping @Sendable (_ error: SystemError?, _ isNameRefused: Bool) -> Void
  ) {
    let (name, size) = (finishing.name, finishing.size)
    // This is checked before the recording gets its name: a complete recording contains exactly the acknowledged bytes.
    let check: DiskSync.Step = { [self] () throws(SystemError) in
      dataSynced()
      switch finishing.ending {
      case .live, .file: if let error = brokenSplit(of: name) { throw error }
      case .split where isEnded.load(ordering: .acquiring):
        throw SystemError(operation: "finish \(name.partial) when the server has ended", code: ECANCELED)
      case .split, .interrupted: break
      }
      try file.check(length: size)
      return DiskSync.Touched()
    }
    let naming: DiskSync.Step = { [self] () throws(SystemError) in
      try rename(name, forgetsLog: forgetsLog)
      return DiskSync.Touched(directory: directory)
    }
    let steps = ([check] + (hasSidecars ? sidecarSteps(finishing, file) : []) + [naming]).map(guarding)
    // Runs on the worker's thread, unless nothing is synced.
    let finished: @Sendable (SystemError?) -> Void = { [self] error in
      // The continuation of a recording that was closed does not depend on it.
      if error == nil, finishing.ending == .interrupted { brokenSplits.withLock { $0[name.base] = nil } }
      guard hasSidecars else { return }
      if error == nil {
        completeSidecar(name)
      } else if error?.code != ECANCELED {
        // A discarded recording is missing, or belongs to another server by now.
        try? restoreHead(name)
      }
    }
    if durability == .none {
      let error = attempt { () throws(SystemError) in
        for step in steps { _ = try step() }
      }
      finished(error)
      return completion(error, error != nil)
    }
    let isNameRefused = Lock(false)
    let stepFailed: @Sendable () -> Void = { isNameRefused.withLock { $0 = true } }
    disk.sync(.open(file), "fdatasync \(name.partial)", steps, stepFailed: stepFailed) { error in
      finished(error)
      completion(error, isNameRefused.withLock { $0 })
    }
  }

  func synchronize(
    _ stream: StreamFile, loop: EventLoop, completion: @escaping (SystemError?) -> Void
  ) {
    // Only the loop's thread uses both. The worker merely passes them back.
    nonisolated(unsafe) let carried = (stream: stream, completion: completion)
    // The bytes of a new file cannot be found without its name (fsync(2)).
    let unsynced = stream.isNameSynced ? nil : directory
    let name = stream.name
    disk.sync(.open(stream.stored), "fdatasync of a stream", in: unsynced) { [self] error in
      let error = error ?? brokenSplit(of: name)
      loop.execute {
        if error == nil { carried.stream.isNameSynced = true }
        carried.completion(error)
      }
    }
  }

  /// A complete recording was synced when it ended, if that was configured.
  package func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    // If the stream's file is unknown at the moment, the disk is still asked to sync.
    var file = DiskSync.File.unknown
    if let log = try? parts.lines(of: name.base) {
      var growing = name
      growing.part = log.last?.number ?? 1
      file = .named(growing.partial, in: directory)
    }
    // Only the loop's thread uses it. The worker merely passes it back.
    nonisolated(unsafe) let completion = completion
    disk.sync(file, "fdatasync \(name.partial)", in: directory) { [self] error in
      let error = error ?? brokenSplit(of: name)
      loop.execute { completion(error) }
    }
  }

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
    // Somebody put a recording there while this one grew. A stream has only one recording, whatever its type.
    if (try? recordings.find(name)) != nil {
      throw SystemError(operation: "rename \(name.partial): the stream has a complete recording already", code: EEXIST)
    }
    try moveUnlessThere(name.partial, in: directory, to: name.final)
    recordings.add(name)
  }

  /// Gives a file its name in the directory of recordings, unless a file of that name exists.
  func moveUnlessThere(_ file: String, in parent: Int32, to name: String) throws(SystemError) {
    if renameat2(parent, file, directory, name, SLUICE_RENAME_NOREPLACE) == 0 { return }
    guard errno == EINVAL else { throw .last("rename \(file) to \(name)") }
    // Some network file systems do not support the flag. The directory is locked, so no other server can interfere.
    guard faccessat(directory, name, F_OK, 0) != 0 else {
      throw SystemError(operation: "rename \(file) to \(name)", code: EEXIST)
    }
    try retryingInterrupts("rename \(file)") { renameat(parent, file, directory, name) }
  }
}
