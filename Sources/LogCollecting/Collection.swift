// A running collection. It passes the messages of the log to their streams. From time to time, it syncs all recordings
// and writes a checkpoint.

internal import DiskFiles
internal import EventLoops
internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing
internal import StreamStore

/// The part of a ``LogCollector`` that runs on its loop's thread.
///
/// Each byte is stored once, regardless of what is killed. The next collector removes bytes after the last checkpoint
/// from growing recordings, and reads the log from there. Recordings that were completed since then are compared with
/// the repeated bytes, as the store does with all stored bytes. A message is removed from the log only if the
/// checkpoint states that its recording is complete and synced.
final class Collection {
  /// The maximum number of requested messages in flight. A message has up to 256 KiB.
  private static let window = 64
  private static let checkpointPause = Duration.seconds(1)
  /// An upload without new messages releases its file after this number of checkpoints.
  private static let restRounds = 10
  /// The number of recordings without an upload that a checkpoint examines.
  private static let examinedCount = 100

  let loop: EventLoop
  let store: FileStore
  let registry: StreamRegistry
  private let stream: MessageStream
  private let assignment: LoopAssignment
  private let purges: Bool
  private let directory: String
  private let finishAfter: Duration
  private let emit: (ServerEvent) -> Void
  private let ended: (LogCollectorError?) -> Void
  private var checkpoint: CollectorCheckpoint
  private var reader: MessageReader?

  private var uploads: [String: CollectedUpload] = [:]
  /// Uploads of other partitions, and those whose first message is missing.
  private var skipped: Set<String> = []
  private var lanes: [StreamName: StreamLane] = [:]
  /// Messages that were read and are in no lane yet.
  private var inbox: [StoredMessage] = []
  private var isLookingUp = false
  /// Messages since the last checkpoint, with their marks.
  private var received: [(sequence: UInt64, mark: String)] = []
  /// Streams with growing recordings, and their synced lengths.
  private var growing: [StreamName: GrowthExtent] = [:]
  private var dirty: Set<StreamName> = []
  /// Streams that an upload has left since the last checkpoint. Their recordings may be removed or closed.
  private var left: Set<StreamName> = []
  /// Growing recordings without an upload, which the registry will close eventually. The next checkpoints examine them.
  private var unattended: [StreamName] = []
  private var isPurging = false
  /// The last reported error of a purge.
  private var purgeError: String?
  private var pendingPurges: [CollectorCheckpoint.Purge] = []
  /// Whether the brokers certainly have the log of the checkpoint.
  private var isLogKnown = false

  /// Whether no further message may be applied, because a checkpoint is due.
  private(set) var isHolding = false
  private var isWriting = false
  private var checkpointTimer: EventLoop.Timer?
  private var silenceTimer: EventLoop.Timer?
  private var lastMaintenance = MonotonicInstant.now
  /// Since when all messages were read immediately. Nil while the collector is behind.
  private var currentSince: MonotonicInstant?
  private var isInterrupted = false
  private var isStopping = false
  private var failure: LogCollectorError?

  init(
    _ checkpoint: CollectorCheckpoint, _ stream: MessageStream, _ store: FileStore, _ registry: StreamRegistry,
    _ configuration: LogCollector.Configuration, loop: EventLoop,
    emit: @escaping (ServerEvent) -> Void, ended: @escaping (LogCollectorError?) -> Void
  ) {
    (self.checkpoint, self.stream, self.store, self.registry) = (checkpoint, stream, store, registry)
    (self.loop, self.emit, self.ended) = (loop, emit, ended)
    assignment = configuration.partition.assignment
    (purges, finishAfter) = (configuration.purges, configuration.finishAfter)
    directory = configuration.directory
    if purges { pendingPurges = checkpoint.purges }
    for upload in checkpoint.uploads {
      uploads[upload.token] = CollectedUpload(upload, registry: registry, loop: loop, emit: emit)
    }
    for file in checkpoint.files {
      growing[StreamName(base: file.base)] = GrowthExtent(part: file.part, length: file.length)
    }
  }

  /// Starts to read.
  func start() {
    read(after: checkpoint.sequence, checkpoint.mark)
    armSilence()
  }

  func warn(_ reason: String) { emit(ServerEvent(.warning, reason: reason)) }

  // MARK: Reading

  private func read(after sequence: UInt64, _ mark: String) {
    let reader = MessageReader(
      stream, after: sequence, mark.isEmpty ? nil : mark, created: checkpoint.created, identify: Self.mark,
      handle: { [unowned self] in happened($0) })
    self.reader = reader
    reader.want(Self.window)
  }

