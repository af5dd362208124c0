// A running collection. It passes the messages of the log to their streams. From time to time, it syncs all recordings
// and writes a checkpoint.

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
  /// The maximum number of messages that a reader has requested and that neither are applied nor wait in a lane. A
  /// message has up to 256 KiB.
  static let window = 64
  private static let checkpointPause = Duration.seconds(1)
  /// The time before another checkpoint after one that could not be written.
  private static let retryPause = Duration.seconds(2)
  /// An upload without new messages releases its file after this number of checkpoints.
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
  private let checkpoints: CheckpointWriter
  private var reader: MessageReader?

  /// The uploads that are not over, by token.
  private(set) var uploads: [String: CollectedUpload] = [:]
  /// Uploads of other partitions, and those whose first message is missing.
  private var skipped: Set<String> = []
  /// The lanes with messages that are not applied.
  private(set) var lanes: [StreamName: StreamLane] = [:]
  /// The streams of unfinished uploads all of whose messages have to be read again, by token.
  private var unread: [String: StreamName] = [:]
  private lazy var silentStreams = SilentStreams(self, checkpoints, finishAfter: finishAfter)
  private lazy var backlogs = BacklogReader(self, stream, created: checkpoints.latest.created)
  private var laneMemory = LaneMemory()
  /// Messages that were read and are in no lane yet.
  private var inbox: [StoredMessage] = []
  /// The sequence of the last message that was read.
  private var lastRead: UInt64 = 0
  /// The sequence of the last message that was passed to its lane, or passed over.
  private(set) var lastDistributed: UInt64 = 0
  private var isLookingUp = false
  private lazy var purgeQueue = PurgeQueue(
    purges ? checkpoints.latest.purges : [], stream, store, checkpoints, warn: { [unowned self] in warn($0) },
    changed: { [unowned self] in armCheckpoint() })

  /// Whether no further message may be applied.
  var isHolding: Bool { isCheckpointDue || isRewinding }
  private var isCheckpointDue = false
  /// Whether the log is read again from its beginning as soon as no message is being applied.
  private var isRewinding = false
  private var checkpointTimer: EventLoop.Timer?
  /// The last reported reason why no checkpoint can be written.
  private var checkpointComplaint: String?
  private var lastMaintenance = MonotonicInstant.now
  private var isInterrupted = false
  private(set) var isStopping = false
  private var failure: LogCollectorError?

  /// - Parameter omittedStreams: the streams whose records cannot be read.
  init(
    _ checkpoint: CollectorCheckpoint, omitting omittedStreams: Set<StreamName>, _ stream: MessageStream,
    _ store: FileStore, _ registry: StreamRegistry, _ configuration: LogCollector.Configuration, loop: EventLoop,
    emit: @escaping (ServerEvent) -> Void, ended: @escaping (LogCollectorError?) -> Void
  ) {
    (self.stream, self.store, self.registry) = (stream, store, registry)
    (self.loop, self.emit, self.ended) = (loop, emit, ended)
    checkpoints = CheckpointWriter(after: checkpoint, omitting: omittedStreams, store, loop: loop)
    assignment = configuration.partition.assignment
    (purges, finishAfter) = (configuration.purges, configuration.finishAfter)
    directory = configuration.directory
    for upload in checkpoint.uploads where !omittedStreams.contains(upload.origin.name) {
      uploads[upload.token] = CollectedUpload(upload, registry: registry, loop: loop, emit: emit)
    }
  }

  /// Starts to read.
  func start() {
    purgeQueue.start(on: loop)
    let position = checkpoints.latest.position
    (lastRead, lastDistributed) = (position.sequence, position.sequence)
    read(after: position)
    silentStreams.arm()
  }

  func warn(_ reason: String) { emit(ServerEvent(.warning, reason: reason)) }

  // MARK: Reading

  private func read(after position: CollectorCheckpoint.Position) {
    let reader = MessageReader(
      stream, after: position.sequence, position.mark.isEmpty ? nil : position.mark, time: position.time,
      created: checkpoints.latest.created, identify: Self.mark, handle: { [unowned self] in happened($0) })
    self.reader = reader
    reader.want(Self.window)
  }

  /// Each message of a server has a different one.
  static func mark(_ message: StoredMessage) -> String {
    let text = "\(message.content["Sluice-Publisher"] ?? "") \(message.content["Sluice-CRC32"] ?? "")"
    return String(decoding: text.utf8.filter { (0x20...0x7E).contains($0) }.prefix(200), as: UTF8.self)
  }

  func happened(_ event: MessageReader.Event) {
    guard !isStopping else { return }
    switch event {
    case .message(let message, let pending):
      purgeQueue.logIsKnown()
      if pending > 0 { silentStreams.fellBehind() }
      lastRead = message.sequence
      inbox.append(message)
      distribute()
    case .caughtUp:
      purgeQueue.logIsKnown()
      if lastRead < checkpoints.omitted.applied.sequence { checkExtent() }
      silentStreams.caughtUp()
      guard isInterrupted else { return }
      isInterrupted = false
      warn("the brokers answer again")
    case .interrupted(let error):
      silentStreams.fellBehind()
      isInterrupted = true
      warn("\(error). The collector retries.")
    case .failed(let error): fail(.brokers(error))
    case .recreated(let created):
      var found = checkpoints.latest
      found.created = created
      fail(.otherSource(directory, found: checkpoints.latest.source, wanted: found.source))
    case .rewound: rewind()
    }
  }

  /// Called when the brokers have lost messages that this collector or an earlier one has applied.
  func rewind() {
    guard !isRewinding else { return }
    warn(
      "the brokers have lost messages that were collected. The stored recordings stay, and the log is read again from "
        + "its beginning.")
    isRewinding = true
    checkpoints.rewind(from: lastRead)
    purgeQueue.rewind()
    backlogs.stop()
    reader?.stop()
    (reader, inbox, isLookingUp) = (nil, [], false)
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
    (uploads, lanes, skipped, unread) = ([:], [:], [], [:])
    (lastRead, lastDistributed) = (0, 0)
    silentStreams.fellBehind()
    if !isStopping { read(after: .beginning) }
  }

  /// Whether no message is being applied.
  private var isAtRest: Bool { lanes.values.allSatisfy { !$0.isBusy } }

  /// The reader notices only the loss of messages that it has delivered. Earlier collectors may have applied more.
  private func checkExtent() {
    stream.extent { [self] answer in
      guard !isStopping, case .success(let extent) = answer,
        extent.lastSequence < checkpoints.omitted.applied.sequence
      else { return }
      rewind()
    }
  }

  /// Passes the messages to the lanes, in their order.
  private func distribute() {
    while !isLookingUp, !inbox.isEmpty {
      let message = inbox.removeFirst()
      let position = CollectorCheckpoint.Position(
        sequence: message.sequence, mark: Self.mark(message), time: message.time)
      if checkpoints.omitted.isReplaced(position) { return rewind() }
      checkpoints.received(position)
      armCheckpoint()
      distribute(message)
      if !isLookingUp { lastDistributed = message.sequence }
    }
  }

  private func token(of message: StoredMessage) -> String {
    String(message.subject.dropFirst(stream.name.utf8.count + 1))
  }

  private func distribute(_ message: StoredMessage) {
    let token = self.token(of: message)
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
    if unread[token] != nil {
      if entry?.isLast == true { unread[token] = nil }
      return passOver()
    }
    if let name = checkpoints.omitted.stream(ofToken: token) { return omit(token, name, message, entry) }
    if let upload = uploads[token] {
      if checkpoints.omitted.isApplied(message.sequence, of: upload.name) { return passOver() }
      return add(message, entry, to: upload)
    }
    if checkpoints.omitted.passes(token, at: message.sequence, isLast: entry?.isLast == true) { return passOver() }
    guard let entry else {
      warn("message \(message.sequence) of the log is damaged, or was not written by a server")
      return passOver()
    }
    // It ends an upload without stored bytes, or a complete one.
    if entry.deactivation != nil, entry.count == 0 { return passOver() }
    if let origin = UploadOrigin(entry, message.content) {
      guard lanes[origin.name]?.backlog == nil else {
        // The whole upload is read again.
        if !entry.isLast { unread[token] = origin.name }
        return passOver()
      }
      return admit(token, origin, message, entry)
    }
    lookUp(token, message, entry)
  }

  /// Reads the first message of an upload that began before the checkpoint.
  private func lookUp(_ token: String, _ message: StoredMessage, _ entry: LogEntry) {
    isLookingUp = true
    let reader = reader
    stream.message(of: token, from: 1) { [self] answer in
      // After a loss of the brokers, it is a message of the former log.
      guard reader === self.reader else { return }
      switch answer {
      // The checkpoint does not have this message, so the next collector reads it.
      case .failure where isStopping: return
      case .failure(let error) where error.isTransient:
        loop.schedule(after: .milliseconds(250)) { [self] in
          if reader === self.reader { lookUp(token, message, entry) }
        }
        return
      case .failure(let error): return fail(.brokers(error))
      case .success(let first):
        let origin = first.flatMap { first in
          LogEntry(first.content).flatMap { UploadOrigin($0, first.content) }
        }
        if let origin {
          admit(token, origin, message, entry)
        } else if checkpoints.omitted.mayBeApplied(message.sequence) {
          // An earlier collector has reported this, or has purged the upload.
          pass(token, of: nil, entry)
        } else if mayBePurged(message.sequence), entry.isComplete, first?.sequence == message.sequence {
          // A purge leaves this message of a collected upload.
          passOver()
        } else {
          warn(
            "message \(message.sequence) belongs to an upload whose beginning is no longer in the log. It is ignored")
          if !entry.isLast { skipped.insert(token) }
          passOver()
        }
      }
      isLookingUp = false
      lastDistributed = message.sequence
      distribute()
    }
  }

  /// Whether a collector may have purged the upload of a message that was not applied: the collector of another
  /// partition, which the message does not state, or this one before the brokers lost messages.
  private func mayBePurged(_ sequence: UInt64) -> Bool {
    purges && (assignment.count > 1 || checkpoints.isReread(sequence))
  }

  private func admit(_ token: String, _ origin: UploadOrigin, _ message: StoredMessage, _ entry: LogEntry) {
    guard assignment.owns(origin.name) else {
      if !entry.isLast { skipped.insert(token) }
      return passOver()
    }
    guard !checkpoints.omitted.isApplied(message.sequence, of: origin.name) else {
      return pass(token, of: origin.name, entry)
    }
    guard !checkpoints.omitted.contains(origin.name) else { return omit(token, origin.name, message, entry) }
    let upload = CollectedUpload(token, origin, at: entry.offset, registry: registry, loop: loop, emit: emit)
    uploads[token] = upload
    add(message, entry, to: upload)
  }

  private func add(_ message: StoredMessage, _ entry: LogEntry?, to upload: CollectedUpload) {
    let lane = lanes[upload.name] ?? StreamLane(self, upload.name)
    lanes[upload.name] = lane
    lane.add(item(message, entry, of: upload, from: reader))
  }

  private func item(
    _ message: StoredMessage, _ entry: LogEntry?, of upload: CollectedUpload, from reader: MessageReader?
  ) -> StreamLane.Item {
    upload.lastActivity = .now
    if upload.isLive { silentStreams.arm() }
    return .init(upload: upload, entry: entry, message: message, reader: reader)
  }

  /// Leaves a message to the next collector, because the records of its stream cannot be read.
  private func omit(_ token: String, _ name: StreamName, _ message: StoredMessage, _ entry: LogEntry?) {
    checkpoints.omitted.omit(token, of: name, at: message.sequence, isLast: entry?.isLast == true)
    passOver()
  }

  /// Passes over a message of an upload that is not in the checkpoint, because an earlier collector has applied it.
  private func pass(_ token: String, of name: StreamName?, _ entry: LogEntry) {
    checkpoints.omitted.pass(token, of: name, isLast: entry.isLast)
    passOver()
  }

  private func passOver() { reader?.want(1) }

  // MARK: Reading again

  /// The item of a message that was read again. Nil if its stream is not wanted.
  func item(
    again message: StoredMessage, from reader: MessageReader?, ifWanted isWanted: (StreamName) -> Bool
  ) -> StreamLane.Item? {
    let token = self.token(of: message)
    if let upload = uploads[token] {
      return isWanted(upload.name) ? item(message, LogEntry(message.content), of: upload, from: reader) : nil
    }
    // Other messages of unknown uploads belong to other streams, or their beginning is no longer in the log.
    guard UploadToken.isValid(token), let entry = LogEntry(message.content),
      entry.deactivation == nil || entry.count > 0, let origin = UploadOrigin(entry, message.content),
      isWanted(origin.name)
    else { return nil }
    unread[token] = nil
    let upload = CollectedUpload(token, origin, at: entry.offset, registry: registry, loop: loop, emit: emit)
    uploads[token] = upload
    return item(message, entry, of: upload, from: reader)
  }

  /// Called when these lanes have got all messages that were distributed.
  func caughtUp(_ served: [StreamLane]) {
    for lane in served { endBacklog(of: lane) }
    unread = unread.filter { lanes[$0.value]?.backlog != nil }
    serveBacklogs()
  }

  private func endBacklog(of lane: StreamLane) {
    lane.endBacklog()
    if lane.isEmpty { lanes[lane.name] = nil }
  }

  /// Reads again for all lanes that have applied what they kept.
  func serveBacklogs() {
    if mayReadBacklogs { backlogs.serve(lanes.values.filter { $0.isEmpty && $0.backlog != nil }) }
  }

  private var mayReadBacklogs: Bool { !isStopping && !isRewinding }

  /// Removes an upload that is over, or of which nothing is stored.
  func forget(_ upload: CollectedUpload) { uploads[upload.token] = nil }

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
    guard purges, !isRewinding else { return }
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
        Array(uploads.values), purgeQueue.pending, waiting: waiting, exceptLast: isLookingUp
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
    reader?.stop()
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
    reader?.stop()
    backlogs.stop()
    purgeQueue.stop()
    checkpoints.stop()
    for upload in uploads.values { upload.park() }
    registry.stop()
    registry.whenNothingFinishes { [self] in ended(failure) }
  }
}

extension LogEntry {
  /// Whether no message of the upload follows this one.
  fileprivate var isLast: Bool { isComplete || deactivation != nil }
}
