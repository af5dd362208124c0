// Applies the messages of one stream in their order. Streams do not wait for each other: a stream that waits keeps a
// few messages, and the others are read again from the log.

internal import EventLoops
internal import HTTPMessages
internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing
internal import StreamStore

/// Applies the messages of one stream's uploads to its recordings, one after another. Only on the loop's thread.
final class StreamLane {
  /// A message to apply.
  struct Item {
    var upload: CollectedUpload
    /// Nil if the message is damaged.
    var entry: LogEntry?
    var message: StoredMessage
    /// The reader that has delivered it. It requests another message when this one is applied or set aside.
    var reader: MessageReader?

    /// An upper bound of its memory, in bytes.
    fileprivate var size: Int {
      message.content.headers.reduce(1024 + message.content.payload.count) { $0 + $1.value.utf8.count }
    }
  }

  private unowned let collection: Collection
  let name: StreamName
  private var queue: [Item] = []
  /// The number of messages at the beginning of ``queue`` whose readers have requested others for them, and their size.
  private var kept = (count: 0, size: 0)
  /// The sequence of the first message that has to be read again. Nil if all are in ``queue`` or applied.
  private(set) var backlog: UInt64?
  /// Whether a message is being applied.
  private(set) var isBusy = false
  /// Whether a message waits for its next attempt.
  private var isStuck = false
  /// Whether the next message ends a recording, some bytes of which are in no checkpoint yet.
  private var awaitsCheckpoint = false
  private var isProceeding = false
  private var complaint: String?
  /// They grow with attempts that cost more than a look at the cause.
  private var pauses = RetryPauses(.seconds(2)...(.seconds(120)))

  init(_ collection: Collection, _ name: StreamName) {
    self.collection = collection
    self.name = name
  }

  var isEmpty: Bool { queue.isEmpty }
  /// The sequence of the first message that is not applied.
  var firstSequence: UInt64? { queue.first?.message.sequence ?? backlog }

  /// Adds the next message of the stream.
  func add(_ item: Item) {
    guard backlog == nil else {
      item.reader?.want(1)
      return
    }
    append(item)
  }

  /// Adds a message that was read again, which is the first one from ``backlog`` on.
  func addAgain(_ item: Item) {
    backlog = item.message.sequence + 1
    append(item)
  }

  /// Called when the stream has no messages from ``backlog`` on that others have read.
  func endBacklog() { backlog = nil }

  /// Forgets all messages, because the log is read again from its beginning. None may be being applied.
  func forgetAll() {
    collection.keepsNoLonger(kept.size)
    (queue, kept, backlog) = ([], (0, 0), nil)
  }

  private func append(_ item: Item) {
    queue.append(item)
    proceed()
    if isStuck || awaitsCheckpoint { setAside() }
  }

  // MARK: Waiting

  /// Lets the readers request other messages for those that wait here. The lane forgets messages beyond its share.
  /// They are read again later.
  private func setAside() {
    while kept.count < queue.count {
      let item = queue[kept.count]
      let size = item.size
      // The lane cannot continue without its first message. If there is no memory for it, the reader requests no other
      // one for it.
      guard collection.keep(size, behind: kept.count == 0 ? nil : kept.size) else {
        return forget(from: max(kept.count, 1))
      }
      kept = (kept.count + 1, kept.size + size)
      item.reader?.want(1)
    }
  }

  private func forget(from index: Int) {
    let forgotten = queue[index...]
    guard let first = forgotten.first?.message.sequence else { return }
    backlog = first
    queue.removeSubrange(index...)
    collection.fellBehind(self)
    for item in forgotten { item.reader?.want(1) }
  }

  private func removeFirst() {
    let item = queue.removeFirst()
    guard kept.count > 0 else {
      item.reader?.want(1)
      return
    }
    kept = (kept.count - 1, kept.size - item.size)
    collection.keepsNoLonger(item.size)
  }

  // MARK: Applying

  /// Applies the next message, unless the collection is on hold.
  func proceed() {
    guard !isProceeding else { return }
    isProceeding = true
    defer { isProceeding = false }
    while !isBusy, !isStuck, !awaitsCheckpoint, !collection.isHolding, let item = queue.first {
      isBusy = true
      apply(item)
    }
  }

  /// Called when a checkpoint was written.
  func checkpointWritten() {
    awaitsCheckpoint = false
    proceed()
  }

  /// - Parameter isCostly: whether the attempt has written and synced files.
  private func ended(_ outcome: CollectedUpload.Outcome, _ item: Item, isCostly: Bool = false) {
    isBusy = false
    if case .failed(let error) = outcome { return collection.fail(.disk(error)) }
    if case .later(let reason) = outcome {
      isStuck = true
      if complaint != reason {
        let times = isCostly ? "after pauses that grow to two minutes" : "every two seconds"
        collection.warn(
          "\(name.partial) waits: \(reason). Its messages stay in the log, and other streams continue. Remove the "
            + "cause. The collector tries again \(times).")
      }
      complaint = reason
      setAside()
      collection.loop.schedule(after: pauses.next(grows: isCostly)) { [weak self] in
        self?.isStuck = false
        self?.proceed()
      }
    } else {
      if complaint != nil { collection.warn("\(name.partial) waits no longer") }
      complaint = nil
      pauses.reset()
      item.upload.link = item.entry?.link
      removeFirst()
      collection.applied(item, self)
    }
    collection.laneRests()
    proceed()
  }