  /// Each message of a server has a different one.
  private static func mark(_ message: StoredMessage) -> String {
    let text = "\(message.content["Sluice-Publisher"] ?? "") \(message.content["Sluice-CRC32"] ?? "")"
    return String(decoding: text.utf8.filter { (0x20...0x7E).contains($0) }.prefix(200), as: UTF8.self)
  }

  private func happened(_ event: MessageReader.Event) {
    guard !isStopping else { return }
    switch event {
    case .message(let message, let pending):
      logIsKnown()
      if pending > 0 { currentSince = nil }
      inbox.append(message)
      distribute()
    case .caughtUp:
      logIsKnown()
      if currentSince == nil { currentSince = .now }
      guard isInterrupted else { return }
      isInterrupted = false
      warn("the brokers answer again")
    case .interrupted(let error):
      (currentSince, isInterrupted) = (nil, true)
      warn("\(error). The collector retries.")
    case .failed(let error): fail(.brokers(error))
    case .recreated(let created):
      var found = checkpoint
      found.created = created
      fail(.otherSource(directory, found: checkpoint.source, wanted: found.source))
    case .rewound:
      warn(
        "the brokers have lost messages that were collected. The stored recordings stay, and the log is read again from its "
          + "beginning.")
      received = []
      // Messages that were not collected may have these sequences.
      (pendingPurges, isLogKnown) = ([], false)
      for upload in uploads.values { upload.link = nil }
      checkpoint.sequence = 0
      checkpoint.mark = ""
      read(after: 0, "")
    }
  }

  /// Passes the messages to the lanes, in their order.
  private func distribute() {
    while !isLookingUp, !inbox.isEmpty {
      let message = inbox.removeFirst()
      received.append((message.sequence, Self.mark(message)))
      armCheckpoint()
      distribute(message)
    }
  }

  private func distribute(_ message: StoredMessage) {
    let token = String(message.subject.dropFirst(stream.name.utf8.count + 1))
    guard UploadToken.isValid(token) else {
      if token != UploadLog.ticks, token != UploadLog.barriers {
        warn("message \(message.sequence) of the log was not written by a server")
      }
      return passOver()
    }
    let entry = LogEntry(message.content)
    if skipped.contains(token) {
      if entry?.isLast == true { skipped.remove(token) }
      return passOver()
    }
    if let upload = uploads[token] { return add(message, entry, to: upload) }
    guard let entry else {
      warn("message \(message.sequence) of the log is damaged, or was not written by a server")
      return passOver()
    }
    // It ends an upload without stored bytes, or a complete one.
    if entry.deactivation != nil, entry.count == 0 { return passOver() }
    if let origin = UploadOrigin(entry, message.content) { return admit(token, origin, message, entry) }
    lookUp(token, message, entry)
  }

  /// Reads the first message of an upload that began before the checkpoint.
  private func lookUp(_ token: String, _ message: StoredMessage, _ entry: LogEntry) {
    isLookingUp = true
    stream.message(of: token, from: 1) { [self] answer in
      switch answer {
      // The checkpoint does not have this message, so the next collector reads it.
      case .failure where isStopping: return
      case .failure(let error) where error.isTransient:
        loop.schedule(after: .milliseconds(250)) { [self] in lookUp(token, message, entry) }
        return
      case .failure(let error): return fail(.brokers(error))
      case .success(let first):
        let origin = first.flatMap { first in
          LogEntry(first.content).flatMap { UploadOrigin($0, first.content) }
        }
        if let origin {
          admit(token, origin, message, entry)
        } else {
          warn(
            "message \(message.sequence) belongs to an upload whose beginning is no longer in the log. It is ignored")
          if !entry.isLast { skipped.insert(token) }
          passOver()
        }
      }
      isLookingUp = false
      distribute()
    }
  }

  private func admit(_ token: String, _ origin: UploadOrigin, _ message: StoredMessage, _ entry: LogEntry) {
    guard assignment.owns(origin.name) else {
      if !entry.isLast { skipped.insert(token) }
      return passOver()
    }
    let upload = CollectedUpload(token, origin, at: entry.offset, registry: registry, loop: loop, emit: emit)
    uploads[token] = upload
    add(message, entry, to: upload)
  }

  private func add(_ message: StoredMessage, _ entry: LogEntry?, to upload: CollectedUpload) {
    upload.lastActivity = .now
    if upload.isLive { armSilence() }
    let lane = lanes[upload.name] ?? StreamLane(self)
    lanes[upload.name] = lane
    lane.add(.init(upload: upload, entry: entry, message: message))
  }

