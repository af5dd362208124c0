// A running collection: its uploads, the lanes of their streams, and the moments at which all recordings are synced and
// a checkpoint is written.

internal import EventLoops
internal import JetStream
internal import StreamServing
internal import StreamStore

/// The part of a ``LogCollector`` that runs on its loop's thread.
///
/// Each byte is stored once, regardless of what is killed. The next collector removes bytes after the last checkpoint
/// from growing recordings, and reads the log from there. Recordings that were completed since then are compared with
/// the repeated bytes, as the store does with all stored bytes. A message is removed from the log only if the
/// checkpoint states that its recording is complete and synced.
final class Collection {
  private static let checkpointPause = Duration.seconds(1)
  /// The time before another checkpoint after one that could not be written.
  private static let retryPause = Duration.seconds(2)
  /// An upload without new messages releases its file after this number of checkpoints.
  private static let restRounds = 10

  let loop: EventLoop
  let store: FileStore
  let registry: StreamRegistry
  private let stream: MessageStream
  private let configuration: LogCollector.Configuration
  private let emit: (ServerEvent) -> Void
  private let ended: (LogCollectorError?) -> Void
  private let checkpoints: CheckpointWriter

  /// The uploads that are not over, by token.
  private(set) var uploads: [String: CollectedUpload] = [:]
  /// The lanes with messages that are not applied.
  private(set) var lanes: [StreamName: StreamLane] = [:]
  private lazy var silentStreams = SilentStreams(self, checkpoints, finishAfter: configuration.finishAfter)
  private lazy var distributor = MessageDistributor(self, stream, checkpoints, silentStreams, configuration)
  private lazy var backlogs = BacklogReader(self, distributor, stream, created: checkpoints.latest.created)
  private var laneMemory = LaneMemory()
  private lazy var purgeQueue = PurgeQueue(
    configuration.purges ? checkpoints.latest.purges : [], stream, store, checkpoints,
    warn: { [unowned self] in warn($0) }, changed: { [unowned self] in armCheckpoint() })

  /// Whether no further message may be applied.
  var isHolding: Bool { isCheckpointDue || isRewinding }
  private var isCheckpointDue = false
  /// Whether the log is read again from its beginning as soon as no message is being applied.
  private var isRewinding = false
  private var checkpointTimer: EventLoop.Timer?
  /// The last reported reason why no checkpoint can be written.
  private var checkpointComplaint: String?
  private var lastMaintenance = MonotonicInstant.now
  private(set) var isStopping = false
  private var failure: LogCollectorError?

  /// - Parameter omittedStreams: the streams whose records cannot be read.
  init(
    _ checkpoint: CollectorCheckpoint, omitting omittedStreams: Set<StreamName>, _ stream: MessageStream,
    _ store: FileStore, _ registry: StreamRegistry, _ configuration: LogCollector.Configuration, loop: EventLoop,
    emit: @escaping (ServerEvent) -> Void, ended: @escaping (LogCollectorError?) -> Void
  ) {
    (self.stream, self.store, self.registry) = (stream, store, registry)
    (self.configuration, self.loop, self.emit, self.ended) = (configuration, loop, emit, ended)
    checkpoints = CheckpointWriter(after: checkpoint, omitting: omittedStreams, store, loop: loop)
    for upload in checkpoint.uploads where !omittedStreams.contains(upload.origin.name) {
      uploads[upload.token] = CollectedUpload(upload, registry: registry, loop: loop, emit: emit)
    }
  }

  /// Starts to read.
  func start() {
    purgeQueue.start(on: loop)
    distributor.read(after: checkpoints.latest.position)
    silentStreams.arm()
  }

  func warn(_ reason: String) { emit(ServerEvent(.warning, reason: reason)) }

  /// Called when the brokers certainly have the log of the checkpoint.
  func logIsKnown() { purgeQueue.logIsKnown() }

  // MARK: Uploads and lanes

  /// Adds an upload, whose bytes begin at that offset.
  func addUpload(_ token: String, _ origin: UploadOrigin, at offset: UInt64) -> CollectedUpload {
    let upload = CollectedUpload(token, origin, at: offset, registry: registry, loop: loop, emit: emit)
    uploads[token] = upload
    return upload
  }

