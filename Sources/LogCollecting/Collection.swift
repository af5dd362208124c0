// A collection under way: what comes from the log goes to the streams it is of, and from time to time the disk takes
// everything and a checkpoint says so.

internal import DiskFiles
internal import EventLoops
internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing
internal import StreamStore

/// Everything of a ``LogCollector`` that runs on its loop's thread.
///
/// Each byte is stored once, whatever dies: the next collector takes back what is behind the last checkpoint in
/// recordings that grow, and reads the log from there. Recordings that were completed since are compared with what
/// comes again, as the store does with all that it has. Nothing is removed from the log of which the checkpoint does
/// not say that it is complete on the disk.
final class Collection {
  /// How many messages are on their way at most. A message has up to 256 KiB.
  private static let window = 64
  private static let checkpointPause = Duration.seconds(1)
  /// After so many checkpoints an upload lets go of its file if nothing came.
  private static let restRounds = 10

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
  /// Uploads of other partitions, and those of which nothing can be known.
  private var skipped: Set<String> = []
  private var lanes: [StreamName: StreamLane] = [:]
  /// What was read and belongs to no lane yet.
  private var inbox: [StoredMessage] = []
  private var isLookingUp = false
  /// Messages that came since the last checkpoint, and what identifies them.
  private var received: [(sequence: UInt64, mark: String)] = []
  /// Streams whose recordings grow, and how far the disk has them.
  private var growing: [StreamName: GrowthExtent] = [:]
  private var dirty: Set<StreamName> = []
  private var pendingPurges: [CollectorCheckpoint.Purge] = []
  /// Whether the brokers are known to have the log that the checkpoint is about.
  private var isLogKnown = false

  /// Whether no message may be begun to be applied, because a checkpoint is about to be made.
  private(set) var isHolding = false
  private var isWriting = false
  private var checkpointTimer: EventLoop.Timer?
  private var silenceTimer: EventLoop.Timer?
  private var lastMaintenance = MonotonicInstant.now
  /// Since when everything that the log has was read as it came; nil while it was not.
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

  /// Begins to read.
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

