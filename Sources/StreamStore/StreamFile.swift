// A stream of a directory while one of its requests is in progress: its file, its length, its gaps, and when it is
// divided.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import Recordings
internal import StreamServing

/// A stream in a file of the store's directory.
final class StreamFile: StoredStream {
  private(set) var name: StreamName
  /// The `.part`, or the complete file for reading only.
  private(set) var stored: OpenFile
  let standing: StreamStanding
  /// Whether it is synced as it grows, so that a ``SyncedMark`` may limit its bytes.
  private var mayBeMarked = true
  private(set) var length: UInt64
  private(set) var gaps = GapRecord.Summary()
  /// How many lines the recording's `.gaps` had when it was read.
  private var gapLines = 0
  /// Whether the disk has the file's name.
  var isNameSynced = false
  /// The line about this recording in the stream's log; nil if there is no log.
  private(set) var part: RecordingPart?
  /// Where the recordings end that were closed before this one; 0 if there are none, or this one is complete.
  private let closedEnd: UInt64
  var start: UInt64 { part?.start ?? 0 }
  var seriesStart: UInt64 { part?.seriesStart ?? 0 }
  private let store: FileStore
  /// The sender's description of the stream.
  private(set) var description: StreamDescription?
  /// The head of a WAV file, once it has arrived completely.
  private var head: WAVHead?
  /// How many bytes of samples the recording contains until a time of day. The inner value is nil if none divides it,
  /// the outer one if this has not been determined yet.
  private var untilTime: UInt64??
  /// How much is written at a time until the head has arrived.
  private static let headStep: UInt64 = 128
  /// Whether the file does not begin with a head, whatever its name.
  private var isHeadless = false
  /// Where the recording began before this request moved its beginning; nil if it has not.
  private var formerBeginning: UInt64?
  private var splitFailure: SystemError?
  /// The pause before the next attempt, and its time; nil if no attempt has failed.
  private var splitRetry: (pauses: RetryPauses, at: MonotonicInstant)?

  /// - Parameter size: the size of the file, in bytes.
  init(
    _ store: FileStore, _ name: StreamName, _ file: OpenFile, part: RecordingPart?,
    _ standing: StreamStanding = .growing,
    size: UInt64 = 0
  ) throws(SystemError) {
    self.store = store
    self.name = name
    stored = file
    self.part = part
    self.standing = standing
    if standing != .complete, let part, part.number > 1 {
      closedEnd = try store.parts.lines(of: name.base).closedEnd(before: part.number)
    } else {
      closedEnd = 0
    }
    let header = part?.headerLength ?? 0
    length = (part?.start ?? 0) + (size - min(size, header))
    try readGaps()
  }

  private func readGaps() throws(SystemError) {
    let text = try store.gapText(name) ?? []
    gaps = GapRecord.summary(of: text, length: length)
    gaps.addPrevious(of: part)
    gapLines = text.count { $0 == Octet.lineFeed }
  }

  var extent: RecordingExtent {
    RecordingExtent(
      start: start, seriesStart: seriesStart, length: length, gaps: gaps, gapLines: gapLines, closedEnd: closedEnd)
  }

  var contentCount: UInt64 { store.contentCount(of: self) }

  /// The position in the file of the byte at a stream offset. No request begins before ``start``.
  func position(of offset: UInt64) -> UInt64 { offset - min(offset, start) + (part?.headerLength ?? 0) }