  private func apply(_ item: Item) {
    let upload = item.upload
    guard upload.phase != .refused else { return ended(.done, item) }
    // A server would continue in the next part, and its client would send the lost bytes again.
    if let error = collection.store.syncRefusal(of: upload.name) { return ended(.failed(error), item) }
    guard let entry = item.entry else {
      return ended(upload.refuse("message \(item.message.sequence) of the log is damaged"), item)
    }
    guard upload.isFollowed(by: entry, item.message.content) else {
      let reason = "message \(item.message.sequence) of the log has changed, or does not follow the one before it"
      return ended(upload.refuse(reason), item)
    }
    guard entry.streamStart + entry.end <= UInt64(BareItem.largestInteger) else {
      return ended(upload.refuse("it ends beyond the largest offset of a stream"), item)
    }
    let repeated = min(upload.offset - min(upload.offset, entry.offset), entry.count)
    if entry.offset > upload.offset, entry.count > 0 || entry.isComplete {
      collection.warn(
        "the log has lost bytes \(upload.offset) to \(entry.offset) of an upload of \(upload.origin.streamID)")
      upload.skip(to: entry.offset)
    }
    guard entry.count > repeated || entry.isComplete else { return finish(item, entry) }
    // Bytes of a plain stream never arrived.
    if entry.streamStart > upload.origin.streamStart { upload.move(to: entry.streamStart, at: entry.offset + repeated) }
    if upload.phase == .closed {
      // No byte is left to store if the stream ends at the end of a closed recording.
      if entry.count == repeated { return finish(item, entry) }
      upload.skip(to: upload.offset)
    }
    storeRest(item, entry)
  }

  /// Stores the bytes of the message that closed recordings of the stream do not contain.
  ///
  /// - Parameter hasClosed: whether the growing recording was closed because they have no place in it.
  private func storeRest(_ item: Item, _ entry: LogEntry, hasClosed: Bool = false) {
    let upload = item.upload
    // The place of the bytes depends on how that ends.
    let waits = collection.registry.waits(for: name) { [self] in storeRest(item, entry, hasClosed: hasClosed) }
    if waits { return }
    switch upload.findPlace(of: rest(of: item, entry), in: collection.store) {
    case .recording:
      upload.open { [self] outcome in
        guard outcome == .done else { return ended(outcome, item) }
        store(item, entry)
      }
    case .closedRecordings: finish(item, entry)
    case .nextPart where hasClosed:
      ended(.later("its growing recording cannot be closed"), item, isCostly: true)
    case .nextPart:
      guard collection.isCovered(upload) else { return awaitCheckpoint() }
      collection.touched(upload)
      upload.closeRecording()
      storeRest(item, entry, hasClosed: true)
    case .unknown(let outcome): ended(outcome, item)
    }
  }

  /// The bytes of the message that are not stored.
  private func rest(of item: Item, _ entry: LogEntry) -> ArraySlice<UInt8> {
    let stored = item.upload.offset - min(item.upload.offset, entry.offset)
    return item.message.content.payload.dropFirst(Int(clamping: stored))
  }

  /// Waits for a checkpoint before a recording is closed. Otherwise the next collector could find a final recording
  /// whose bytes it reads again.
  private func awaitCheckpoint() {
    (isBusy, awaitsCheckpoint) = (false, true)
    setAside()
    collection.laneRests()
  }

  private func store(_ item: Item, _ entry: LogEntry) {
    let upload = item.upload
    collection.stored(upload)
    let bytes = rest(of: item, entry).prefix(Int(clamping: upload.room))
    if !bytes.isEmpty, case let outcome = upload.keep(bytes), outcome != .done { return ended(outcome, item) }
    if let text = item.message.content["Stream-Description"], entry.offset > 0 { upload.describe(text) }
    // If closed recordings contain the bytes behind those of the upload, the stream does not end with it.
    guard upload.offset >= entry.end, upload.room > 0 || !entry.isComplete else { return storeRest(item, entry) }
    guard entry.isComplete else { return finish(item, entry) }
    // A log that has lost messages may end the upload before bytes that are stored already.
    upload.complete(sha256: upload.offset == entry.end ? entry.sha256 : nil) { [self] outcome in
      if outcome == .done {
        upload.appliedSequence = item.message.sequence
        collection.completed(upload)
      }
      ended(outcome, item)
    }
  }

  private func finish(_ item: Item, _ entry: LogEntry) {
    let upload = item.upload
    let ends = entry.deactivation == .expired || entry.deactivation == .interrupted
    guard !ends || collection.isCovered(upload) else { return awaitCheckpoint() }
    upload.appliedSequence = item.message.sequence
    switch entry.deactivation {
    case nil: break
    case .cancelled?: upload.end(.cancelled, .discard, "the upload was cancelled")
    case .expired?:
      collection.touched(upload)
      upload.end(.expired, .expire, Deactivation.expired.description)
    case .interrupted?:
      collection.touched(upload)
      let reason = "the server has closed the stream, because no request came for it"
      upload.end(.closed, .close(because: reason), Deactivation.interrupted.description)
    case .refuted?: upload.end(.interrupted, .discard, Deactivation.refuted.description)
    case let cause?: upload.end(.interrupted, .leave, cause.description)
    }
    ended(.done, item)
  }
}
