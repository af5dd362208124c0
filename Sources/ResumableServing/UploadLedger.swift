// What is known of an upload: where it stands, and what its record says of that. Pure; others write the record.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// The state of an upload and its record, kept in line with each other.
struct UploadLedger {
  /// Who may append, up to where, and what may be said of the offset.
  var state: UploadResourceState
  private var record: UploadRecord
  /// Whether the record that is written says that there are bytes.
  private(set) var isBeginningWritten = false
  /// ``UploadRecord/ownOffset`` as it was written last.
  private var writtenOwnOffset: UInt64?
  /// When the oldest bytes came that no client was told of.
  private var unacknowledgedSince: MonotonicInstant?

  private static let digestFields = Set(
    [DigestField.representation, DigestField.wantRepresentation].map { $0.lowercased() })

  // MARK: The beginning

  /// Of a new upload.
  ///
  /// - Parameters:
  ///   - head: its request, as the handler within sees it.
  ///   - settled: what the handler wants its request to have.
  ///   - needed: the fields that the handler needs; nil for all.
  ///   - boot: since which bytes may be acknowledged that the disk does not have; nil if there are none.
  init(
    _ state: UploadResourceState, _ head: RequestHead, of owner: UploadOwner, settled: HeaderFields,
    needed: Set<String>?, created: WallClock, unsyncedSince boot: String?
  ) {
    self.state = state
    var fields = head.fields
    var target = head.target.text
    if let needed {
      fields = fields.filter { needed.contains($0) || Self.digestFields.contains($0) }
      // A query may hold a secret, and the handler that needs none of the other fields does not need it either.
      target = head.target.path
    }
    for field in settled.all where fields.count(field.name) == 0 { fields.append(field.name, field.value) }
    record = UploadRecord(
      method: head.method, target: target, fields: fields, created: created.seconds, credential: owner.credential,
      client: owner.address, limits: state.limits)
    record.length = state.length
    record.isLive = state.length == nil
    // From its first record on: whatever is written of it needs no further one before the client is told.
    record.unsyncedBoot = boot
  }

  /// Of an upload of an earlier server.
  ///
  /// - Parameters:
  ///   - maximumAge: what is configured now holds, however long an earlier server wanted to wait.
  ///   - boot: the present one of the machine.
  init(restoring record: UploadRecord, maximumAge: UInt64, boot: String, awaitsDisk: Bool) {
    var record = record
    record.limits.maximumAge = maximumAge
    (writtenOwnOffset, isBeginningWritten) = (record.ownOffset, record.hasBegun)
    self.record = record
    state = Self.state(
      Self.phase(of: record, boot: boot), offset: record.promised, of: record, awaitsDisk: awaitsDisk)
  }

  /// Where an upload of an earlier server stands, by its record alone.
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

  /// What is kept was looked at, of an upload that is incomplete by its record.
  mutating func restored(_ extent: KeptExtent) {
    switch extent {
    case .bytes(let kept), .complete(let kept, _):
      state = Self.state(.incomplete, offset: kept, of: record, awaitsDisk: state.awaitsDisk)
    // Begun, and nothing is there: whatever was acknowledged is lost. Or an earlier server has closed the recording,
    // and died.
    case .gone, .closed, .overtaken, .misplaced: try? state.found(extent)
    }
  }

  // MARK: Standing

