// One request that stores bytes of a stream, as a pure state machine: where its body belongs, which bytes are compared
// and which are stored, when a hole is made, and what is reported. No I/O, no clock.

internal import StreamServing

/// The state of one request. Each method takes an event and returns an action.
struct StreamRequestState: Equatable {
  enum Phase: Equatable {
    case new
    /// The stream is being completed by another request.
    case waiting
    /// The body is arriving, and belongs there.
    case streaming(StreamPlacement)
    case done
  }

  /// The state of the stream's recording at the time of an event.
  struct Recording: Equatable {
    /// The stream offset after the last stored byte.
    var length: UInt64
    var isComplete: Bool
  }

  private(set) var phase = Phase.new
  /// Where the body begins in the stream.
  private(set) var offset: UInt64 = 0
  /// How many bytes of the body are compared or stored.
  private(set) var keptCount: UInt64 = 0
  /// Whether the compared bytes end before the end of the stored ones.
  private(set) var isInside = false
  /// How many bytes the request has stored.
  private(set) var storedCount: UInt64 = 0
  /// The length of the stream when the request took it over.
  private var lengthBefore: UInt64 = 0
  /// Whether new bytes may be dropped again, because their digest is not checked yet.
  private(set) var isHeld = false
  /// Whether the request has made a hole that was not reported to the uploads before it.
  private var hasMadeHole = false
  /// Whether the request begins after a hole that it has not made yet, and was therefore not reported.
  private var isUnreported = false
  private var batch = Batch()

  /// Bytes that have just arrived.
  private struct Batch: Equatable {
    var count = 0
    /// How many of them repeat stored ones.
    var repeated = 0
    var limit: Limit?
  }

  // MARK: Beginning

  /// The request's fields contain the offset at which its body begins.
  mutating func begins(at offset: UInt64) { self.offset = offset }

  /// Another request is completing the stream.
  mutating func waits() { phase = .waiting }

  /// The request is answered, or continues without this.
  mutating func ends() { phase = .done }

  enum Beginning: Equatable {
    case conflict(StreamConflict)
    /// The body is wanted.
    case accept
    /// The body is requested if there is room for a hole of this length: ``hasRoom()``.
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
      // The first byte after the hole makes it. Until then others may send the missing bytes.
      isUnreported = true
      enter(placement)
      return .acceptBehindHole(length)
    }
  }

  /// The stream is open again, for a request that was begun before.
  ///
  /// - Parameters:
  ///   - count: how many bytes of its body have arrived. They were compared or stored then.
  ///   - firstOffset: the smallest offset at which a request may begin.
  /// - Returns: false if the stream is not the one in which the request was begun.
  mutating func reopened(_ recording: Recording, at count: UInt64, firstOffset: UInt64) -> Bool {
    lengthBefore = recording.length
    guard offset >= firstOffset, recording.length >= offset || !recording.isComplete else { return false }
    let count = min(count, recording.length - min(recording.length, offset))
    enter(StreamPlacement(cursor: offset + count, length: max(offset, recording.length)))
    return true
  }

  /// Whether the beginning is reported now. Otherwise it is reported with the first byte.
  var reportsBeginning: Bool { !isUnreported }

  /// Sets the place of the next byte of the body.
  private mutating func enter(_ placement: StreamPlacement) {
    phase = .streaming(placement)
    keptCount = placement.cursor - offset
    isInside = placement.cursor < placement.length
  }

  // MARK: Bytes

  enum Limit: Equatable {
    /// The stream would exceed its maximum length.
    case size
    /// The quotas leave no room.
    case quota
  }

  enum Step: Equatable {
    /// Compare the next `count` bytes with the stored ones at `offset`, and call ``compared(_:_:)``.
    case compare(count: Int, offset: UInt64)
    /// Reserve this much room, in bytes, and call ``reserved(_:_:)``.
    case reserve(UInt64)
    /// Store the first `count` bytes, without the skipped ones, at `offset`, after a hole if that is not the end. Then
    /// call ``wrote(_:_:)``.
    case write(count: Int, skipped: Int, offset: UInt64)
    /// All bytes that can be kept are kept. A limit excludes the rest.
    case done(Limit?)
    /// Return the unused part of the reservation, and then continue as with ``done(_:)``.
    case settle(Limit?)
    case conflict(StreamConflict)
  }

  /// Bytes have arrived.
  ///
  /// - Parameter sizeRoom: by how many of them the stream may grow; nil for no limit.
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

  /// The repeated bytes were compared with the stored ones.
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
    // A hole counts like received bytes.
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

  /// The consequences of stored bytes.
  struct Stored: Equatable {
    /// Whether none was stored, so that the hole before them does not exist either.
    var isNothing = false
    /// Whether the beginning of the request is reported now.
    var reportsBeginning = false
    /// Whether the uploads before the hole are over now.
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

  /// Whether the uploads before a hole are over now, because the hole stays.
  private mutating func overtakes() -> Bool {
    guard !isHeld else { return false }
    return leaves()
  }

  /// The request leaves the stream. Returns whether the uploads before its hole are over.
  mutating func leaves() -> Bool {
    defer { hasMadeHole = false }
    return hasMadeHole
  }

  // MARK: Taking back

  /// Bytes from now on may be dropped again.
  mutating func holds() { isHeld = true }

  /// The bytes will not be dropped. Returns whether the uploads before a hole are over now.
  mutating func releases() -> Bool {
    isHeld = false
    guard case .streaming = phase else { return false }
    return overtakes()
  }

  /// The length of the stream if the request's bytes beyond `count` are dropped. Bytes that existed before the request
  /// stay, because they were only compared. A hole is dropped with the bytes after it.
  func length(droppingTo count: UInt64) -> UInt64 { count == 0 ? lengthBefore : max(offset + count, lengthBefore) }

  /// How many bytes of the request's body remain if all bytes that it has stored are dropped.
  var countBefore: UInt64 { lengthBefore - min(lengthBefore, offset) }

  /// The bytes of the request beyond `count` were dropped.
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
    /// Send the response again, because a client that lost it asks for it.
    case acknowledge
    /// The stream is complete.
    case finish
    /// The stream ends after missing bytes, without a byte after them. Make a hole of this length first, and then ask
    /// again.
    case makeHole(UInt64)
    case conflict(StreamConflict)
  }

  /// The body is complete.
  ///
  /// - Parameter mayBeFilled: whether an unfinished upload may still send the missing bytes.
  mutating func ended(_ recording: Recording, mayBeFilled: @autoclosure () -> Bool) -> End {
    guard case .streaming(let placement) = phase else { return .ignore }
    if placement.cursor > recording.length {
      return mayBeFilled() ? .conflict(.mayStillCome) : .makeHole(placement.cursor - recording.length)
    }
    phase = .done
    return recording.isComplete ? .acknowledge : .finish
  }

  /// A hole was made without a byte after it.
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
