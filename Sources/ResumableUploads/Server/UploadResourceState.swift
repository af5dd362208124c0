// An upload resource as a pure state machine: who may append, up to where, what may be said of the offset, and when it
// is over. No I/O, no clock; the shell keeps the bytes and tells what it has kept.

internal import HTTPMessages

/// Where one upload stands. Each method takes an event and returns what is to be done.
package struct UploadResourceState: Equatable, Sendable {
  package enum Phase: Equatable, Sendable {
    /// More bytes are to come, or the word that there are none.
    case incomplete
    /// All bytes have come; the resource that they are for is making its response.
    case processing
    /// A final response was produced from processing the representation (section "Completeness").
    case complete
    case inactive(Deactivation)
  }

  /// The one request that is at work on the resource.
  package struct Transfer: Equatable, Sendable {
    /// Counted from 1 for each resource, so that a late event of an older one is known for what it is.
    package let number: Int
    package let request: UploadTransferRequest
    /// Bytes of its content that were kept.
    package fileprivate(set) var received: UInt64 = 0
    /// Bytes that were kept and do not count yet: the content has a digest, and is appended as a whole or, if it breaks
    /// off, as far as it came (section "Content Digests").
    package fileprivate(set) var pending: UInt64 = 0
  }

  package private(set) var phase = Phase.incomplete
  /// The offset: how many bytes of the representation are kept, without those that do not count yet. Never decreases,
  /// but by ``lostUnsynced()`` and ``goBack(to:)``, which take back only what was never announced.
  package private(set) var offset: UInt64
  /// How many of them are as durable as an acknowledgement promises.
  package private(set) var durable: UInt64
  /// How many bytes are kept, those included that do not count yet.
  package var keptCount: UInt64 { offset + (transfer?.pending ?? 0) }
  /// The largest offset that any client was told.
  package private(set) var announced: UInt64 = 0
  /// An offset that is known to have been announced; where more may have been, by an earlier server, that is not known.
  package var promised: UInt64 { toldBefore?.lowerBound ?? announced }
  package private(set) var length: UInt64?
  package private(set) var transfer: Transfer?
  package let limits: UploadLimits
  /// Whether an offset is announced only once the disk has it.
  package let awaitsDisk: Bool
  private var transferCount = 0
  /// What the client of an earlier server may have been told last: from what is known to have been announced to what is
  /// kept. nil as soon as it is known.
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

  /// A resource that was there before, of which `offset` bytes are kept.
  ///
  /// - Parameters:
  ///   - promised: an offset that is known to have been kept. Fewer than that are a loss, which is not papered over
  ///     (section "Offset").
  ///   - synced: an offset up to which the disk is known to have the bytes.
  package init(
    restoring phase: Phase, offset: UInt64, promised: UInt64, synced: UInt64, length: UInt64?, limits: UploadLimits,
    awaitsDisk: Bool
  ) {
    self.phase = phase
    self.offset = offset
    // A complete upload is what its record says, which is on the disk.
    durable = phase == .complete ? offset : min(synced, offset)
    // All of it may have been announced, so none of it may be taken back.
    announced = max(offset, promised)
    self.length = length
    self.limits = limits
    self.awaitsDisk = awaitsDisk
    // The creation was an earlier server's: whatever comes now is an append.
    transferCount = 1
    guard isUnfinished else { return }
    if offset < promised { self.phase = .inactive(.stateLost) } else { toldBefore = promised...offset }
    if let length, offset > length { self.phase = .inactive(.lengthExceeded) }
  }

  /// Whether more requests can change what becomes of the upload.
  package var isUnfinished: Bool { phase == .incomplete || phase == .processing }

  // MARK: Requests

  package enum AppendAction: Equatable, Sendable {
    /// The transfer begins. The one named is ended without an answer first: its client gave it up, or it is a stray.
    /// What is kept of it and did not count is sent again, and must be dropped.
    case begin(replacing: Int?)
    /// All bytes are here; the transfer waits for the response that is being made, in place of the one named.
    case awaitResponse(replacing: Int?)
    /// The final response is given again.
    case replay
    /// The answer; a transfer at work goes on.
    case refuse(UploadRefusal)
    /// The answer; the resource is inactive from now on. The transfer named is ended without an answer first.
    case invalidate(UploadRefusal, ending: Int?)
  }

  /// A PATCH. All that has arrived of the transfer at work must have been told before.
  package mutating func append(_ request: UploadTransferRequest) -> AppendAction {
    switch phase {
    case .inactive(let cause): return .refuse(.deactivated(cause))
    case .incomplete: break
    case .processing, .complete:
      guard request.offset == offset else {
        return .refuse(.mismatchingOffset(expected: offset, provided: request.offset))
      }
      // The client did not see the response, and asks for it by completing the upload once more.
      guard request.completes, !request.content.mayHaveBytes,
        request.uploadLength == nil || request.uploadLength == offset
      else { return .refuse(.completed) }
      if phase == .complete { return request.version.replaysResponse ? .replay : .refuse(.completed) }
      return .awaitResponse(replacing: start(request))
    }
    // Judged before anything is ended: a stray of long ago, whose offset is of long ago, must not hurt the one at work.
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

  /// The record of the length that the last request indicated could not be written: `former` is what is on record.
  package mutating func lengthNotRecorded(_ former: UInt64?) { length = former }

  private mutating func start(_ request: UploadTransferRequest) -> Int? {
    let former = transfer?.number
    toldBefore = nil
    transferCount += 1
    transfer = Transfer(number: transferCount, request: request)
    return former
  }

  /// HEAD or GET: the transfer to be ended first (section "Concurrency"), if there is one. All that has arrived of it
  /// must have been told before, so that the offset which goes out is the one that the next PATCH must begin at.
  package mutating func retrieve() throws(UploadRefusal) -> Int? {
    if case .inactive(let cause) = phase { throw .deactivated(cause) }
    return endTransfer()
  }

  /// Ends the transfer at work. What has come of content whose digest nobody can judge any more is kept: "as much as
  /// possible" (section "Upload Append").
  private mutating func endTransfer() -> Int? {
    offset += transfer?.pending ?? 0
    defer { transfer = nil }
    return transfer?.number
  }

  /// The resource is given up: cancelled, expired, or found wanting. Returns the transfer to be ended.
  ///
  /// - Throws: the refusal of what is inactive already.
  package mutating func deactivate(_ cause: Deactivation) throws(UploadRefusal) -> Int? {
    if case .inactive(let former) = phase { throw .deactivated(former) }
    phase = .inactive(cause)
    return endTransfer()
  }

  /// Checks lengths and limits of a request; returns the length, if it is known now.
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
    // The content would not fit: that is known before its first byte.
    if let length, count > length - request.offset { throw .inconsistentLength }
    return length
  }

  // MARK: Content

  /// How many of the bytes that came are to be kept, and why not all of them.
  package struct Intake: Equatable, Sendable {
    package var count: UInt64
    package var refusal: UploadRefusal?
  }

  /// `count` bytes of the content of transfer `number` have come.
  package mutating func received(_ count: UInt64, by number: Int) -> Intake {
    guard phase == .incomplete, let transfer, transfer.number == number else { return Intake(count: 0, refusal: nil) }
    if let length, count > length - min(length, keptCount) {
      phase = .inactive(.lengthExceeded)
      _ = endTransfer()
      return Intake(count: 0, refusal: .inconsistentLength)
    }
    var intake = Intake(count: count, refusal: nil)
    // Beyond what a structured field holds, no offset could be told.
    let maximumSize = limits.maximumSize ?? UInt64(BareItem.largestInteger)
    if intake.count > maximumSize - min(maximumSize, keptCount) {
      intake = Intake(count: maximumSize - min(maximumSize, keptCount), refusal: .representationTooLarge)
    }
    if let maximum = limits.maximumAppendSize, intake.count > maximum - min(maximum, transfer.received) {
      intake = Intake(count: maximum - min(maximum, transfer.received), refusal: .contentTooLarge)
    }
    return intake
  }

  /// That many bytes more are kept.
  package mutating func kept(_ count: UInt64) {
    transfer?.received += count
    if transfer?.request.hasDigest == true { transfer?.pending += count } else { offset += count }
  }

  /// The content of the transfer at work is what its digest says: it counts.
  package mutating func contentVerified() {
    offset += transfer?.pending ?? 0
    transfer?.pending = 0
  }

  /// It is not: nothing of it counts. The bytes are dropped, and the transfer is over.
  package mutating func contentRefuted() { transfer = nil }

  /// The disk has everything up to this offset.
  package mutating func synced(to offset: UInt64) { durable = max(durable, min(offset, self.offset)) }

  /// The disk has lost what it had not taken yet. Returns the offset that is left, or nil if more was announced than
  /// that: then the upload is lost.
  package mutating func lostUnsynced() -> UInt64? {
    guard durable >= announced else { return nil }
    offset = durable
    transfer?.pending = 0
    return offset
  }

  /// What may be said of the offset now; nil if it was said before. Says that it is said.
  package mutating func announceProgress() -> UInt64? {
    let sayable = awaitsDisk ? durable : offset
    guard sayable > announced else { return nil }
    announced = sayable
    return sayable
  }

  /// What may be said of the offset in an answer. Says that it is said.
  package mutating func announceOffset() -> UInt64 {
    let sayable = awaitsDisk ? durable : offset
    announced = max(announced, sayable)
    toldBefore = nil
    return sayable
  }

  package enum EndAction: Equatable, Sendable {
    /// Of an older transfer, or of what is over.
    case ignore
    /// More is to come: a 2xx with `Upload-Complete: ?0`.
    case acknowledge
    /// The representation is complete: the resource that it is for processes it.
    case process
    case refuse(UploadRefusal)
  }

  /// The content of transfer `number` was fully processed.
  package mutating func contentEnded(_ number: Int) -> EndAction {
    guard phase == .incomplete, let transfer, transfer.number == number else { return .ignore }
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

  /// Transfer `number` ends without its content being complete, or its answer was given. Whether it was at work.
  @discardableResult
  package mutating func ended(_ number: Int) -> Bool {
    guard transfer?.number == number else { return false }
    _ = endTransfer()
    return true
  }

  /// The final response is there, early or in time. Returns the transfer that it goes to.
  package mutating func responded() -> Int? {
    guard phase == .incomplete || phase == .processing else { return nil }
    phase = .complete
    let waiting = endTransfer()
    // Nothing can be appended any more: what the upload came to is in its record.
    durable = offset
    return waiting
  }

  /// Processing failed in a way that may pass: the upload stands where it stood before its last request.
  package mutating func processingPostponed() -> Int? {
    guard phase == .incomplete || phase == .processing else { return nil }
    phase = .incomplete
    return endTransfer()
  }

  /// What is kept was looked at anew: another request may have brought bytes of the same stream. nil if nothing is
  /// there any more.
  package mutating func foundKept(_ offset: UInt64?) throws(UploadRefusal) {
    guard phase == .incomplete else { return }
    guard let offset, offset >= announced else { throw .deactivated(deactivated(.stateLost)) }
    if let length, offset > length { throw .deactivated(deactivated(.lengthExceeded)) }
    self.offset = offset
    durable = min(durable, offset)
  }

  /// The first append since an earlier server names `offset`: if that server may have announced it last, it is the
  /// upload's offset. Only for what is stored so that bytes which are there can be compared with those that come.
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
