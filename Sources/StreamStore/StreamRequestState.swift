// One request that brings bytes of a stream as a pure state machine: where its body belongs, which of its bytes are
// compared and which are stored, when a hole is made, and who hears of that. No I/O, no clock.

internal import StreamServing

/// Where one request stands. Each method takes an event and returns what is to be done.
struct StreamRequestState: Equatable {
  enum Phase: Equatable {
    case new
    /// The stream is being completed by another request.
    case waiting
    /// The body comes, and belongs there.
    case streaming(StreamPlacement)
    case done
  }

  /// What is known of the stream's recording when something happens.
  struct Recording: Equatable {
    /// The stream offset behind the last byte that is stored.
    var length: UInt64
    var isComplete: Bool
  }

  private(set) var phase = Phase.new
  /// Where the body begins in the stream.
  private(set) var offset: UInt64 = 0
  /// How many bytes of the body are compared or stored.
  private(set) var keptCount: UInt64 = 0
  /// Whether these end before the end of what is stored.
  private(set) var isInside = false
  /// How many bytes the request has stored.
  private(set) var storedCount: UInt64 = 0
  /// How long the stream was when the request took it over.
  private var lengthBefore: UInt64 = 0
  /// Whether what comes now may be dropped again, because its digest is not checked yet.
  private(set) var isHeld = false
  /// Whether the request has made a hole of which the uploads in front of it were not told.
  private var hasMadeHole = false
  /// Whether the request begins behind a hole that it has not made yet, and was not reported therefore.
  private var isUnreported = false
  private var batch = Batch()

  /// Bytes that have just come.
  private struct Batch: Equatable {
    var count = 0
    /// How many of them repeat what is stored.
    var repeated = 0
    var limit: Limit?
  }

  // MARK: Beginning

  /// The request's fields say where its body begins.
  mutating func begins(at offset: UInt64) { self.offset = offset }

  /// Another request is completing the stream.
  mutating func waits() { phase = .waiting }

  /// The request is answered, or goes on without this.
  mutating func ends() { phase = .done }

  enum Beginning: Equatable {
    case conflict(StreamConflict)
    /// The body is wanted.
    case accept
    /// The body is wanted if there is room for a hole of this length: ``hasRoom()``.
    case acceptBehindHole(UInt64)
  }

  /// The stream is open.
  ///
  /// - Parameters:
  ///   - seriesStart: the stream offset from which on its recordings can be continued.
  ///   - maximumHole: the largest hole that a request may leave.
  mutating func opened(_ recording: Recording, seriesStart: UInt64, maximumHole: UInt64) -> Beginning {
    lengthBefore = recording.length
    guard offset >= seriesStart else { return .conflict(.beforeRecording) }
    let beginning = StreamPlacement.begin(
      offset: offset, length: recording.length, isComplete: recording.isComplete, maximumHole: maximumHole)
    switch beginning {
    case .beyondEnd: return .conflict(.beyondEnd)
    case .holeTooLarge: return .conflict(.largeHole)
    case .at(let placement):
      enter(placement)
      return .accept
    case .afterHole(let placement, let length):
      // It is made with the first byte behind it: until then others may bring what is missing.
      isUnreported = true
      enter(placement)
      return .acceptBehindHole(length)
    }
  }

  /// The stream is open again, for a request that was begun before.
  ///
  /// - Parameters:
  ///   - count: how many bytes of its body have come. They were compared, or stored, then.
  ///   - firstOffset: where a request may begin at the earliest.
  /// - Returns: false if the stream is not the one that the request was begun in.
  mutating func reopened(_ recording: Recording, at count: UInt64, firstOffset: UInt64) -> Bool {
    lengthBefore = recording.length
    guard offset >= firstOffset, recording.length >= offset || !recording.isComplete else { return false }
    let count = min(count, recording.length - min(recording.length, offset))
    enter(StreamPlacement(cursor: offset + count, length: max(offset, recording.length)))
    return true
  }

  /// Whether the beginning is reported now. If not, it is with the first byte.
  var reportsBeginning: Bool { !isUnreported }

  /// The next byte of the body belongs there.
  private mutating func enter(_ placement: StreamPlacement) {
    phase = .streaming(placement)
    keptCount = placement.cursor - offset
    isInside = placement.cursor < placement.length
  }

  // MARK: Bytes

  enum Limit: Equatable {
    /// The stream would be longer than it may be.
    case size
    /// The quotas leave no room.
    case quota
  }

  enum Step: Equatable {
    /// Says whether the next `count` bytes are those that are stored at `offset`: ``compared(_:_:)``.
    case compare(count: Int, offset: UInt64)
    /// Reserves this much room, in bytes: ``reserved(_:_:)``.
    case reserve(UInt64)
    /// Stores the first `count` bytes without those that are skipped at `offset`, behind a hole if that is not the end:
    /// ``wrote(_:_:)``.
    case write(count: Int, skipped: Int, offset: UInt64)
    /// All that can be kept is, and what does not fit is not.
    case done(Limit?)
    /// The room that was reserved, and is not used, goes back; then as with ``done(_:)``.
    case settle(Limit?)
    case conflict(StreamConflict)
  }

  /// Bytes have come.
  ///
  /// - Parameter sizeRoom: how many of them the stream may become longer by; nil if nobody counts.
  mutating func received(_ count: Int, _ recording: Recording, sizeRoom: UInt64?) -> Step {
    guard case .streaming(let placement) = phase else { return .done(nil) }
    batch = Batch(count: count)
    if let sizeRoom { limit(to: Int(clamping: sizeRoom), .size) }
    batch.repeated = placement.repeated(batch.count)
    if batch.repeated > 0 { return .compare(count: batch.repeated, offset: placement.cursor) }
    return storing(placement, recording)
  }