  /// Whether bytes are kept for it that are not yet anybody's.
  var isUnfinished: Bool { state.isUnfinished }
  /// The request that the upload is, as the handler within sees it; nil if the record's is none.
  var request: RequestHead? { RequestHead(record) }
  var method: String { record.method }
  /// Whether something must be kept, because the request has been begun.
  var hasBegun: Bool { record.hasBegun }
  /// Whether the file that bytes go into goes with the upload.
  var ownsFile: Bool { record.ownsFile }
  /// Whether the creation announced no length.
  var isLive: Bool { record.isLive }
  /// The offset, where it lies inside bytes that others have stored.
  var ownOffset: UInt64? { record.ownOffset }
  /// The final response, if there is one.
  var response: Response? { record.response.map { Response($0) } }
  /// Whether the record says that the upload is over.
  var isOver: Bool { record.deactivation != nil }
  /// Whether bytes may be acknowledged that the disk does not have.
  var isUnsynced: Bool { record.unsyncedBoot != nil }
  /// Whether a client was told of more than the record says.
  var hasUnwrittenOffset: Bool { state.announced > record.promised }
  /// The same without what an earlier server may have announced.
  var hasUnwrittenPromise: Bool { state.promised > record.promised }
  /// Whether the record that is written says where the offset lies.
  var isOwnOffsetWritten: Bool { record.ownOffset == writtenOwnOffset }
  /// How long the record is, in bytes.
  var recordLength: Int { record.text?.utf8.count ?? 0 }

  // MARK: Changes

  mutating func begin() { record.hasBegun = true }
  mutating func setOwnsFile(_ ownsFile: Bool) { record.ownsFile = ownsFile }
  mutating func setOwnOffset(isInside: Bool) { record.ownOffset = isInside ? state.offset : nil }
  /// A response was given before the upload was found to be over.
  mutating func forgetResponse() { record.response = nil }
  /// Nobody makes the request any more.
  mutating func forgetFields() { record.fields = HeaderFields() }

  /// The upload is complete by this response.
  mutating func complete(_ response: Response) {
    record.response = UploadRecord.Response(
      status: response.status, fields: response.fields, body: response.body)
    record.promised = max(record.promised, state.offset)
  }

  /// Bytes are about to come that clients are told of before the disk has them. Whether the record did not say so
  /// before; it has to be on the disk, then, before the first of them.
  mutating func marksUnsynced(since boot: String?) -> Bool {
    guard let boot, record.unsyncedBoot == nil else { return false }
    record.unsyncedBoot = boot
    return true
  }

  /// The record that was to say so could not be written: the next request tries again.
  mutating func unsyncedNotRecorded() { record.unsyncedBoot = nil }

  /// Whether the disk has everything, and the record said otherwise.
  mutating func becomesClean() -> Bool {
    guard record.unsyncedBoot != nil, isUnfinished, state.durable == state.keptCount else { return false }
    record.unsyncedBoot = nil
    return true
  }

  // MARK: The record

  /// The record as it is to be written now.
  mutating func entry() -> UploadRecord {
    record.length = state.length
    record.promised = max(record.promised, state.promised)
    if case .inactive(let cause) = state.phase { record.deactivation = cause }
    return record
  }

  mutating func written(_ entry: UploadRecord) { writtenOwnOffset = entry.ownOffset }

  /// Whether the disk has a record which says that there are bytes.
  mutating func beginningWritten(_ isWritten: Bool) { isBeginningWritten = isWritten }

  // MARK: Acknowledgements

  mutating func bytesCame(at now: MonotonicInstant) {
    if unacknowledgedSince == nil { unacknowledgedSince = now }
  }

  /// What became known to a client by an announcement.
  struct Acknowledgement: Equatable {
    /// How many bytes that no client was told of before.
    var count: UInt64
    /// How long the oldest of them had waited; nil if nobody knows.
    var delay: Duration?
  }

  /// Has the state announce something; what became known by that, if anything did.
  mutating func announcing<Result>(
    at now: @autoclosure () -> MonotonicInstant, _ announce: (inout UploadResourceState) -> Result
  ) -> (result: Result, news: Acknowledgement?) {
    let before = state.announced
    let result = announce(&state)
    guard state.announced > before else { return (result, nil) }
    let now = now()
    let news = Acknowledgement(count: state.announced - before, delay: unacknowledgedSince.map { now - $0 })
    // What came meanwhile and waits for the disk is as old as this moment at most.
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
