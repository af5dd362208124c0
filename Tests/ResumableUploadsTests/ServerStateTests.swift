// Tests an upload resource as a state machine: each rule of the draft, and random orders of events against a model.

import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("An upload resource")
struct ServerStateTests {
  private static func request(
    _ offset: UInt64 = 0, completes: Bool = false, _ content: RequestSummary.Content = .unsized, length: UInt64? = nil
  ) -> UploadTransferRequest {
    UploadTransferRequest(
      version: .newest, offset: offset, completes: completes, content: content, uploadLength: length)
  }

  private static func resource(
    _ request: UploadTransferRequest = request(), limits: UploadLimits = UploadLimits(), awaitsDisk: Bool = false
  ) throws -> UploadResourceState {
    try UploadResourceState(creating: request, limits: limits, awaitsDisk: awaitsDisk)
  }

  /// A resource that keeps `count` bytes and has no request in progress.
  private static func holding(
    _ count: UInt64, length: UInt64? = nil, limits: UploadLimits = UploadLimits()
  ) throws -> UploadResourceState {
    var state = try resource(request(length: length), limits: limits)
    #expect(state.received(count, by: 1) == .init(count: count, refusal: nil))
    state.kept(count)
    #expect(state.contentEnded(1) == .acknowledge)
    return state
  }

