// Reads the log, and decides to which upload and lane each of its messages belongs.

internal import EventLoops
internal import JetStream
internal import LogServing
internal import ResumableUploads
internal import StreamServing

/// Passes the messages of the log to the lanes of their streams, in their order. Only on the loop's thread.
///
/// It passes over the messages that this collector does not apply: those of other partitions, those that an earlier
/// collector has applied or omitted, and those of uploads whose beginning is no longer in the log.
final class MessageDistributor {
  /// The maximum number of messages that a reader has requested and that neither are applied nor wait in a lane. A
  /// message has up to 256 KiB.
  static let window = 64

  private unowned let collection: Collection
  private let stream: MessageStream
  private let checkpoints: CheckpointWriter
  private let silentStreams: SilentStreams
  private let assignment: LoopAssignment
  private let purges: Bool
  private let directory: String
  private var reader: MessageReader?
  private var isInterrupted = false
  /// Messages that were read and are in no lane yet.
  private var inbox: [StoredMessage] = []
  /// Uploads of other partitions, and those whose first message is missing.
  private var skipped: Set<String> = []
  /// The streams of unfinished uploads all of whose messages have to be read again, by token.
  private var unread: [String: StreamName] = [:]
  /// The sequence of the last message that was read.
  private(set) var lastRead: UInt64 = 0
  /// The sequence of the last message that was passed to its lane, or passed over.
  private(set) var lastDistributed: UInt64 = 0
  /// Whether the upload of the message after that one is being looked up.
  private(set) var isLookingUp = false

  init(
    _ collection: Collection, _ stream: MessageStream, _ checkpoints: CheckpointWriter, _ silentStreams: SilentStreams,
    _ configuration: LogCollector.Configuration
  ) {
    self.collection = collection
    (self.stream, self.checkpoints, self.silentStreams) = (stream, checkpoints, silentStreams)
    (assignment, purges) = (configuration.partition.assignment, configuration.purges)
    directory = configuration.directory
  }

  // MARK: Reading

  /// Begins to read the log after that message.
  func read(after position: CollectorCheckpoint.Position) {
    (lastRead, lastDistributed) = (position.sequence, position.sequence)
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
    guard !collection.isStopping else { return }
    switch event {
    case .message(let message, let pending):
      collection.logIsKnown()
      if pending > 0 { silentStreams.fellBehind() }
      lastRead = message.sequence
      inbox.append(message)
      distribute()
    case .caughtUp:
      collection.logIsKnown()
      if lastRead < checkpoints.omitted.applied.sequence { checkExtent() }
      silentStreams.caughtUp()
      guard isInterrupted else { return }
      isInterrupted = false
      collection.warn("the brokers answer again")
    case .interrupted(let error):
      silentStreams.fellBehind()
      isInterrupted = true
      collection.warn("\(error). The collector retries.")
    case .failed(let error): collection.fail(.brokers(error))
    case .recreated(let created):
      var found = checkpoints.latest
      found.created = created
      collection.fail(.otherSource(directory, found: checkpoints.latest.source, wanted: found.source))
    case .rewound: collection.rewind()
    }
  }

  /// The reader notices only the loss of messages that it has delivered. Earlier collectors may have applied more.
  private func checkExtent() {
    stream.extent { [self] answer in
      guard !collection.isStopping, case .success(let extent) = answer,
        extent.lastSequence < checkpoints.omitted.applied.sequence
      else { return }
      collection.rewind()
    }
  }

  /// Forgets what was read, because the brokers have lost messages. Call ``read(after:)`` next.
  func rewind() {
    stop()
    (reader, inbox, isLookingUp) = (nil, [], false)
    (skipped, unread) = ([], [:])
  }

  /// Reads nothing more.
  func stop() { reader?.stop() }

  // MARK: Distributing

  /// Passes the messages to the lanes, in their order.
  private func distribute() {
    while !isLookingUp, !inbox.isEmpty {
      let message = inbox.removeFirst()
      let position = CollectorCheckpoint.Position(
        sequence: message.sequence, mark: Self.mark(message), time: message.time)
      if checkpoints.omitted.isReplaced(position) { return collection.rewind() }
      checkpoints.received(position)
      collection.armCheckpoint()
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
        collection.warn("message \(message.sequence) of the log was not written by a server")
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
    if let upload = collection.uploads[token] {
      if checkpoints.omitted.isApplied(message.sequence, of: upload.name) { return passOver() }
      return add(message, entry, to: upload)
    }
    if checkpoints.omitted.passes(token, at: message.sequence, isLast: entry?.isLast == true) { return passOver() }
    guard let entry else {
      collection.warn("message \(message.sequence) of the log is damaged, or was not written by a server")
      return passOver()
    }
    // It ends an upload without stored bytes, or a complete one.
    if entry.deactivation != nil, entry.count == 0 { return passOver() }
    if let origin = UploadOrigin(entry, message.content) {
      guard collection.lanes[origin.name]?.backlog == nil else {
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
      case .failure where collection.isStopping: return
      case .failure(let error) where error.isTransient:
        collection.loop.schedule(after: .milliseconds(250)) { [self] in
          if reader === self.reader { lookUp(token, message, entry) }
        }
        return
      case .failure(let error): return collection.fail(.brokers(error))
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
          collection.warn(
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
    add(message, entry, to: collection.addUpload(token, origin, at: entry.offset))
  }

  private func add(_ message: StoredMessage, _ entry: LogEntry?, to upload: CollectedUpload) {
    collection.lane(of: upload.name).add(item(message, entry, of: upload, from: reader))
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
    if let upload = collection.uploads[token] {
      return isWanted(upload.name) ? item(message, LogEntry(message.content), of: upload, from: reader) : nil
    }
    // Other messages of unknown uploads belong to other streams, or their beginning is no longer in the log.
    guard UploadToken.isValid(token), let entry = LogEntry(message.content),
      entry.deactivation == nil || entry.count > 0, let origin = UploadOrigin(entry, message.content),
      isWanted(origin.name)
    else { return nil }
    unread[token] = nil
    return item(message, entry, of: collection.addUpload(token, origin, at: entry.offset), from: reader)
  }

  /// Called when some lanes have no backlog any more.
  func backlogsEnded() { unread = unread.filter { collection.lanes[$0.value]?.backlog != nil } }
}

extension LogEntry {
  /// Whether no message of the upload follows this one.
  var isLast: Bool { isComplete || deactivation != nil }
}
