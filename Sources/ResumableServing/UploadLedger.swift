// The known facts of an upload: its state, and its record. Pure. Others write the record.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// The state of an upload and its record, kept consistent.
struct UploadLedger {
  /// Who may append, up to which offset, and which offset may be announced.
  var state: UploadResourceState
  private var record: UploadRecord
  /// Whether the written record states that there are bytes.
  private(set) var isBeginningWritten = false
  /// Whether the upload has begun at any time, so that its end concerns the recording of its stream.
  private(set) var mayHoldRecording = false
  /// ``UploadRecord/ownOffset`` as last written.
  private var writtenOwnOffset: UInt64?
  /// When the oldest unacknowledged bytes arrived.
  private var unacknowledgedSince: MonotonicInstant?
  /// Whether an earlier server created the upload. More may have been announced to its client than the record contains.
  private var isRestored = false

  private static let digestFields = Set(
    [DigestField.representation, DigestField.wantRepresentation].map { $0.lowercased() })

  // MARK: The beginning

  /// A new upload.
  ///
  /// - Parameters:
  ///   - head: its request, as the inner handler receives it.
  ///   - settled: the fields that the handler requires in its request.
  ///   - needed: the names of the fields that the handler needs; nil for all.
  ///   - boot: the boot since which bytes may be acknowledged that are not on the disk; nil if there are none.
  init(
    _ state: UploadResourceState, _ head: RequestHead, of owner: UploadOwner, settled: HeaderFields,
    needed: Set<String>?, created: WallClock, unsyncedSince boot: String?
  ) {
    self.state = state
    var fields = head.fields
    var target = head.target.text
    if let needed {
      fields = fields.filter { needed.contains($0) || Self.digestFields.contains($0) }
      // A query may contain a secret. A handler that needs none of the other fields does not need the query either.
      target = head.target.path
    }
    for field in settled.all where fields.count(field.name) == 0 { fields.append(field.name, field.value) }
    record = UploadRecord(
      method: head.method, target: target, fields: fields, created: created.seconds, credential: owner.credential,
      client: owner.address, limits: state.limits)
    record.length = state.length
    record.isLive = state.length == nil
    // From the first record on, so that no further record must be written before an offset is announced to the client.
    record.unsyncedBoot = boot
  }

  /// An upload of an earlier server.
  ///
  /// - Parameters:
  ///   - maximumAge: the configured value, which applies even if an earlier server would have waited longer.
  ///   - boot: the present boot of the machine.
  init(restoring record: UploadRecord, maximumAge: UInt64, boot: String, awaitsDisk: Bool) {
    var record = record
    record.limits.maximumAge = maximumAge
    (writtenOwnOffset, isBeginningWritten) = (record.ownOffset, record.hasBegun)
    (isRestored, mayHoldRecording) = (true, record.hasBegun)
    self.record = record
    state = Self.state(
      Self.phase(of: record, boot: boot), offset: record.promised, of: record, awaitsDisk: awaitsDisk)
  }

  /// The phase of an upload of an earlier server, by its record alone.
  static func phase(of record: UploadRecord, boot: String) -> UploadResourceState.Phase {
    if let cause = record.deactivation { return .inactive(cause) }
    if record.response != nil { return .complete }
    if let unsynced = record.unsyncedBoot, unsynced != boot { return .inactive(.unsynced) }
    return .incomplete
  }

  private static func state(
    _ phase: UploadResourceState.Phase, offset: UInt64, of record: UploadRecord, awaitsDisk: Bool
  ) -> UploadResourceState {
    UploadResourceState(
      restoring: phase, offset: offset, promised: record.promised,
      synced: record.unsyncedBoot == nil ? record.promised : 0, length: record.length, limits: record.limits,
      awaitsDisk: awaitsDisk)
  }

  /// The kept bytes were measured, for an upload that its record calls incomplete.
  mutating func restored(_ extent: KeptExtent) {
    switch extent {
    case .bytes(let kept), .complete(let kept, _):
      state = Self.state(.incomplete, offset: kept, of: record, awaitsDisk: state.awaitsDisk)
    // It was begun, but nothing is there, so all acknowledged bytes are lost. Or an earlier server has closed the
    // recording and then stopped.
    case .gone, .closed, .overtaken, .misplaced: try? state.found(extent)
    }
  }

  // MARK: Standing

