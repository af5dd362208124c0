// An upload resource as a pure state machine: who may append, up to which offset, which offset may be announced, and
// when the upload is over. It has no I/O and no clock. The shell stores the bytes and reports what it has stored.

internal import HTTPMessages

/// The state of one upload. Each method takes an event and returns an action.
package struct UploadResourceState: Equatable, Sendable {
  package enum Phase: Equatable, Sendable {
    /// More bytes are to come, or the indication that there are none.
    case incomplete
    /// All bytes have arrived, and the resource they are for is producing its response.
    case processing
    /// A final response was produced from processing the representation (section "Completeness").
    case complete
    case inactive(Deactivation)
  }

  /// The one request that is active on the resource.
  package struct Transfer: Equatable, Sendable {
    /// Counted from 1 for each resource, so that a late event of an older transfer is recognised.
    package let number: Int
    package let request: UploadTransferRequest
    /// Bytes of its content that were kept.
    package fileprivate(set) var received: UInt64 = 0
    /// Bytes that are kept but do not count yet. Content with a digest is appended as a whole or, if it breaks off, as
    /// far as it arrived (section "Content Digests").
    package fileprivate(set) var pending: UInt64 = 0
  }

  package private(set) var phase = Phase.incomplete
  /// The offset: how many bytes of the representation are kept, without those that do not count yet. It never
  /// decreases, except by ``lostUnsynced()`` and ``goBack(to:)``, which take back only bytes that were never announced.
  package private(set) var offset: UInt64
  /// How many of them are as durable as an acknowledgement promises.
  package private(set) var durable: UInt64
  /// How many bytes are kept, including those that do not count yet.
  package var keptCount: UInt64 { offset + (transfer?.pending ?? 0) }
  /// The largest offset that was reported to any client.
  package private(set) var announced: UInt64 = 0
  /// An offset that is known to have been announced. An earlier server may have announced a larger one.
  package var promised: UInt64 { toldBefore?.lowerBound ?? announced }
  package private(set) var length: UInt64?
  package private(set) var transfer: Transfer?
  package let limits: UploadLimits
  /// Whether an offset is announced only once the disk has it.
  package let awaitsDisk: Bool
  private var transferCount = 0
  /// The range in which the offset lies that an earlier server announced last: from what is known to have been
  /// announced to what is kept. nil once it is known.
  private var toldBefore: ClosedRange<UInt64>?

  // MARK: The beginning

  /// A new resource, and the request that creates it as its first transfer.
  ///
  /// - Throws: ``UploadRefusal`` where the lengths do not agree or a limit is exceeded: there is no resource then.
  package init(
    creating request: UploadTransferRequest, limits: UploadLimits, awaitsDisk: Bool
  ) throws(UploadRefusal) {
    self.limits = limits
    self.awaitsDisk = awaitsDisk
    (offset, durable) = (0, 0)
    length = try judge(request)
    transferCount = 1
    transfer = Transfer(number: 1, request: request)
  }

  /// A resource that existed before, of which `offset` bytes are kept.
  ///
  /// - Parameters:
  ///   - promised: an offset that is known to have been kept. Fewer bytes than that are a loss, which must not be
  ///     hidden (section "Offset").
  ///   - synced: an offset up to which the disk is known to have the bytes.
  package init(
    restoring phase: Phase, offset: UInt64, promised: UInt64, synced: UInt64, length: UInt64?, limits: UploadLimits,
    awaitsDisk: Bool
  ) {
    self.phase = phase
    self.offset = offset
    // The record of a complete upload is on the disk, and so is the upload.
    durable = phase == .complete ? offset : min(synced, offset)
    // An earlier server may have announced all of it, so none of it may be taken back.
    announced = max(offset, promised)
    self.length = length
    self.limits = limits
    self.awaitsDisk = awaitsDisk
    // An earlier server handled the creation, so the next request is an append.
    transferCount = 1
    guard isUnfinished else { return }
    if offset < promised { self.phase = .inactive(.stateLost) } else { toldBefore = promised...offset }
    if let length, offset > length { self.phase = .inactive(.lengthExceeded) }
  }

  /// Whether more requests can affect the upload.
  package var isUnfinished: Bool { phase == .incomplete || phase == .processing }

  // MARK: Requests

  package enum AppendAction: Equatable, Sendable {
    /// The transfer begins. The one named is ended without an answer first, because its client abandoned it or it is a
    /// delayed request. Its bytes that do not count yet are sent again, and must be dropped.
    case begin(replacing: Int?)
    /// All bytes are here. The transfer waits, in place of the one named, for the response that is being produced. If
    /// the response exists, it waits for the end of its own content.
    case awaitResponse(replacing: Int?)
    /// The final response is repeated.
    case replay
    /// The answer. An active transfer continues.
    case refuse(UploadRefusal)
    /// The answer. The resource is inactive from now on. The transfer named is ended without an answer first.
    case invalidate(UploadRefusal, ending: Int?)
  }

  /// A PATCH. The caller must first have reported all bytes that arrived for the active transfer.
  package mutating func append(_ request: UploadTransferRequest) -> AppendAction {
    switch phase {
    case .inactive(let cause): return .refuse(.deactivated(cause))
    case .incomplete: break
    case .processing, .complete:
      guard request.offset == offset else {
        return .refuse(.mismatchingOffset(expected: offset, provided: request.offset))
      }
      // The client did not receive the response, and requests it by completing the upload again. Content of unknown
      // length may be empty.
      guard request.completes, request.content == .unsized || !request.content.mayHaveBytes,
        request.uploadLength == nil || request.uploadLength == offset,
        phase == .processing || request.version.replaysResponse
      else { return .refuse(.completed) }
      if phase == .complete, request.content != .unsized { return .replay }
      return .awaitResponse(replacing: start(request))
    }
    // Checked before any transfer is ended: a request that was delayed for long, with an old offset, must not affect
    // the active one.
    guard request.offset == offset else {
      return .refuse(.mismatchingOffset(expected: offset, provided: request.offset))
    }
    if let length, case .sized(let count) = request.content, count > length - min(length, offset) {
      phase = .inactive(.lengthExceeded)
      return .invalidate(.inconsistentLength, ending: endTransfer())
    }
    do throws(UploadRefusal) {
      length = try judge(request)
    } catch {
      return .refuse(error)
    }
    return .begin(replacing: start(request))
  }

  /// The record of the length that the last request indicated could not be written. `former` is the length on record.
  package mutating func lengthNotRecorded(_ former: UInt64?) { length = former }

  private mutating func start(_ request: UploadTransferRequest) -> Int? {
    let former = transfer?.number
    toldBefore = nil
    transferCount += 1
    transfer = Transfer(number: transferCount, request: request)
    return former
  }

  /// HEAD or GET. Returns the transfer to end first (section "Concurrency"), if there is one. The caller must first
  /// have reported all bytes that arrived for it, so that the answer has the offset at which the next PATCH must begin.
  package mutating func retrieve() throws(UploadRefusal) -> Int? {
    if case .inactive(let cause) = phase { throw .deactivated(cause) }
    return endTransfer()
  }

  /// Ends the active transfer. Keeps the bytes of content whose digest can no longer be verified: "as much as possible"
  /// (section "Upload Append").
  private mutating func endTransfer() -> Int? {
    defer { leaveTransfer() }
    return transfer?.number
  }

  private mutating func leaveTransfer() {
    offset += transfer?.pending ?? 0
    transfer = nil
  }

  /// The resource becomes inactive: cancelled, expired, or faulty. Returns the transfer to end.
  ///
  /// - Throws: the refusal of a resource that is already inactive.
  package mutating func deactivate(_ cause: Deactivation) throws(UploadRefusal) -> Int? {
    if case .inactive(let former) = phase { throw .deactivated(former) }
    phase = .inactive(cause)
    return endTransfer()
  }

  /// Checks a request's lengths and limits. Returns the length, if it is known now.
  private func judge(_ request: UploadTransferRequest) throws(UploadRefusal) -> UInt64? {
    let indicated = try request.indicatedLength()
    if let indicated, let length, indicated != length { throw .inconsistentLength }
    let length = length ?? indicated
    let maximumSize = min(limits.maximumSize ?? .max, UInt64(BareItem.largestInteger))
    if let length {
      if length > maximumSize { throw .representationTooLarge }
      guard length >= request.offset else { throw .inconsistentLength }
    }
    guard case .sized(let count) = request.content else { return length }
    if let maximum = limits.maximumAppendSize, count > maximum { throw .contentTooLarge }
    if let minimum = limits.minimumAppendSize, count < minimum, !request.completes, request.offset > 0 || count > 0 {
      throw .contentTooSmall
    }
    if count > maximumSize - min(maximumSize, request.offset) { throw .representationTooLarge }
    // The content would not fit, which is known before its first byte.
    if let length, count > length - request.offset { throw .inconsistentLength }
    return length
  }

  // MARK: Content

  /// How many of the bytes that arrived to keep, and why not all of them.
  package struct Intake: Equatable, Sendable {
    package var count: UInt64
    package var refusal: UploadRefusal?
  }

  /// `count` bytes of the content of transfer `number` have arrived.
  package mutating func received(_ count: UInt64, by number: Int) -> Intake {
    guard let transfer, transfer.number == number, !isInactive else { return Intake(count: 0, refusal: nil) }
    guard phase == .incomplete else { return Intake(count: 0, refusal: .completed) }
    if let length, count > length - min(length, keptCount) {
      phase = .inactive(.lengthExceeded)
      leaveTransfer()
      return Intake(count: 0, refusal: .inconsistentLength)
    }
    var intake = Intake(count: count, refusal: nil)
    // An offset beyond the range of a structured field could not be reported.
    let maximumSize = limits.maximumSize ?? UInt64(BareItem.largestInteger)
    if intake.count > maximumSize - min(maximumSize, keptCount) {
      intake = Intake(count: maximumSize - min(maximumSize, keptCount), refusal: .representationTooLarge)
    }
    if let maximum = limits.maximumAppendSize, intake.count > maximum - min(maximum, transfer.received) {
      intake = Intake(count: maximum - min(maximum, transfer.received), refusal: .contentTooLarge)
    }
    return intake
  }

  /// `count` more bytes are kept.
  package mutating func kept(_ count: UInt64) {
    transfer?.received += count
    if transfer?.request.hasDigest == true { transfer?.pending += count } else { offset += count }
  }

  /// The content of the active transfer matches its digest, so it counts.
  package mutating func contentVerified() {
    offset += transfer?.pending ?? 0
    transfer?.pending = 0
  }

  /// It does not match, so none of it counts. The bytes are dropped, and the transfer is over.
  package mutating func contentRefuted() { transfer = nil }

  /// Everything up to this offset is on the disk.
  package mutating func synced(to offset: UInt64) { durable = max(durable, min(offset, self.offset)) }

  /// The disk has lost the bytes that it had not written yet. Returns the remaining offset; nil if more than that was
  /// announced, because the upload is lost then.
  package mutating func lostUnsynced() -> UInt64? {
    guard durable >= announced else { return nil }
    offset = durable
    transfer?.pending = 0
    return offset
  }

  /// The offset that may be announced now, which then counts as announced; nil if it was announced before.
  package mutating func announceProgress() -> UInt64? {
    let sayable = awaitsDisk ? durable : offset
    guard sayable > announced else { return nil }
    announced = sayable
    return sayable
  }

  /// The offset that an answer may report, which then counts as announced.
  package mutating func announceOffset() -> UInt64 {
    let sayable = awaitsDisk ? durable : offset
    announced = max(announced, sayable)
    toldBefore = nil
    return sayable
  }

  package enum EndAction: Equatable, Sendable {
    /// The event belongs to an older transfer, or to an upload that is over.
    case ignore
    /// More is to come: a 2xx with `Upload-Complete: ?0`.
    case acknowledge
    /// The representation is complete, and the resource it is for processes it.
    case process
    /// The transfer had no content. It gets the final response again.
    case replay
    case refuse(UploadRefusal)
  }

  /// The content of transfer `number` was fully processed.
  package mutating func contentEnded(_ number: Int) -> EndAction {
    guard let transfer, transfer.number == number else { return .ignore }
    if phase == .complete {
      self.transfer = nil
      return .replay
    }
    guard phase == .incomplete else { return .ignore }
    guard transfer.request.completes else {
      self.transfer = nil
      return .acknowledge
    }
    if let length, length != offset {
      self.transfer = nil
      return .refuse(.inconsistentLength)
    }
    length = offset
    phase = .processing
    return .process
  }

  /// Transfer `number` ends without complete content, or after its answer. Without effect if it is not active.
  package mutating func ended(_ number: Int) {
    if transfer?.number == number { leaveTransfer() }
  }

  /// Like ``ended(_:)``, for a transfer whose client has left. Returns whether it was active, because only that
  /// interrupts the upload.
  package mutating func interrupted(_ number: Int) -> Bool {
    guard transfer?.number == number else { return false }
    leaveTransfer()
    return true
  }

  /// The final response is there, early or in time. Returns the transfer that receives it.
  package mutating func responded() -> Int? {
    guard phase == .incomplete || phase == .processing else { return nil }
    phase = .complete
    let waiting = endTransfer()
    // Nothing can be appended any more, and the record contains the result of the upload.
    durable = offset
    return waiting
  }

  /// Processing failed temporarily. The upload returns to its state before its last request, whose transfer is over.
  package mutating func processingPostponed() {
    guard phase == .incomplete || phase == .processing else { return }
    phase = .incomplete
    leaveTransfer()
  }

  /// The kept bytes were counted again, because another request may have added bytes of the same stream. nil if nothing
  /// is left.
  package mutating func foundKept(_ offset: UInt64?) throws(UploadRefusal) {
    guard phase == .incomplete else { return }
    guard let offset, offset >= announced else { throw .deactivated(deactivated(.stateLost)) }
    if let length, offset > length { throw .deactivated(deactivated(.lengthExceeded)) }
    self.offset = offset
    durable = min(durable, offset)
  }

  /// The first append since an earlier server ran names `offset`. If that server may have announced it last, it is the
  /// upload's offset. Only for stores that compare arriving bytes with those already stored.
  package mutating func goBack(to offset: UInt64) {
    guard phase == .incomplete, transfer == nil, let toldBefore, toldBefore.contains(offset), offset < self.offset
    else { return }
    (self.offset, announced, durable) = (offset, offset, min(durable, offset))
    self.toldBefore = nil
  }

  private mutating func deactivated(_ cause: Deactivation) -> Deactivation {
    phase = .inactive(cause)
    return cause
  }

  package var isInactive: Bool { if case .inactive = phase { true } else { false } }
}
