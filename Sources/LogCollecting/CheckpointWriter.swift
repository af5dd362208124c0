// The checkpoints of a running collection: what each contains, and how it gets to the disk.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing
internal import StreamStore

/// Writes the checkpoints of a ``Collection``. Only on the loop's thread.
///
/// It records the messages since the last checkpoint and the growing recordings. A checkpoint is written when all bytes
/// that it describes are synced.
final class CheckpointWriter {
  /// The result of an attempt to write a checkpoint.
  enum Outcome {
    case written
    /// The disk has no space, or the process lacks descriptors or memory. Everything is as before, and the same may
    /// succeed later.
    case postponed(SystemError)
    /// The disk may have lost bytes.
    case failed(SystemError)

    /// - Parameter error: of a call that syncs nothing. The kernel reports an error of a sync only once.
    fileprivate init(_ error: SystemError) {
      self = error.isShortage || error.isFull && error.code != EFBIG ? .postponed(error) : .failed(error)
    }
  }

  /// The number of recordings without an upload that a checkpoint examines.
  private static let examinedCount = 100

  private let store: FileStore
  private let loop: EventLoop
  /// The last checkpoint on disk. After ``rewind(from:)``, its position is the beginning, and it has no purges.
  private(set) var latest: CollectorCheckpoint
  /// Messages since the last checkpoint.
  private var messages: [CollectorCheckpoint.Position] = []
  /// The latest storage time of all messages so far. Nil if that of the earlier ones is unknown.
  private var latestTime: Int64?
  /// The last message that was read before the brokers lost messages. Nil if the log is not read again.
  private var formerEnd: UInt64?
  /// The last message up to which all were applied, omitted, or wait in a lane.
  private var reached: CollectorCheckpoint.Position
  /// Streams with growing recordings, and their synced lengths.
  private var growing: [StreamName: GrowthExtent] = [:]
  /// Streams whose recordings have changed since the last checkpoint.
  private var dirty: Set<StreamName> = []
  /// Those of them that have got bytes.
  private var uncovered: Set<StreamName> = []
  /// Whether a message was applied since the last checkpoint.
  private var hasApplied = false
  /// What the checkpoint that is being written contains: changed recordings, and the last message that counts.
  private var pending = Pending()
  private struct Pending {
    var dirty: Set<StreamName> = []
    var uncovered: Set<StreamName> = []
    var message: CollectorCheckpoint.Position?
    /// Whether it describes the log as it was before ``CheckpointWriter/rewind(from:)``.
    var isFormer = false
  }
  /// Streams that an upload has left since the last checkpoint. Their recordings may be removed or closed.
  private var left: Set<StreamName> = []
  /// Growing recordings without an upload, which the registry will close eventually. The next checkpoints examine them.
  private var unattended: [StreamName] = []
  /// Whether a checkpoint is being made.
  private(set) var isWriting = false
  private var isStopped = false
  /// The streams whose records cannot be read.
  var omitted: OmittedStreams

  /// - Parameters:
  ///   - checkpoint: the one to which the directory was restored.
  ///   - names: the streams whose records cannot be read.
  init(
    after checkpoint: CollectorCheckpoint, omitting names: Set<StreamName>, _ store: FileStore, loop: EventLoop
  ) {
    omitted = OmittedStreams(names, after: checkpoint)
    reached = checkpoint.position
    // The checkpoint of an earlier version has a sequence and no time.
    latestTime = checkpoint.position.sequence > 0 && checkpoint.position.time == 0 ? nil : checkpoint.position.time
    (latest, formerEnd, self.store, self.loop) = (checkpoint, checkpoint.formerEnd, store, loop)
    for file in checkpoint.files {
      growing[StreamName(base: file.base)] = GrowthExtent(part: file.part, length: file.length)
    }
  }

  // MARK: Changes

  /// - Parameter message: with its own storage time.
  func received(_ message: CollectorCheckpoint.Position) {
    latestTime = latestTime.map { max($0, message.time) }
    messages.append(.init(sequence: message.sequence, mark: message.mark, time: latestTime ?? 0))
  }