  /// Whether the upload is unfinished, so that bytes are kept for it.
  var isUnfinished: Bool { state.isUnfinished }
  /// The upload's request, as the inner handler receives it; nil if the record's is invalid.
  var request: RequestHead? { RequestHead(record) }
  var method: String { record.method }
  /// Whether the request has begun, so that something must be kept.
  var hasBegun: Bool { record.hasBegun }
  /// Whether no offset but 0 was reported to clients.
  var hasAnnouncedNothing: Bool { !isRestored && state.announced == 0 }
  /// Whether the file is removed with the upload.
  var ownsFile: Bool { record.ownsFile }
  /// Whether the creation announced no length.
  var isLive: Bool { record.isLive }
  /// The offset, if it lies inside bytes that others have stored.
  var ownOffset: UInt64? { record.ownOffset }
  /// The final response, if there is one.
  var response: Response? { record.response.map { Response($0) } }
  /// Whether the record states that the upload is over.
  var isOver: Bool { record.deactivation != nil }
  /// Whether bytes may be acknowledged that are not on the disk.
  var isUnsynced: Bool { record.unsyncedBoot != nil }
  /// Whether a larger offset was announced to a client than the record's.
  var hasUnwrittenOffset: Bool { state.announced > record.promised }
  /// The same without what an earlier server may have announced.
  var hasUnwrittenPromise: Bool { state.promised > record.promised }
  /// Whether bytes were announced that the disk may not have.
  var lacksAnnounced: Bool { state.durable < state.announced }
  /// Whether the next server would announce fewer bytes than were announced, because of the own offset in the written
  /// record.
  var isAnnouncedOffsetUnwritten: Bool { writtenOwnOffset.map { $0 < state.announced } ?? false }
  /// Whether the written record contains the own offset.
  var isOwnOffsetWritten: Bool { record.ownOffset == writtenOwnOffset }
  /// The length of the record in bytes.
  var recordLength: Int { record.text?.utf8.count ?? 0 }

  // MARK: Changes

  mutating func begin() { (record.hasBegun, mayHoldRecording) = (true, true) }

  /// Nothing is stored, and nothing was announced, so the upload begins again with its next byte.
  mutating func forgetBeginning() { (record.hasBegun, isBeginningWritten) = (false, false) }

  mutating func setOwnsFile(_ ownsFile: Bool) { record.ownsFile = ownsFile }
  mutating func setOwnOffset(isInside: Bool) { record.ownOffset = isInside ? state.offset : nil }
  /// The upload turned out to be over after a response was given.
  mutating func forgetResponse() { record.response = nil }
  /// No request will be made with them any more.
  mutating func forgetFields() { record.fields = HeaderFields() }

  /// This response completes the upload.
  mutating func complete(_ response: Response) {
    record.response = UploadRecord.Response(
      status: response.status, fields: response.fields, body: response.body)
    record.promised = max(record.promised, state.offset)
  }

  /// Bytes are about to arrive that are announced to clients before they are on the disk. Returns whether the record
  /// did not state this yet. It must then be on the disk before the first of these bytes.
  mutating func marksUnsynced(since boot: String?) -> Bool {
    guard let boot, record.unsyncedBoot == nil else { return false }
    record.unsyncedBoot = boot
    return true
  }

  /// The record that was to state this could not be written. The next request tries again.
  mutating func unsyncedNotRecorded() { record.unsyncedBoot = nil }

  /// Whether everything is on the disk although the record states otherwise.
  mutating func becomesClean() -> Bool {
    guard record.unsyncedBoot != nil, isUnfinished, state.durable == state.keptCount else { return false }
    record.unsyncedBoot = nil
    return true
  }

  // MARK: The record

  /// The record to write now.
  mutating func entry() -> UploadRecord {
    record.length = state.length
    record.promised = max(record.promised, state.promised)
    if case .inactive(let cause) = state.phase { record.deactivation = cause }
    return record
  }

  mutating func written(_ entry: UploadRecord) { writtenOwnOffset = entry.ownOffset }

  /// Notes whether the disk has a record which states that there are bytes.
  mutating func beginningWritten(_ isWritten: Bool) { isBeginningWritten = isWritten }

  // MARK: Acknowledgements

  mutating func bytesCame(at now: MonotonicInstant) {
    if unacknowledgedSince == nil { unacknowledgedSince = now }
  }

  /// What an announcement acknowledged to a client.
  struct Acknowledgement: Equatable {
    /// How many bytes were acknowledged for the first time.
    var count: UInt64
    /// How long the oldest of them had waited; nil if unknown.
    var delay: Duration?
  }

  /// Lets the state announce something. Returns what became acknowledged by that, if anything.
  mutating func announcing<Result>(
    at now: @autoclosure () -> MonotonicInstant, _ announce: (inout UploadResourceState) -> Result
  ) -> (result: Result, news: Acknowledgement?) {
    let before = state.announced
    let result = announce(&state)
    guard state.announced > before else { return (result, nil) }
    let now = now()
    let news = Acknowledgement(count: state.announced - before, delay: unacknowledgedSince.map { now - $0 })
    // Bytes that arrived meanwhile and wait for the disk are assumed to have arrived now.
    unacknowledgedSince = state.announced < state.offset ? now : nil
    return (result, news)
  }
}

extension UploadResourceState {
  mutating func found(_ extent: KeptExtent) throws(UploadRefusal) {
    switch extent {
    case .bytes(let count), .complete(let count, _): try foundKept(count)
    case .gone: try foundKept(nil)
    case .closed: try end(.interrupted)
    case .overtaken: try end(.overtaken)
    case .misplaced: try end(.misplaced)
    }
  }

  private mutating func end(_ cause: Deactivation) throws(UploadRefusal) {
    guard phase == .incomplete else { return }
    _ = try deactivate(cause)
    throw .deactivated(cause)
  }
}