  /// Removes an upload that is over, or of which nothing is stored.
  func forget(_ upload: CollectedUpload) { uploads[upload.token] = nil }

  /// The lane of the stream's messages. Makes one if there is none.
  func lane(of name: StreamName) -> StreamLane {
    let lane = lanes[name] ?? StreamLane(self, name)
    lanes[name] = lane
    return lane
  }

  // MARK: Reading again

  /// Called when the brokers have lost messages that this collector or an earlier one has applied.
  func rewind() {
    guard !isRewinding else { return }
    warn(
      "the brokers have lost messages that were collected. The stored recordings stay, and the log is read again from "
        + "its beginning.")
    isRewinding = true
    checkpoints.rewind(from: distributor.lastRead)
    purgeQueue.rewind()
    backlogs.stop()
    distributor.rewind()
    readAgain()
  }

  /// Reads the log from its beginning when no message of the former log is being applied.
  ///
  /// The uploads of the former log may differ from those of the same tokens in the present one, so nothing that is
  /// known of them counts. The present log admits them anew, and their bytes are compared with the recordings.
  private func readAgain() {
    guard isRewinding, !hasStopped, isAtRest else { return }
    isRewinding = false
    for lane in lanes.values { lane.forgetAll() }
    for upload in uploads.values { upload.leave() }
    (uploads, lanes) = ([:], [:])
    silentStreams.fellBehind()
    if !isStopping { distributor.read(after: .beginning) }
  }

  /// Whether no message is being applied.
  private var isAtRest: Bool { lanes.values.allSatisfy { !$0.isBusy } }

  /// Called when these lanes have got all messages that were distributed.
  func caughtUp(_ served: [StreamLane]) {
    for lane in served {
      lane.endBacklog()
      if lane.isEmpty { lanes[lane.name] = nil }
    }
    distributor.backlogsEnded()
    serveBacklogs()
  }

  /// Reads again for all lanes that have applied what they kept.
  func serveBacklogs() {
    if mayReadBacklogs { backlogs.serve(lanes.values.filter { $0.isEmpty && $0.backlog != nil }) }
  }

  private var mayReadBacklogs: Bool { !isStopping && !isRewinding }

  // MARK: Reports of the lanes

  /// Called when a message was applied.
  func applied(_ item: StreamLane.Item, _ lane: StreamLane) {
    checkpoints.applied()
    armCheckpoint()
    let isLast = item.entry?.isLast == true
    if isLast { forget(item.upload) }
    if isLast || item.upload.phase == .refused { checkpoints.uploadLeft(item.upload.name) }
    guard lane.isEmpty else { return }
    if lane.backlog == nil {
      lanes[lane.name] = nil
    } else if mayReadBacklogs {
      backlogs.serve([lane])
    }
  }

  /// Called when a lane has forgotten messages.
  func fellBehind(_ lane: StreamLane) { backlogs.leave(lane) }

  /// Whether a waiting lane may keep another message.
  ///
  /// - Parameter others: the size of the other messages that the lane keeps. Nil if it keeps none.
  func keep(_ size: Int, behind others: Int?) -> Bool {
    let wasFull = laneMemory.isFull
    let isKept = laneMemory.reserve(size, behind: others)
    if laneMemory.isFull, !wasFull {
      warn(
        "so many streams wait that the collector cannot read the messages of the others. Remove the causes in the "
          + "earlier warnings.")
    }
    return isKept
  }

  /// Called when messages that a lane has kept are applied or forgotten.
  func keepsNoLonger(_ size: Int) { laneMemory.release(size) }

  /// Called when bytes of the upload are stored.
  func stored(_ upload: CollectedUpload) {
    checkpoints.stored(upload.name)
    armCheckpoint()
  }

  /// Called when the upload's recording has ended.
  func touched(_ upload: CollectedUpload) { checkpoints.touched(upload.name) }

  /// Whether the checkpoint covers all stored bytes of the upload's stream.
  func isCovered(_ upload: CollectedUpload) -> Bool { checkpoints.covers(upload.name) }