  /// Each publish of a server has another one.
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
      // Their sequences may be those of messages that nobody has collected.
      (pendingPurges, isLogKnown) = ([], false)
      checkpoint.sequence = 0
      checkpoint.mark = ""
      read(after: 0, "")
    }
  }

  /// Gives what was read to the lanes, in its order.
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
      if token != UploadLog.ticks {
        warn("message \(message.sequence) of the log was not written by a server")
      }
      return passOver()
    }
    let entry = LogEntry(message.content)
    let isLast = entry.map { $0.isComplete || $0.deactivation != nil } ?? false
    if skipped.contains(token) {
      if isLast { skipped.remove(token) }
      return passOver()
    }
    if let upload = uploads[token] { return add(message, entry, to: upload) }
    guard let entry else {
      warn("message \(message.sequence) of the log is damaged, or was not written by a server")
      return passOver()
    }
    // What ends an upload of which nothing was stored, or one that was complete.
    if entry.deactivation != nil, entry.count == 0 { return passOver() }
    if let origin = UploadOrigin(entry, message.content) { return admit(token, origin, message, entry) }
    lookUp(token, message, entry)
  }

  /// Reads the first message of an upload that began before the checkpoint.
  private func lookUp(_ token: String, _ message: StoredMessage, _ entry: LogEntry) {
    isLookingUp = true
    stream.message(of: token, from: 1) { [self] answer in
      switch answer {
      case .failure(let error) where error.isTransient && !isStopping:
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
          if !entry.isComplete { skipped.insert(token) }
          passOver()
        }
      }
      isLookingUp = false
      distribute()
    }
  }

  private func admit(_ token: String, _ origin: UploadOrigin, _ message: StoredMessage, _ entry: LogEntry) {
    guard assignment.owns(origin.name) else {
      if !entry.isComplete { skipped.insert(token) }
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

  // MARK: What the lanes report

  /// A message was applied.
  func applied(_ item: StreamLane.Item, _ lane: StreamLane) {
    if let entry = item.entry, entry.isComplete || entry.deactivation != nil { uploads[item.upload.token] = nil }
    if lane.isEmpty { lanes[item.upload.name] = nil }
    reader?.want(1)
  }

  /// The upload's recording grows.
  func touched(_ upload: CollectedUpload) { dirty.insert(upload.name) }

  /// The upload's stream is complete on the disk: what other uploads have brought of it is in it as well.
  func completed(_ upload: CollectedUpload) {
    guard purges else { return }
    for other in uploads.values where other.name == upload.name && other.phase == .open && other.appliedSequence > 0 {
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

  /// Lets what is being applied end, and begins nothing.
  private func hold() {
    isHolding = true
    makeCheckpoint()
  }

  private func makeCheckpoint() {
    guard isHolding, !isWriting, !hasStopped, lanes.values.allSatisfy({ !$0.isBusy }) else { return }
    isWriting = true
    // Recordings that are being closed, and those whose streams continue in others.
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
      // First: the end of a recording syncs it as well, and the kernel tells of an error only once.
      synchronize(Array(unsynced)) { [self] in write(snapshot) }
      for lane in Array(lanes.values) { lane.proceed() }
    }
  }

  /// Looks how far the recordings have come that have grown.
  private func measure() throws(SystemError) {
    for name in dirty { growing[name] = try store.growth(of: name) }
  }

  private func snapshot() -> CollectorCheckpoint {
    var snapshot = CollectorCheckpoint(
      stream: checkpoint.stream, created: checkpoint.created, partition: checkpoint.partition)
    (snapshot.sequence, snapshot.mark) = (checkpoint.sequence, checkpoint.mark)
    let firstOpen = lanes.values.compactMap(\.firstSequence).min() ?? .max
    // One that is being looked up is none of these.
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
    // Touched on the loop's thread only.
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
    purge()
    rest()
    maintain()
    if !received.isEmpty || !dirty.isEmpty { armCheckpoint() }
  }

  /// Lets go of the files of uploads that nothing comes for.
  private func rest() {
    let (now, limit) = (MonotonicInstant.now, Self.checkpointPause * Self.restRounds)
    for upload in uploads.values where now - upload.lastActivity > limit && lanes[upload.name] == nil { upload.park() }
  }

  /// Completes what the disk has refused.
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

  /// Removes messages of which the checkpoint says that they may go.
  private func purge() {
    guard isLogKnown else { return }
    for purge in checkpoint.purges where pendingPurges.contains(purge) {
      LogPurge(stream, purge).start { [self] answer in
        switch answer {
        case .success: pendingPurges.removeAll { $0 == purge }
        // With the next checkpoint.
        case .failure: break
        }
      }
    }
  }

  // MARK: Silence

  private func armSilence() {
    guard silenceTimer == nil, !isStopping else { return }
    let live = uploads.values.filter { $0.isLive && $0.phase == .open }
    guard let oldest = live.map(\.lastActivity).min() else { return }
    // Not one by one, where many fall silent at nearly the same time.
    let soonest = MonotonicInstant.now + .nanoseconds(max(finishAfter.nanoseconds / 64, 50_000_000))
    silenceTimer = loop.schedule(at: max(oldest + finishAfter, soonest)) { [unowned self] in
      silenceTimer = nil
      closeSilent()
      armSilence()
    }
  }

  /// Closes recordings of live streams that nothing came for. What was read of them is in the checkpoint, so nothing of
  /// it comes again. While the collector is behind, nobody knows who is silent.
  private func closeSilent() {
    guard let currentSince, received.isEmpty, dirty.isEmpty, !isWriting, !isHolding else { return }
    let now = MonotonicInstant.now
    guard now - currentSince >= finishAfter else { return }
    for upload in Array(uploads.values) where upload.isLive && now - upload.lastActivity >= finishAfter {
      guard upload.phase == .open, lanes[upload.name] == nil else { continue }
      guard upload.checkpoint != nil else {
        // Nothing of it is stored. Its first message is in the log if more of it comes.
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
  /// Whether the checkpoint that is being made is the last one.
  private var isLastRound = false

  func fail(_ error: LogCollectorError) {
    guard failure == nil else { return }
    failure = error
    // What the disk has refused is not to be counted on: the next collector begins at the last checkpoint.
    if case .disk = error { return stopNow() }
    stop()
  }

  /// Ends with a checkpoint.
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