  var size: UInt64 { position(of: length) }
  var place: FilePlace? { stored.place }

  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]? {
    var stretches: [FileStretch] = []
    if range.lowerBound < start {
      let earlier = try store.earlierStretches(name, range.clamped(to: 0..<start))
      for stretch in earlier {
        guard let file = stretch.file else { return nil }
        stretches.append(FileStretch(file, stretch.range))
      }
    }
    let rest = range.clamped(to: start..<UInt64.max)
    stretches.append(FileStretch(stored, position(of: rest.lowerBound)..<position(of: rest.upperBound)))
    return stretches
  }

  func check() throws(SystemError) {
    guard standing != .complete else { return }
    try stored.check(length: position(of: length))
  }

  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool
  ) -> StoredBytes {
    let before = length
    do throws(SystemError) {
      if offset > before { try makeHole(length: offset - before) }
    } catch {
      return StoredBytes(count: 0, error: error, splitFailure: splitFailure)
    }
    var stored = StoredBytes(count: 0)
    stored.error = append(bytes, pieces, skipping: skipped, at: offset, maySplit: maySplit, &stored)
    stored.splitFailure = splitFailure
    if stored.count == 0, offset > before {
      // No byte after the hole was stored. If the hole cannot be removed now, it is when the stream is opened next.
      try? truncate(to: before)
      if formerBeginning == nil { length = before }
    }
    return stored
  }

  /// Stores the bytes at the end of the recording, and of the recordings in which the stream continues. Returns the
  /// error that prevented the rest.
  private func append(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool,
    _ stored: inout StoredBytes
  ) -> SystemError? {
    let count = pieces.reduce(0) { $0 + $1.count } - skipped
    do throws(SystemError) {
      while stored.count < count {
        try check()
        // As much as the recording can take. The rest belongs to the next one.
        let room = maySplit ? splitIfFull(&stored.splits) : nil
        let limit = Int(min(UInt64(count - stored.count), room ?? .max))
        let descriptor = try self.stored.acquire()
        defer { self.stored.release() }
        let result = BodyWriter.write(
          descriptor, bytes, limit == count ? pieces : pieces.prefix(octets: skipped + stored.count + limit),
          skipping: skipped + stored.count, at: position(of: offset + UInt64(stored.count)))
        stored.count += result.written
        length = offset + UInt64(stored.count)
        if let error = result.error { return error }
      }
      return nil
    } catch {
      return error
    }
  }

  /// How many more bytes the recording may take. If it is full, the stream is first moved to the next one. nil for any
  /// number.
  private func splitIfFull(_ splits: inout [SplitRecording]) -> UInt64? {
    guard let split = RecordingSplit.shortest(store.split, description.flatMap { RecordingSplit($0) }),
      splitRetry.map({ $0.at <= .now }) ?? true,
      name.part < RecordingPart.largestNumber, name.finalExtension == ".wav", !isHeadless
    else { return nil }
    let size = position(of: length)
    if head == nil, size > 0 { head = store.wavHead(of: stored) }
    guard let head else {
      isHeadless = size >= WAVHead.maximumLength
      // Few samples may follow with the head, because they could exceed the limit of a short recording.
      return isHeadless ? nil : Self.headStep
    }
    let room = split.room(head, fileLength: size, untilTime: untilTime(split, head))
    if room != 0 { return room }
    // A hole is removed if no byte after it can be stored, so the recording with the hole must not be finished yet.
    if gaps.holesEnd == length { return UInt64(head.frameLength) }
    do throws(SystemError) {
      splits.append(try store.split(self, head))
      (splitFailure, splitRetry) = (nil, nil)
      return split.room(head, fileLength: position(of: length), untilTime: untilTime(split, head))
    } catch {
      // The recording continues, and becomes longer than it should be.
      var pauses = splitRetry?.pauses ?? RecordingSplit.retryPauses
      let time = MonotonicInstant.now + pauses.next()
      (splitFailure, splitRetry) = (error, (pauses, time))
      return nil
    }
  }

  private func untilTime(_ split: RecordingSplit, _ head: WAVHead) -> UInt64? {
    if let untilTime { return untilTime }
    let end = store.endByClock(of: self, split, head)
    untilTime = end.map { position(of: $0) - min(position(of: $0), UInt64(head.received.count)) }
    return untilTime ?? nil
  }

  /// The stream continues in another file.
  func continueIn(_ name: StreamName, _ file: OpenFile, _ part: RecordingPart) {
    (self.name, stored, self.part) = (name, file, part)
    (isNameSynced, untilTime, formerBeginning) = (false, nil, nil)
    // If this fails, a power failure removes bytes that were not synced.
    if !mayBeMarked { try? file.removeSyncedMark() }
  }

  /// Bytes follow that are not synced as they arrive, in this file or in the next.
  func removeMark() throws(SystemError) {
    mayBeMarked = false
    try stored.removeSyncedMark()
  }

  /// The recording has begun once more, in a new file.
  func begin(as new: StreamFile) {
    guard let part = new.part else { return }
    continueIn(new.name, new.stored, part)
    (length, gaps) = (new.length, new.gaps)
  }

  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool {
    let earlier = Int(min(UInt64(count), start - min(start, offset)))
    if earlier > 0, try !store.matchesEarlier(name, bytes, pieces, count: earlier, at: offset) { return false }
    if earlier == count { return true }
    let descriptor = try stored.acquire()
    defer { stored.release() }
    return try BodyWriter.matches(
      descriptor, bytes, earlier == 0 ? pieces : pieces.dropped(octets: earlier), count: count - earlier,
      at: position(of: offset + UInt64(earlier)), of: stored)
  }

  func truncate(to length: UInt64) throws(SystemError) {
    // The recording contains only bytes of this request, all of which are removed.
    if let formerBeginning, length < firstReceived, try moveBeginning(to: formerBeginning) {
      return
    }
    guard length >= start else { throw SystemError(operation: "take back bytes of \(name.partial)", code: ESTALE) }
    try stored.check(length: position(of: self.length))
    try stored.truncate(to: position(of: length), "ftruncate of a stream")
    // Set this first, because this is called again if the rest fails.
    self.length = length
    if length < gaps.holesEnd {
      let text = try store.gapText(name) ?? []
      try store.trimGaps(name, to: GapRecord.remainder(of: text, from: firstReceived, length: length))
      try readGaps()
    }
  }

  func removedRefused() -> Bool {
    guard isNameSynced || isEmpty else { return false }
    store.refusals.forgetRecording(name)
    return true
  }

  private var firstReceived: UInt64 { part?.firstReceived ?? 0 }

  /// Whether it is a next part that has received no byte, so that it may begin at any offset.
  private var isUnbegun: Bool {
    guard standing != .complete, let part else { return false }
    return part.series == nil && part.number > 1 && length == part.firstReceived
  }

  /// Returns false if the recording cannot begin elsewhere.
  private func moveBeginning(to offset: UInt64) throws(SystemError) -> Bool {
    guard let moved = try store.moveBeginning(of: self, to: offset) else { return false }
    begin(as: moved)
    // If this fails, only the sidecar is less complete.
    if let description { try? store.describe(self, description) }
    return true
  }

  func makeHole(length: UInt64) throws(SystemError) {
    let beginning = formerBeginning ?? firstReceived
    // An earlier recording may contain the bytes before the offset. Otherwise the part lists them as a gap before it.
    if isUnbegun, try moveBeginning(to: self.length + length) {
      formerBeginning = beginning
      return
    }
    try store.makeHole(self, length: length)
    self.length += length
    gaps.missing += length
    gaps.holesEnd = self.length
  }

  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void) {
    store.synchronize(self, loop: loop, completion: completion)
  }

  func describe(_ description: StreamDescription) throws(SystemError) {
    // Without sidecars, nothing would record the place of a file in its stream.
    self.description = store.hasSidecars ? description : nil
    untilTime = nil
    try store.describe(self, description)
  }

  func finish(_ ending: StreamEnding, on loop: EventLoop, _ completion: @escaping (UnfinishedStream?) -> Void) {
    switch ending {
    case .complete(let isLive, let sha256):
      store.finish(
        self, isLive ? .live : .file, sha256: sha256, forgetsLog: name.part == 1, loop: loop, completion: completion)
    case .interrupted(let owner, let isTrusted):
      store.closeInterrupted(self, for: owner, isTrusted: isTrusted, loop: loop, completion: completion)
    }
  }
}