  private func passOver() { reader?.want(1) }

  // MARK: Reports of the lanes

  /// Called when a message was applied.
  func applied(_ item: StreamLane.Item, _ lane: StreamLane) {
    let isLast = item.entry?.isLast == true
    if isLast { uploads[item.upload.token] = nil }
    if isLast || item.upload.phase == .refused { left.insert(item.upload.name) }
    if lane.isEmpty { lanes[item.upload.name] = nil }
    reader?.want(1)
  }

  /// Called when the upload's recording has grown.
  func touched(_ upload: CollectedUpload) { dirty.insert(upload.name) }

  /// Whether the checkpoint covers all stored bytes of the upload's stream.
  func isCovered(_ upload: CollectedUpload) -> Bool { !dirty.contains(upload.name) && !isWriting }

  /// Called when the upload's stream is complete and synced, including the bytes of other uploads.
  func completed(_ upload: CollectedUpload) {
    guard purges else { return }
    for other in uploads.values
    where other.name == upload.name && other.origin.owner == upload.origin.owner && other.phase == .open
      && other.appliedSequence > 0
    {
      pendingPurges.append(.init(token: other.token, sequence: other.appliedSequence))
    }
  }

  func laneRests() { if isHolding { makeCheckpoint() } }

  // MARK: Checkpoints

  private func armCheckpoint() {
    guard checkpointTimer == nil, !isHolding, !isWriting, !isStopping else { return }
    checkpointTimer = loop.schedule(after: Self.checkpointPause) { [unowned self] in
      checkpointTimer = nil
      hold()
    }
  }

  /// Waits for the messages that are being applied, and applies no others.
  private func hold() {
    isHolding = true
    makeCheckpoint()
  }

  private func makeCheckpoint() {
    guard isHolding, !isWriting, !hasStopped, lanes.values.allSatisfy({ !$0.isBusy }) else { return }
    isWriting = true
    // This waits for recordings that are being closed, and for those whose streams continue in others.
    registry.whenNothingFinishes { [self] in
      do throws(SystemError) {
        try measure()
      } catch {
        return fail(.disk(error))
      }
      let snapshot = snapshot()
      let unsynced = dirty.filter { growing[$0] != nil }
      dirty = []
      isHolding = isStopping
      // This comes first, because the end of a recording also syncs it, and the kernel reports an error only once.
      synchronize(Array(unsynced)) { [self] in write(snapshot) }
      for lane in Array(lanes.values) { lane.proceed() }
    }
  }