  @Test("an append continues at the offset, and the server answers 409 for any other (draft, section Upload Append)")
  func offsets() throws {
    var state = try Self.holding(5)
    for offset in [0, 4, 6, 1_000_000] as [UInt64] {
      #expect(
        state.append(Self.request(offset)) == .refuse(.mismatchingOffset(expected: 5, provided: offset)))
    }
    #expect(state.append(Self.request(5)) == .begin(replacing: nil))
  }

  @Test(
    "a stale append does not end the running append, and one with the right offset does (draft, section Concurrency)")
  func takeOver() throws {
    var state = try Self.resource()
    state.kept(7)
    #expect(state.append(Self.request(3)) == .refuse(.mismatchingOffset(expected: 7, provided: 3)))
    #expect(state.transfer?.number == 1)
    #expect(state.append(Self.request(7)) == .begin(replacing: 1))
    #expect(state.transfer?.number == 2)
    // Later bytes of the older request are ignored.
    #expect(state.received(10, by: 1) == .init(count: 0, refusal: nil))
    #expect(state.contentEnded(1) == .ignore)
    let wasAtWork = state.interrupted(1)
    #expect(!wasAtWork)
    #expect(state.transfer?.number == 2)
  }

  @Test("the next append accepts a retrieved offset (draft, section Concurrency)")
  func retrievedOffset() throws {
    var state = try Self.resource()
    state.kept(7)
    let ended = try state.retrieve()
    #expect(ended == 1)
    let offset = state.announceOffset()
    #expect(state.received(3, by: 1) == .init(count: 0, refusal: nil))
    #expect(state.append(Self.request(offset)) == .begin(replacing: nil))
  }

  @Test(
    "an interrupted upload is not complete, and keeps the received bytes (draft, sections Upload Creation, Upload Append)"
  )
  func interruption() throws {
    var state = try Self.resource(Self.request(completes: true, .sized(10)))
    state.kept(4)
    let wasAtWork = state.interrupted(1)
    #expect(wasAtWork)
    #expect(state.phase == .incomplete && state.offset == 4)
    #expect(state.append(Self.request(4, completes: true)) == .begin(replacing: nil))
    state.kept(6)
    #expect(state.contentEnded(2) == .process)
    #expect(state.phase == .processing && state.length == 10)
  }

  @Test("Upload-Length and Content-Length of one request must agree (draft, section Length)")
  func lengthsOfOneRequest() throws {
    #expect(throws: UploadRefusal.inconsistentLength) {
      try Self.resource(Self.request(completes: true, .sized(5), length: 6))
    }
    // The size of a part does not determine the size of the whole.
    #expect(try Self.resource(Self.request(completes: false, .sized(5), length: 6)).length == 6)
    #expect(try Self.resource(Self.request(completes: true, .sized(5))).length == 5)
    #expect(try Self.resource(Self.request(completes: true, .unsized)).length == nil)
  }

  @Test("lengths of several requests must agree, and the first is recorded (draft, sections Length, Upload Append)")
  func lengthsOfSeveralRequests() throws {
    var state = try Self.holding(5, length: 10)
    #expect(state.append(Self.request(5, length: 11)) == .refuse(.inconsistentLength))
    #expect(state.append(Self.request(5, completes: true, .sized(4))) == .refuse(.inconsistentLength))
    #expect(state.append(Self.request(5, completes: true, .sized(5), length: 10)) == .begin(replacing: nil))
    var late = try Self.holding(5)
    #expect(late.append(Self.request(5, length: 8)) == .begin(replacing: nil))
    #expect(late.length == 8)
    #expect(late.append(Self.request(5, length: 9)) == .refuse(.inconsistentLength))
    var short = try Self.holding(5)
    #expect(short.append(Self.request(5, length: 4)) == .refuse(.inconsistentLength))
  }

  @Test("content beyond the length makes the resource invalid (draft, section Upload Append)")
  func lengthExceeded() throws {
    var state = try Self.resource(Self.request(length: 10))
    #expect(state.received(10, by: 1) == .init(count: 10, refusal: nil))
    state.kept(10)
    #expect(state.received(1, by: 1) == .init(count: 0, refusal: .inconsistentLength))
    #expect(state.phase == .inactive(.lengthExceeded))
    #expect(state.append(Self.request(10)) == .refuse(.deactivated(.lengthExceeded)))
    #expect(throws: UploadRefusal.deactivated(.lengthExceeded)) { try state.retrieve() }
  }

  @Test(
    "content whose size exceeds it beforehand does, too, and its request ends the running one",
    arguments: [true, false])
  func sizeExceedsLength(completes: Bool) throws {
    var state = try Self.holding(5, length: 10)
    #expect(state.append(Self.request(5)) == .begin(replacing: nil))
    // A stray request with another offset does no harm.
    #expect(
      state.append(Self.request(4, completes: completes, .sized(7)))
        == .refuse(.mismatchingOffset(expected: 5, provided: 4)))
    #expect(
      state.append(Self.request(5, completes: completes, .sized(6))) == .invalidate(.inconsistentLength, ending: 2))
    #expect(state.phase == .inactive(.lengthExceeded) && state.transfer == nil)
  }

  @Test("a length beyond the range of a field is too large, and is not recorded", arguments: [nil, 50 as UInt64])
  func largestLength(maximum: UInt64?) throws {
    var limits = UploadLimits()
    limits.maximumSize = maximum
    var state = try Self.holding(5, limits: limits)
    for count in [1_000_000_000_000_000 - 5, 5_000_000_000_000_000, .max - 5] as [UInt64] {
      #expect(state.append(Self.request(5, completes: true, .sized(count))) == .refuse(.representationTooLarge))
      #expect(state.append(Self.request(5, .sized(count))) == .refuse(.representationTooLarge))
      #expect(throws: UploadRefusal.representationTooLarge) {
        try Self.resource(Self.request(completes: true, .sized(count + 5)), limits: limits)
      }
    }
    #expect(state.length == nil)
    #expect(state.append(Self.request(5, completes: true, .sized(3))) == .begin(replacing: nil))
    // A length that could not be recorded counts as unknown.
    state.lengthNotRecorded(nil)
    #expect(state.length == nil)
  }

  @Test("bytes beyond the length make the resource invalid, from any request")
  func foundBeyondLength() throws {
    var state = try Self.holding(5, length: 10)
    try state.foundKept(10)
    #expect(state.offset == 10)
    #expect(throws: UploadRefusal.deactivated(.lengthExceeded)) { try state.foundKept(11) }
    #expect(state.isInactive)
    for (offset, isOver) in [(10, false), (11, true)] as [(UInt64, Bool)] {
      let restored = UploadResourceState(
        restoring: .incomplete, offset: offset, promised: 0, synced: 0, length: 10, limits: UploadLimits(),
        awaitsDisk: false)
      #expect(restored.isInactive == isOver)
    }
  }

  @Test("bytes of an earlier server are announced when they are on the disk, and never withdrawn")
  func restored() throws {
    // More bytes than were promised, because a client may already know of all of them.
    var state = UploadResourceState(
      restoring: .incomplete, offset: 9, promised: 5, synced: 5, length: nil, limits: UploadLimits(), awaitsDisk: true)
    #expect(state.offset == 9 && state.durable == 5 && state.announced == 9)
    var refused = state
    #expect(refused.lostUnsynced() == nil)
    state.synced(to: 9)
    #expect(state.announceOffset() == 9)
    #expect(state.lostUnsynced() == 9)
    var complete = UploadResourceState(
      restoring: .complete, offset: 9, promised: 9, synced: 0, length: 9, limits: UploadLimits(), awaitsDisk: true)
    #expect(complete.announceOffset() == 9)
  }

  @Test("with its response, an upload is as durable as its record, and all of it is announced")
  func respondedDurable() throws {
    var state = try Self.resource(Self.request(completes: true), awaitsDisk: true)
    state.kept(9)
    state.synced(to: 4)
    #expect(state.contentEnded(1) == .process)
    #expect(state.announceOffset() == 4)
    #expect(state.responded() == 1)
    #expect(state.announceOffset() == 9)
  }

  @Test("content that ends before the length completes nothing, and stays (draft, section Length)")
  func lengthMissed() throws {
    var state = try Self.resource(Self.request(completes: true, length: 10))
    state.kept(9)
    #expect(state.contentEnded(1) == .refuse(.inconsistentLength))
    #expect(state.phase == .incomplete && state.offset == 9)
  }

  @Test("offset and length do not complete an upload; Upload-Complete does (draft, section Length)")
  func lengthReached() throws {
    var state = try Self.holding(10, length: 10)
    #expect(state.phase == .incomplete)
    #expect(state.append(Self.request(10, completes: true, .sized(0))) == .begin(replacing: nil))
    #expect(state.contentEnded(2) == .process)
  }

  @Test("limits of the whole, of one request, and of the smallest part apply (draft, section Limits)")
  func limits() throws {
    var limits = UploadLimits()
    (limits.maximumSize, limits.maximumAppendSize, limits.minimumAppendSize) = (100, 60, 10)
    #expect(throws: UploadRefusal.representationTooLarge) {
      try Self.resource(Self.request(length: 101), limits: limits)
    }
    #expect(throws: UploadRefusal.contentTooLarge) { try Self.resource(Self.request(0, .sized(61)), limits: limits) }
    #expect(throws: UploadRefusal.contentTooSmall) { try Self.resource(Self.request(0, .sized(9)), limits: limits) }
    // The minimum applies neither to a creation without content nor to the end.
    _ = try Self.resource(Self.request(0, .sized(0)), limits: limits)
    _ = try Self.resource(Self.request(completes: true, .sized(9)), limits: limits)

    var state = try Self.resource(limits: limits)
    #expect(state.received(70, by: 1) == .init(count: 60, refusal: .contentTooLarge))
    state.kept(60)
    #expect(state.received(1, by: 1) == .init(count: 0, refusal: .contentTooLarge))
    let wasAtWork = state.interrupted(1)
    #expect(wasAtWork)
    #expect(state.append(Self.request(60, .sized(41))) == .refuse(.representationTooLarge))
    #expect(state.append(Self.request(60, .sized(9))) == .refuse(.contentTooSmall))
    var last = state
    #expect(last.append(Self.request(60, completes: true, .sized(9))) == .begin(replacing: nil))
    #expect(state.append(Self.request(60)) == .begin(replacing: nil))
    #expect(state.received(50, by: 2) == .init(count: 40, refusal: .representationTooLarge))
    state.kept(40)
    // The kept bytes can still be completed.
    state.ended(2)
    #expect(state.append(Self.request(100, completes: true, .sized(0))) == .begin(replacing: nil))
  }

  @Test("no offset is announced that a field cannot contain (RFC 9651, section 3.3.1)")
  func largestOffset() throws {
    var state = UploadResourceState(
      restoring: .incomplete, offset: 999_999_999_999_990, promised: 0, synced: 0, length: nil,
      limits: UploadLimits(), awaitsDisk: false)
    #expect(state.append(Self.request(999_999_999_999_990)) == .begin(replacing: nil))
    #expect(state.received(100, by: 2) == .init(count: 9, refusal: .representationTooLarge))
  }

  @Test(
    "after the end, nothing can be appended, and completing again requests the response (draft, section Upload Append)"
  )
  func completed() throws {
    var state = try Self.resource(Self.request(completes: true))
    state.kept(5)
    #expect(state.contentEnded(1) == .process)
    // Before the response, a client that asks for it takes the place of the one that is gone.
    #expect(state.append(Self.request(5, completes: true, .sized(0))) == .awaitResponse(replacing: 1))
    #expect(state.append(Self.request(5)) == .refuse(.completed))
    #expect(state.append(Self.request(4)) == .refuse(.mismatchingOffset(expected: 5, provided: 4)))
    #expect(state.responded() == 2)
    #expect(state.phase == .complete)
    #expect(state.responded() == nil)
    #expect(state.append(Self.request(5, completes: true, .absent)) == .replay)
    // Draft -05 answers each append to a complete upload with 400.
    var sixth = Self.request(5, completes: true, .absent)
    sixth.version = try #require(InteropVersion(number: 6))
    #expect(state.append(sixth) == .refuse(.completed))
    #expect(state.append(Self.request(5, completes: true, .sized(1))) == .refuse(.completed))
    #expect(state.append(Self.request(5, completes: false, .absent)) == .refuse(.completed))
    let ended = try state.retrieve()
    #expect(ended == nil)
    #expect(state.offset == 5)
  }

  @Test("a client may request the response with content of unknown length, but no byte of it is accepted")
  func completedAgainUnsized() throws {
    var state = try Self.resource(Self.request(completes: true))
    state.kept(5)
    #expect(state.contentEnded(1) == .process)
    // Before the response, the end of the content changes nothing, and a byte ends the request.
    #expect(state.append(Self.request(5, completes: true)) == .awaitResponse(replacing: 1))
    #expect(state.contentEnded(2) == .ignore)
    #expect(state.received(1, by: 2) == .init(count: 0, refusal: .completed))
    #expect(state.append(Self.request(5, completes: true)) == .awaitResponse(replacing: 2))
    #expect(state.received(1, by: 2) == .init(count: 0, refusal: nil))
    // The response does not wait for the end of the content.
    #expect(state.responded() == 3)
    #expect(state.contentEnded(3) == .ignore)
    #expect(state.phase == .complete && state.transfer == nil)

    #expect(state.append(Self.request(5, completes: true)) == .awaitResponse(replacing: nil))
    #expect(state.contentEnded(4) == .replay)
    #expect(state.transfer == nil)
    #expect(state.append(Self.request(5, completes: true, length: 5)) == .awaitResponse(replacing: nil))
    #expect(state.received(1, by: 5) == .init(count: 0, refusal: .completed))
    let wasAtWork = state.interrupted(5)
    #expect(wasAtWork && state.phase == .complete && state.offset == 5)
    #expect(state.append(Self.request(5, completes: true, length: 6)) == .refuse(.completed))
    #expect(state.append(Self.request(4, completes: true)) == .refuse(.mismatchingOffset(expected: 5, provided: 4)))
    var sixth = Self.request(5, completes: true)
    sixth.version = try #require(InteropVersion(number: 6))
    #expect(state.append(sixth) == .refuse(.completed))
    // A newer request, a query and the end of the upload replace one that waits.
    #expect(state.append(Self.request(5, completes: true)) == .awaitResponse(replacing: nil))
    #expect(state.append(Self.request(5, completes: true)) == .awaitResponse(replacing: 6))
    let retrieved = try state.retrieve()
    #expect(retrieved == 7)
    #expect(state.append(Self.request(5, completes: true)) == .awaitResponse(replacing: nil))
    let ended = try state.deactivate(.cancelled)
    #expect(ended == 8 && state.contentEnded(8) == .ignore)
    #expect(state.received(1, by: 8) == .init(count: 0, refusal: nil))
  }

  @Test("an early response completes the upload at any offset (draft, section Completeness)")
  func earlyResponse() throws {
    var state = try Self.resource()
    state.kept(3)
    #expect(state.responded() == 1)
    #expect(state.phase == .complete)
    #expect(state.append(Self.request(3)) == .refuse(.completed))
  }

  @Test("a cancelled upload rejects everything (draft, section Upload Cancellation)")
  func cancelled() throws {
    var state = try Self.resource()
    let ended = try state.deactivate(.cancelled)
    #expect(ended == 1)
    #expect(state.append(Self.request()) == .refuse(.deactivated(.cancelled)))
    #expect(throws: UploadRefusal.deactivated(.cancelled)) { try state.retrieve() }
    #expect(throws: UploadRefusal.deactivated(.cancelled)) { try state.deactivate(.expired) }
  }

  @Test("the first append after a restart may follow any offset that the earlier server may have announced last")
  func goesBack() {
    for told: UInt64 in 4...10 {
      for isAsked in [false, true] {
        var state = UploadResourceState(
          restoring: .incomplete, offset: 9, promised: 5, synced: 7, length: nil, limits: UploadLimits(),
          awaitsDisk: false)
        // A client that asks learns of all of it.
        if isAsked { _ = state.announceOffset() }
        state.goBack(to: told)
        let isBack = !isAsked && (5..<9).contains(told)
        #expect(state.offset == (isBack ? told : 9) && state.announced == state.offset, "\(told)")
        #expect(state.durable == min(7, state.offset))
        // This works only once.
        state.goBack(to: 5)
        #expect(state.offset == (isBack ? told : isAsked ? 9 : 5))
      }
    }
    var state = UploadResourceState(
      restoring: .incomplete, offset: 9, promised: 5, synced: 9, length: nil, limits: UploadLimits(), awaitsDisk: false)
    #expect(state.append(Self.request(9)) == .begin(replacing: nil))
    state.ended(2)
    state.goBack(to: 5)
    #expect(state.offset == 9)
  }

  @Test("fewer bytes than were acknowledged are reported as a loss (draft, section Offset)")
  func stateLost() throws {
    let lost = UploadResourceState(
      restoring: .incomplete, offset: 9, promised: 10, synced: 9, length: nil, limits: UploadLimits(), awaitsDisk: false
    )
    #expect(lost.phase == .inactive(.stateLost))
    var state = try Self.holding(5)
    #expect(state.announceOffset() == 5)
    try state.foundKept(8)
    #expect(state.offset == 8)
    #expect(throws: UploadRefusal.deactivated(.stateLost)) { try state.foundKept(4) }
    #expect(state.phase == .inactive(.stateLost))
    var gone = try Self.holding(0)
    #expect(throws: UploadRefusal.deactivated(.stateLost)) { try gone.foundKept(nil) }
  }

  @Test(
    "a request with a digest of its content is appended as a whole, or as far as it arrived if it was interrupted (draft, section Content Digests)"
  )
  func contentDigest() throws {
    var digested = Self.request()
    digested.hasDigest = true
    var state = try Self.resource(digested)
    state.kept(5)
    #expect(state.offset == 0 && state.keptCount == 5)
    #expect(state.announceProgress() == nil)
    // The content does not match its digest, so none of it counts.
    var wrong = state
    wrong.contentRefuted()
    #expect(wrong.offset == 0 && wrong.keptCount == 0)
    var right = state
    right.contentVerified()
    #expect(right.offset == 5)
    #expect(right.contentEnded(1) == .acknowledge)
    var cut = state
    let ended = try cut.retrieve()
    #expect(ended == 1)
    #expect(cut.offset == 5)
    // A client that begins at the announced offset sends it again.
    #expect(state.append(Self.request(0)) == .begin(replacing: 1))
    #expect(state.offset == 0 && state.keptCount == 0)
  }

  @Test("if the disk must be awaited, no offset is reported before the bytes are on it")
  func durability() throws {
    var state = try Self.resource(awaitsDisk: true)
    state.kept(5)
    #expect(state.announceProgress() == nil)
    #expect(state.announceOffset() == 0)
    state.synced(to: 3)
    #expect(state.announceProgress() == 3)
    #expect(state.announceProgress() == nil)
    state.kept(5)
    state.synced(to: 100)
    #expect(state.announceOffset() == 10)
    state.kept(5)
    #expect(state.lostUnsynced() == 10)
    #expect(state.offset == 10)
  }

  @Test("each limit of one request permits a request of exactly its size", arguments: [10, 60] as [UInt64])
  func exactLimits(size: UInt64) throws {
    var limits = UploadLimits()
    (limits.maximumAppendSize, limits.minimumAppendSize) = (60, 10)
    _ = try Self.resource(Self.request(0, .sized(size)), limits: limits)
    var state = try Self.holding(20, limits: limits)
    #expect(state.append(Self.request(20, .sized(size))) == .begin(replacing: nil))
    #expect(state.received(size, by: 2) == .init(count: size, refusal: nil))
    state.ended(2)
    #expect(state.append(Self.request(20, .sized(9))) == .refuse(.contentTooSmall))
    #expect(state.append(Self.request(20, .sized(0))) == .refuse(.contentTooSmall))
    #expect(state.append(Self.request(20, .sized(61))) == .refuse(.contentTooLarge))
    #expect(state.append(Self.request(20, completes: true, .sized(0))) == .begin(replacing: nil))
  }

  @Test("content that exceeds the length that the same request announces is refused, and the upload stays")
  func contentBeyondItsOwnLength() throws {
    for (size, isAccepted) in [(3, true), (4, false), (13, false), (14, false)] as [(UInt64, Bool)] {
      var state = try Self.holding(5)
      let action = state.append(Self.request(5, .sized(size), length: 8))
      #expect(action == (isAccepted ? .begin(replacing: nil) : .refuse(.inconsistentLength)), "\(size)")
      #expect(state.length == (isAccepted ? 8 : nil) && state.phase == .incomplete, "\(size)")
    }
    var limits = UploadLimits()
    limits.maximumSize = 100
    var state = try Self.holding(60, limits: limits)
    #expect(state.append(Self.request(60, .sized(41))) == .refuse(.representationTooLarge))
    #expect(state.append(Self.request(60, .sized(40))) == .begin(replacing: nil))
    #expect(state.received(40, by: 2) == .init(count: 40, refusal: nil))
    // The minimum applies from the first byte on.
    limits.minimumAppendSize = 10
    #expect(throws: UploadRefusal.contentTooSmall) { try Self.resource(Self.request(0, .sized(1)), limits: limits) }
    state = try Self.holding(1, limits: limits)
    #expect(state.append(Self.request(1, .sized(0))) == .refuse(.contentTooSmall))
  }

  @Test("a transfer whose content ends before the length is over, and another one continues")
  func lengthMissedAndContinued() throws {
    var state = try Self.resource(Self.request(completes: true, length: 10))
    state.kept(9)
    #expect(state.contentEnded(1) == .refuse(.inconsistentLength))
    #expect(state.transfer == nil && state.contentEnded(1) == .ignore)
    #expect(state.append(Self.request(9, completes: true)) == .begin(replacing: nil))
    state.kept(1)
    #expect(state.contentEnded(2) == .process && state.length == 10)
  }

  @Test("content beyond the length ends its transfer, and bytes with a pending digest stay kept")
  func lengthExceededWithDigest() throws {
    for hasDigest in [false, true] {
      var request = Self.request(length: 10)
      request.hasDigest = hasDigest
      var state = try Self.resource(request)
      state.kept(10)
      #expect(state.received(1, by: 1) == .init(count: 0, refusal: .inconsistentLength))
      #expect(state.transfer == nil && state.offset == 10 && state.keptCount == 10, "digest \(hasDigest)")
    }
  }

  @Test("content with a verified digest counts once, also while its upload is processed")
  func verifiedOnce() throws {
    var request = Self.request(completes: true)
    request.hasDigest = true
    var state = try Self.resource(request)
    state.kept(5)
    state.contentVerified()
    #expect(state.offset == 5 && state.keptCount == 5)
    #expect(state.contentEnded(1) == .process)
    #expect(state.offset == 5 && state.keptCount == 5 && state.length == 5)
    #expect(state.responded() == 1)
    #expect(state.offset == 5 && state.durable == 5)
  }

  @Test("bytes found at the announced offset are no loss, and bytes that are gone again are not durable")
  func foundExactly() throws {
    var state = try Self.holding(5)
    #expect(state.announceOffset() == 5)
    try state.foundKept(5)
    #expect(state.phase == .incomplete && state.offset == 5)
    try state.foundKept(9)
    state.synced(to: 9)
    #expect(state.durable == 9)
    try state.foundKept(6)
    #expect(state.offset == 6 && state.durable == 6)
    // They no longer matter once all bytes have arrived.
    #expect(state.append(Self.request(6, completes: true)) == .begin(replacing: nil))
    #expect(state.contentEnded(2) == .process)
    try state.foundKept(3)
    #expect(state.phase == .processing && state.offset == 6)
  }

  @Test("a restored upload may have exactly the promised bytes, and only an unfinished one can have lost any")
  func restoredPhases() {
    func restored(
      _ phase: UploadResourceState.Phase, _ offset: UInt64, _ promised: UInt64, length: UInt64? = nil
    ) -> UploadResourceState {
      UploadResourceState(
        restoring: phase, offset: offset, promised: promised, synced: offset, length: length, limits: UploadLimits(),
        awaitsDisk: false)
    }
    for phase in [.incomplete, .processing] as [UploadResourceState.Phase] {
      #expect(restored(phase, 9, 9).phase == phase && restored(phase, 9, 9).isUnfinished)
      #expect(restored(phase, 9, 10).phase == .inactive(.stateLost))
      #expect(restored(phase, 9, 0, length: 9).phase == phase)
      #expect(restored(phase, 9, 0, length: 8).phase == .inactive(.lengthExceeded))
      // What an earlier server may have announced is uncertain.
      #expect(restored(phase, 9, 4).promised == 4 && restored(phase, 9, 4).announced == 9)
    }
    for phase in [.complete, .inactive(.cancelled)] as [UploadResourceState.Phase] {
      #expect(restored(phase, 9, 10, length: 8).phase == phase && !restored(phase, 9, 9).isUnfinished)
      #expect(restored(phase, 9, 4).promised == 9, "nothing can be taken back")
    }
    var state = restored(.incomplete, 9, 9)
    #expect(state.append(Self.request(9)) == .begin(replacing: nil))
    #expect(state.transfer?.number == 2, "the first one was the creation")
  }

  @Test("while an upload is processed or after its end, no offset goes back")
  func goesBackOnlyWhileIncomplete() throws {
    for phase in [.processing, .complete, .inactive(.expired)] as [UploadResourceState.Phase] {
      var state = UploadResourceState(
        restoring: phase, offset: 9, promised: 5, synced: 9, length: nil, limits: UploadLimits(), awaitsDisk: false)
      state.goBack(to: 6)
      #expect(state.offset == 9 && state.phase == phase)
    }
  }

  @Test("an offset is announced once, and what was lost afterwards is a loss")
  func announcedOnce() throws {
    var state = try Self.resource()
    #expect(state.announceProgress() == nil, "0 is known")
    state.kept(1)
    #expect(state.announceProgress() == 1 && state.announceProgress() == nil && state.announced == 1)
    state.kept(2)
    #expect(state.announceOffset() == 3 && state.announced == 3 && state.announceProgress() == nil)
    #expect(state.lostUnsynced() == nil)
    state.synced(to: 3)
    #expect(state.lostUnsynced() == 3 && state.durable == 3)
    state.synced(to: 1)
    #expect(state.durable == 3, "what is on the disk stays there")
  }
}