  private mutating func limit(to count: Int, _ limit: Limit) {
    guard count < batch.count else { return }
    (batch.count, batch.limit) = (count, limit)
  }

  /// The bytes that repeat what is stored were compared with it.
  mutating func compared(_ isSame: Bool, _ recording: Recording) -> Step {
    guard case .streaming(var placement) = phase else { return .done(nil) }
    guard isSame else { return .conflict(.differentBytes) }
    placement.verified(batch.repeated)
    enter(placement)
    return storing(placement, recording)
  }

  private func storing(_ placement: StreamPlacement, _ recording: Recording) -> Step {
    guard batch.count > batch.repeated else { return .done(batch.limit) }
    guard !recording.isComplete else { return .conflict(.surplusBytes) }
    // A hole counts like bytes that were sent.
    return .reserve(Self.hole(placement, recording) + UInt64(batch.count - batch.repeated))
  }

  private static func hole(_ placement: StreamPlacement, _ recording: Recording) -> UInt64 {
    placement.cursor - min(placement.cursor, recording.length)
  }

  /// This much room was reserved, in bytes, including that of a hole.
  mutating func reserved(_ granted: UInt64, _ recording: Recording) -> Step {
    guard case .streaming(let placement) = phase else { return .done(nil) }
    let hole = Self.hole(placement, recording)
    limit(to: batch.repeated + Int(clamping: granted - min(granted, hole)), .quota)
    guard hole == 0 || batch.count > batch.repeated else { return .settle(batch.limit) }
    return .write(count: batch.count, skipped: batch.repeated, offset: placement.cursor)
  }

  /// What follows from bytes that were stored.
  struct Stored: Equatable {
    /// Whether none was, and the hole in front of them is not there either.
    var isNothing = false
    /// Whether the request is reported to have begun now.
    var reportsBeginning = false
    /// Whether the uploads in front of the hole are over now.
    var overtakes = false
    var limit: Limit?
  }

  /// - Parameter former: the recording before.
  mutating func wrote(_ count: Int, _ former: Recording) -> Stored {
    guard case .streaming(var placement) = phase else { return Stored(isNothing: true) }
    let isBehindHole = Self.hole(placement, former) > 0
    if count == 0, isBehindHole { return Stored(isNothing: true, limit: batch.limit) }
    if isBehindHole { hasMadeHole = true }
    var stored = Stored(reportsBeginning: isUnreported, limit: batch.limit)
    isUnreported = false
    placement.stored(count)
    storedCount += UInt64(count)
    stored.overtakes = overtakes()
    enter(placement)
    return stored
  }

  /// Whether the uploads in front of a hole are over now: it stays.
  private mutating func overtakes() -> Bool {
    guard !isHeld else { return false }
    return leaves()
  }

  /// The request lets go of the stream. Whether the uploads in front of its hole are over.
  mutating func leaves() -> Bool {
    defer { hasMadeHole = false }
    return hasMadeHole
  }

  // MARK: Taking back

  /// What comes from now on may be dropped again.
  mutating func holds() { isHeld = true }

  /// It will not be. Whether the uploads in front of a hole are over now.
  mutating func releases() -> Bool {
    isHeld = false
    guard case .streaming = phase else { return false }
    return overtakes()
  }

  /// The bytes of the request beyond `count` are to be dropped: how long the stream is without them. What was there
  /// before the request stays, for of that, bytes were only compared. A hole goes with the bytes behind it.
  func length(droppingTo count: UInt64) -> UInt64 { count == 0 ? lengthBefore : max(offset + count, lengthBefore) }

  /// All that the request has stored is to be dropped: how many bytes of its body are kept then.
  var countBefore: UInt64 { lengthBefore - min(lengthBefore, offset) }

  /// They were.
  mutating func dropped(to count: UInt64) {
    let length = length(droppingTo: count)
    if length < offset { hasMadeHole = false }
    if case .streaming = phase {
      enter(StreamPlacement(cursor: offset + count, length: max(length, offset + count)))
    }
    keptCount = count
  }

  // MARK: End

  enum End: Equatable {
    case ignore
    /// Gives the response again: a client that lost it asks for it.
    case acknowledge
    /// The stream is complete.
    case finish
    /// The stream ends behind bytes that never came, without a byte after them: makes a hole of this length first, and
    /// then asks again.
    case makeHole(UInt64)
    case conflict(StreamConflict)
  }

  /// The body is complete.
  ///
  /// - Parameter mayBeFilled: whether an unfinished upload may still bring what is missing.
  mutating func ended(_ recording: Recording, mayBeFilled: @autoclosure () -> Bool) -> End {
    guard case .streaming(let placement) = phase else { return .ignore }
    if placement.cursor > recording.length {
      return mayBeFilled() ? .conflict(.mayStillCome) : .makeHole(placement.cursor - recording.length)
    }
    phase = .done
    return recording.isComplete ? .acknowledge : .finish
  }

  /// A hole was made without a byte behind it.
  mutating func madeHole() { hasMadeHole = true }
}

extension StreamConflict {
  /// What it means for an upload.
  var refusal: StreamRefusal {
    switch self {
    case .beforeRecording, .beyondEnd, .largeHole: .misplaced
    case .differentBytes, .surplusBytes: .contradicted
    case .mayStillCome: .early
    }
  }
}