  /// Measures the recordings that have grown, and forgets those that were removed or closed.
  private func measure() throws(SystemError) {
    for name in dirty { growing[name] = try store.growth(of: name) }
    if unattended.isEmpty {
      let attended = Set(uploads.values.lazy.filter(\.continuesRecording).map(\.name))
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

  private func snapshot() -> CollectorCheckpoint {
    var snapshot = CollectorCheckpoint(
      stream: checkpoint.stream, created: checkpoint.created, partition: checkpoint.partition)
    (snapshot.sequence, snapshot.mark) = (checkpoint.sequence, checkpoint.mark)
    let firstOpen = lanes.values.compactMap(\.firstSequence).min() ?? .max
    // A message whose upload is being looked up is not applied yet.
    let applied = received.dropLast(isLookingUp ? 1 : 0).prefix { $0.sequence < firstOpen }
    if let last = applied.last { (snapshot.sequence, snapshot.mark) = last }
    received.removeFirst(applied.count)
    snapshot.uploads = uploads.values.compactMap(\.checkpoint)
    snapshot.files = growing.map { .init(base: $0.key.base, part: $0.value.part, length: $0.value.length) }
    snapshot.purges = pendingPurges
    return snapshot
  }

  private func synchronize(_ names: [StreamName], _ completion: @escaping () -> Void) {
    var open = names.count
    guard open > 0 else { return completion() }
    for name in names {
      store.synchronize(name, on: loop) { [self] error in
        if let error { return fail(.disk(error)) }
        open -= 1
        if open == 0 { completion() }
      }
    }
  }

  private func write(_ snapshot: CollectorCheckpoint) {
    guard !hasStopped else { return }
    let (file, loop) = (CheckpointFile(in: store.directory), loop)
    // Used only on the loop's thread.
    nonisolated(unsafe) let collection = self
    store.worker.execute {
      var failure: SystemError?
      do throws(SystemError) { try file.write(snapshot) } catch { failure = error }
      let error = failure
      loop.execute { collection.written(snapshot, error) }
    }
  }

  private func written(_ snapshot: CollectorCheckpoint, _ error: SystemError?) {
    isWriting = false
    guard !hasStopped else { return }
    if let error { return fail(.disk(error)) }
    checkpoint = snapshot
    if isStopping { return isLastRound ? stopNow() : beginLastRound() }
    for lane in Array(lanes.values) { lane.checkpointWritten() }
    purge()
    rest()
    maintain()
    if !received.isEmpty || !dirty.isEmpty { armCheckpoint() }
  }

  /// Releases the files of uploads without new messages.
  private func rest() {
    let (now, limit) = (MonotonicInstant.now, Self.checkpointPause * Self.restRounds)
    for upload in uploads.values where now - upload.lastActivity > limit && lanes[upload.name] == nil { upload.park() }
  }

  /// Retries operations that the disk refused.
  private func maintain() {
    guard MonotonicInstant.now - lastMaintenance > .seconds(60) else { return }
    lastMaintenance = .now
    store.finishUnfinished()
  }

  // MARK: Purging

  private func logIsKnown() {
    guard !isLogKnown else { return }
    isLogKnown = true
    purge()
  }

  /// Removes messages that may be removed according to the checkpoint, of one upload after another.
  private func purge() {
    guard isLogKnown, !isPurging, let purge = checkpoint.purges.first(where: { pendingPurges.contains($0) }) else {
      return
    }
    isPurging = true
    LogPurge(stream, purge).start { [self] answer in
      isPurging = false
      switch answer {
      case .success:
        purgeError = nil
        pendingPurges.removeAll { $0 == purge }
        self.purge()
      // The next checkpoint retries it.
      case .failure(let error):
        if purgeError != "\(error)" { warn("messages of a collected recording stay in the log: \(error)") }
        purgeError = "\(error)"
      }
    }
  }

  // MARK: Silence

  private func armSilence() {
    guard silenceTimer == nil, !isStopping else { return }
    let live = uploads.values.filter { $0.isLive && $0.phase == .open }
    guard let oldest = live.map(\.lastActivity).min() else { return }
    // Streams that become silent at nearly the same time are closed together.
    let soonest = MonotonicInstant.now + .nanoseconds(max(finishAfter.nanoseconds / 64, 50_000_000))
    silenceTimer = loop.schedule(at: max(oldest + finishAfter, soonest)) { [unowned self] in
      silenceTimer = nil
      closeSilent()
      armSilence()
    }
  }

  /// Closes recordings of silent live streams. Their bytes are in the checkpoint, so none of them arrives again. While
  /// the collector is behind, silence is unknown.
  private func closeSilent() {
    guard let currentSince, received.isEmpty, dirty.isEmpty, !isWriting, !isHolding else { return }
    let now = MonotonicInstant.now
    guard now - currentSince >= finishAfter else { return }
    for upload in Array(uploads.values) where upload.isLive && now - upload.lastActivity >= finishAfter {
      guard upload.phase == .open, lanes[upload.name] == nil else { continue }
      guard upload.checkpoint != nil else {
        // No byte of it is stored. Its first message is still in the log if more bytes arrive.
        uploads[upload.token] = nil
        continue
      }
      upload.closeSilent()
      dirty.insert(upload.name)
    }
    if !dirty.isEmpty { armCheckpoint() }
  }

  // MARK: The end

  private var hasStopped = false
  /// Whether the current checkpoint is the last one.
  private var isLastRound = false

  func fail(_ error: LogCollectorError) {
    guard failure == nil else { return }
    failure = error
    // Bytes that the disk refused cannot be trusted, so the next collector begins at the last checkpoint.
    if case .disk = error { return stopNow() }
    stop()
  }

  /// Ends the collection with a checkpoint.
  func stop() {
    guard !isStopping else { return }
    isStopping = true
    reader?.stop()
    for timer in [checkpointTimer, silenceTimer].compactMap(\.self) { loop.cancel(timer) }
    if !isWriting { beginLastRound() }
  }

  private func beginLastRound() {
    isLastRound = true
    hold()
  }

  private func stopNow() {
    guard !hasStopped else { return }
    (isStopping, hasStopped, isHolding) = (true, true, true)
    reader?.stop()
    for upload in uploads.values { upload.park() }
    registry.stop()
    registry.whenNothingFinishes { [self] in ended(failure) }
  }
}

extension LogEntry {
  /// Whether no message of the upload follows this one.
  fileprivate var isLast: Bool { isComplete || deactivation != nil }
}