  /// Called when the log is read again from its beginning.
  ///
  /// - Parameter end: the last message that this collector has read.
  func rewind(from end: UInt64) {
    formerEnd = max(formerEnd ?? 0, end, omitted.applied.sequence)
    (messages, latestTime) = ([], 0)
    omitted.rewind()
    (pending.message, pending.isFormer) = (nil, true)
    reached = .beginning
    latest.forgetLog()
  }

  /// Called when bytes of the stream are stored.
  func stored(_ name: StreamName) {
    dirty.insert(name)
    uncovered.insert(name)
  }

  /// Called when a recording of the stream has ended.
  func touched(_ name: StreamName) { dirty.insert(name) }

  /// Called when a message was applied.
  func applied() { hasApplied = true }

  /// Called when an upload of the stream is over or cannot be stored.
  func uploadLeft(_ name: StreamName) { left.insert(name) }

  /// Whether a message has the sequence of one that was read before the brokers lost messages.
  func isReread(_ sequence: UInt64) -> Bool { formerEnd.map { sequence <= $0 } ?? false }

  /// Whether something has changed since the last checkpoint.
  var isDue: Bool { !messages.isEmpty || !dirty.isEmpty || hasApplied }

  /// Whether the last checkpoint covers everything.
  var coversAll: Bool { !isDue && !isWriting }

  /// Whether the last checkpoint covers all stored bytes of the stream.
  func covers(_ name: StreamName) -> Bool { !uncovered.contains(name) && !isWriting }

  // MARK: Writing

  /// Announces a checkpoint. Call ``write(_:_:waiting:exceptLast:_:)`` next, when no recording is being closed.
  func begin() { isWriting = true }

  /// Measures the recordings, syncs those that have grown, and then writes a checkpoint.
  ///
  /// - Parameters:
  ///   - uploads: the unfinished uploads.
  ///   - purges: the messages that may be removed from the log according to the checkpoint.
  ///   - waiting: the streams with messages that are not applied, and the first of these messages.
  ///   - exceptLast: whether the last received message is in no lane yet, because its upload is being looked up.
  ///   - completion: called when the checkpoint is on disk, and otherwise with each error of the disk, perhaps at once.
  func write(
    _ uploads: [CollectedUpload], _ purges: [CollectorCheckpoint.Purge], waiting: [StreamName: UInt64],
    exceptLast: Bool, _ completion: @escaping (Outcome) -> Void
  ) {
    do throws(SystemError) { try measure(uploads) } catch { return conclude(Outcome(error), completion) }
    var checkpoint = CollectorCheckpoint(stream: latest.stream, created: latest.created, partition: latest.partition)
    checkpoint.position = takeReceived(waiting, exceptLast: exceptLast)
    omitted.describe(in: &checkpoint, with: uploads, waiting: waiting, reached: reached)
    checkpoint.files = growing.map { .init(base: $0.key.base, part: $0.value.part, length: $0.value.length) }
    checkpoint.purges = purges
    if let formerEnd, checkpoint.position.sequence < formerEnd { checkpoint.formerEnd = formerEnd }
    let unsynced = dirty.filter { growing[$0] != nil }
    (pending.dirty, dirty) = (dirty, [])
    (pending.uncovered, uncovered) = (uncovered, [])
    pending.isFormer = false
    hasApplied = false
    synchronize(Array(unsynced)) { [self, checkpoint] error in
      // A file that could not be opened was not synced, so its next sync still reports what the disk refuses.
      if let error { return conclude(error.isShortage ? .postponed(error) : .failed(error), completion) }
      write(checkpoint, completion)
    }
  }

  /// Called at the end of the collection. No checkpoint is written after this.
  func stop() { isStopped = true }