  /// Called when the upload's stream is complete and synced, including the bytes of other uploads.
  func completed(_ upload: CollectedUpload) {
    // After a loss of the brokers, others may have the sequences of its messages.
    guard configuration.purges, !isRewinding else { return }
    let others = uploads.values.filter { other in
      other.name == upload.name && other.origin.owner == upload.origin.owner && other.phase == .open
        && other.appliedSequence > 0
    }
    purgeQueue.add(others.filter { !$0.isUncompared }, of: upload.name)
    for other in others where other.isUncompared {
      warn(
        "the messages of an upload of \(other.origin.streamID) stay in the log, because it has repeated bytes of a "
          + "recording that was moved away, and they cannot be compared. Purge the messages when you have these bytes.")
    }
  }

  func laneRests() {
    readAgain()
    makeCheckpoint()
  }

  // MARK: Checkpoints

  /// Makes a checkpoint after a pause, unless one is due or being written.
  func armCheckpoint(after pause: Duration = Collection.checkpointPause) {
    guard checkpointTimer == nil, !isCheckpointDue, !checkpoints.isWriting, !isStopping else { return }
    checkpointTimer = loop.schedule(after: pause) { [unowned self] in
      checkpointTimer = nil
      hold()
    }
  }

  /// Waits for the messages that are being applied, and applies no others.
  private func hold() {
    isCheckpointDue = true
    makeCheckpoint()
  }

  private func makeCheckpoint() {
    guard isCheckpointDue, !checkpoints.isWriting, !hasStopped, isAtRest else { return }
    checkpoints.begin()
    // This waits for recordings that are being closed, and for those whose streams continue in others.
    registry.whenNothingFinishes { [self] in
      let waiting = lanes.compactMapValues(\.firstSequence)
      isCheckpointDue = isStopping
      // This comes first, because the end of a recording also syncs it, and the kernel reports an error only once.
      checkpoints.write(
        Array(uploads.values), purgeQueue.pending, waiting: waiting, exceptLast: distributor.isLookingUp
      ) { [self] outcome in concluded(outcome) }
      for lane in Array(lanes.values) { lane.proceed() }
    }
  }

  private func concluded(_ outcome: CheckpointWriter.Outcome) {
    switch outcome {
    case .written: written()
    case .failed(let error): fail(.disk(error))
    case .postponed where isStopping && !isLastRound: beginLastRound()
    // The next collector reads the log from the last checkpoint on.
    case .postponed(let error) where isStopping: fail(.disk(error))
    case .postponed(let error):
      if checkpointComplaint != "\(error)" { warn("cannot write a checkpoint: \(error). The collector retries.") }
      checkpointComplaint = "\(error)"
      armCheckpoint(after: Self.retryPause)
    }
  }

  private func written() {
    if checkpointComplaint != nil { warn("checkpoints can be written again") }
    checkpointComplaint = nil
    if isStopping { return isLastRound ? stopNow() : beginLastRound() }
    for lane in Array(lanes.values) { lane.checkpointWritten() }
    purgeQueue.proceed()
    rest()
    maintain()
    if checkpoints.isDue { armCheckpoint() }
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
    purgeQueue.judge()
  }

  // MARK: The end

  private var hasStopped = false
  /// Whether the current checkpoint is the last one.
  private var isLastRound = false

  func fail(_ error: LogCollectorError) {
    // A later error is usually a result of the first one.
    if failure == nil { failure = error }
    // Bytes that the disk refused cannot be trusted, so the next collector begins at the last checkpoint.
    if case .disk = error { return stopNow() }
    stop()
  }

  /// Ends the collection with a checkpoint.
  func stop() {
    guard !isStopping else { return }
    isStopping = true
    distributor.stop()
    backlogs.stop()
    purgeQueue.stop()
    if let checkpointTimer { loop.cancel(checkpointTimer) }
    silentStreams.stop()
    if !checkpoints.isWriting { beginLastRound() }
  }

  private func beginLastRound() {
    isLastRound = true
    hold()
  }

  private func stopNow() {
    guard !hasStopped else { return }
    (isStopping, hasStopped, isCheckpointDue) = (true, true, true)
    distributor.stop()
    backlogs.stop()
    purgeQueue.stop()
    checkpoints.stop()
    for upload in uploads.values { upload.park() }
    registry.stop()
    registry.whenNothingFinishes { [self] in ended(failure) }
  }
}