  /// Measures the recordings that have grown, and forgets those that were removed or closed.
  private func measure(_ uploads: [CollectedUpload]) throws(SystemError) {
    for name in dirty { growing[name] = try store.growth(of: name) }
    if unattended.isEmpty {
      let attended = Set(uploads.lazy.filter(\.continuesRecording).map(\.name))
      unattended = growing.keys.filter { !attended.contains($0) }
    }
    for name in left.union(unattended.suffix(Self.examinedCount)) where growing[name] != nil && !isGrowing(name) {
      growing[name] = nil
    }
    left = []
    unattended.removeLast(min(Self.examinedCount, unattended.count))
  }

  /// Whether the stream has a growing recording that is not being removed. Also true if this is unknown, because the
  /// error concerns only this stream.
  private func isGrowing(_ name: StreamName) -> Bool {
    do throws(SystemError) { return try store.growth(of: name) != nil } catch { return true }
  }

  /// Removes the received messages. Returns the last message that the next collector need not read.
  private func takeReceived(
    _ waiting: [StreamName: UInt64], exceptLast: Bool
  ) -> CollectorCheckpoint.Position {
    let taken = messages.dropLast(exceptLast ? 1 : 0)
    pending.message = taken.last
    messages.removeFirst(taken.count)
    if let last = taken.last { reached = last }
    let first = waiting.values.min() ?? .max
    func isBeforeAll(_ sequence: UInt64) -> Bool { sequence < first && omitted.isBeforeAll(sequence) }
    if let counted = taken.last(where: { isBeforeAll($0.sequence) }) { return counted }
    // The messages before it may be in no list any more, because they waited during earlier checkpoints.
    return isBeforeAll(reached.sequence) ? reached : latest.position
  }

  private func synchronize(_ names: [StreamName], _ completion: @escaping (SystemError?) -> Void) {
    var (open, shortage, refusal) = (names.count, SystemError?.none, SystemError?.none)
    guard open > 0 else { return completion(nil) }
    for name in names {
      store.synchronize(name, on: loop) { error in
        if let error { if error.isShortage { shortage = error } else { refusal = error } }
        open -= 1
        if open == 0 { completion(refusal ?? shortage) }
      }
    }
  }

  private func write(_ checkpoint: CollectorCheckpoint, _ completion: @escaping (Outcome) -> Void) {
    guard !isStopped else { return }
    let (file, loop) = (CheckpointFile(in: store.directory), loop)
    // Only the loop's thread uses both. The worker merely passes them back.
    nonisolated(unsafe) let carried = (writer: self, completion: completion)
    store.worker.execute {
      let outcome = Self.write(checkpoint, to: file)
      loop.execute { carried.writer.written(checkpoint, outcome, carried.completion) }
    }
  }

  private static func write(_ checkpoint: CollectorCheckpoint, to file: CheckpointFile) -> Outcome {
    let descriptor: Int32
    do throws(SystemError) { descriptor = try file.prepare(checkpoint) } catch { return Outcome(error) }
    defer { close(descriptor) }
    do throws(SystemError) { try file.replace(by: descriptor) } catch { return .failed(error) }
    return .written
  }

  private func written(_ checkpoint: CollectorCheckpoint, _ outcome: Outcome, _ completion: (Outcome) -> Void) {
    if case .written = outcome, !isStopped {
      latest = checkpoint
      if pending.isFormer { latest.forgetLog() }
    }
    conclude(outcome, completion)
  }

  private func conclude(_ outcome: Outcome, _ completion: (Outcome) -> Void) {
    isWriting = false
    guard !isStopped else { return }
    if case .postponed = outcome {
      // The next checkpoint contains them. Of the messages, only the last one counts.
      dirty.formUnion(pending.dirty)
      uncovered.formUnion(pending.uncovered)
      hasApplied = true
      if let message = pending.message { messages.insert(message, at: 0) }
    }
    pending = Pending()
    completion(outcome)
  }
}

extension CollectorCheckpoint {
  /// Removes what it states about messages, because others may have their sequences.
  fileprivate mutating func forgetLog() {
    (position, applied) = (.beginning, nil)
    (omissions, purges) = ([], [])
  }
}
