// Stores a running stream in several files, one after another.
//
// The next file is made, with a copy of the header, before the log states that the stream continues in it. From then on
// the previous file no longer changes. The remaining steps for it (its true sizes, its sidecar, its final name) can be
// done at any time, by this server or by the next one. So each byte is in exactly one file at any moment.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import Recordings
internal import StreamServing
internal import Synchronization

/// The file of a recording whose stream continues in the next one.
private struct SplitFile: Sendable {
  var finishing: FinishingRecording
  var file: OpenFile
  var finish: SplitFinish
}

/// Finishes a recording whose stream continues in the next one, unless the stream is discarded before. Any thread.
final class SplitFinish: Sendable {
  private enum State { case waiting, atWork, discarded }
  private let state = Lock(State.waiting)

  /// Returns false if the stream was discarded, or the recording is being finished.
  func begin() -> Bool {
    state.withLock { state in
      guard state == .waiting else { return false }
      state = .atWork
      return true
    }
  }

  /// The attempt failed, and may be repeated.
  func end() { state.withLock { if $0 == .atWork { $0 = .waiting } } }

  /// Prevents all further steps. A step under way is completed first, because it must not affect a new stream of the
  /// same name.
  func discard() { state.withLock { $0 = .discarded } }

  /// Calls `body` before the stream can be discarded, or not at all.
  func unlessDiscarded(_ body: () -> Void) { state.withLock { if $0 != .discarded { body() } } }

  var isDiscarded: Bool { state.withLock { $0 == .discarded } }

  func guarding(_ step: @escaping DiskSync.Step) -> DiskSync.Step {
    { [self] () throws(SystemError) in
      try state.withLock { (state) throws(SystemError) in
        guard state != .discarded else {
          throw SystemError(operation: "finish a recording that was discarded", code: ECANCELED)
        }
        return try step()
      }
    }
  }
}

extension FileStore {
  /// The number of lines from which the lines of long finished recordings are removed from a stream's log.
  private static let longLog = 48
  /// How many of the last lines stay.
  private static let keptLines = 16

  // MARK: Splitting

  /// Continues a stream in a next file, from its present end on. If this fails, the stream continues in its present
  /// file.
  func split(_ stream: StreamFile, _ head: WAVHead) throws(SystemError) -> SplitRecording {
    let (name, end, size) = (stream.name, stream.length, stream.position(of: stream.length))
    guard end <= StreamPlacement.largestOffset else {
      throw SystemError(operation: "split a recording at the offset \(end)", code: EFBIG)
    }
    try stream.stored.check(length: size)
    var closed = stream.part ?? RecordingPart(file: name.final)
    (closed.file, closed.number, closed.end) = (name.final, name.part, end)
    if !name.streamID.isEmpty { closed.streamID = name.streamID }
    (closed.isSplit, closed.head) = (true, head.bytes)
    let next = try nextName(after: name, beginning: head.bytes)
    var part = RecordingPart(file: next.final)
    (part.number, part.streamID, part.owner) = (next.part, closed.streamID, closed.owner)
    (part.start, part.firstReceived, part.headerLength) = (end, end, UInt64(head.bytes.count))
    part.missingBefore = stream.gaps.missing
    part.series = .init(start: closed.seriesStart, holesEnd: stream.gaps.holesEnd)

    let file = try beginFile(next, head.bytes)
    // A search for what an earlier server has split off must not find this one.
    let finish = SplitFinish()
    splits.withLock { $0[name.fileBase] = finish }
    do throws(SystemError) {
      try inheritSidecar(from: name, to: next)
      try log(closed, part, of: name.base)
    } catch {
      splits.withLock { $0[name.fileBase] = nil }
      unlinkat(directory, next.pendingSidecar, 0)
      unlinkat(directory, next.partial, 0)
      throw error
    }
    syncLog(name)
    let left = SplitFile(
      finishing: FinishingRecording(name: name, start: stream.start, length: end, size: size, ending: .split),
      file: stream.stored, finish: finish)
    let split = SplitRecording(
      name: name, start: stream.start, length: end,
      missing: stream.gaps.missing - min(stream.gaps.missing, closed.missingBefore),
      finish: { [self] loop, completion in finishSplit(left, loop: loop, completion: completion) })
    stream.continueIn(next, file, part)
    // If this fails, only the sidecar is less complete.
    if let description = stream.description { try? describe(stream, description) }
    return split
  }

  /// Makes the file of a next part, which begins with `bytes`.
  private func beginFile(_ name: StreamName, _ bytes: [UInt8]) throws(SystemError) -> OpenFile {
    try clearCompanions(of: name)
    let file = try createNext(name, bytes)
    try writeBeginning(bytes, file, name)
    return file
  }

  /// Makes the file of a next part, which will begin with `bytes`. Replaces a file that has no more than that.
  func createNext(_ name: StreamName, _ bytes: [UInt8]) throws(SystemError) -> OpenFile {
    if isThere(name.partial), !hasContent(name, beyond: bytes) { unlinkat(directory, name.partial, 0) }
    return try create(name)
  }

  /// Writes the beginning of a next part.
  func writeBeginning(_ bytes: [UInt8], _ file: OpenFile, _ name: StreamName) throws(SystemError) {
    let descriptor = try file.acquire()
    defer { file.release() }
    do throws(SystemError) {
      try writeAll(bytes, to: descriptor, at: 0, "write \(name.partial)")
    } catch {
      unlinkat(directory, name.partial, 0)
      throw error
    }
  }

  /// The name of the next part, whose file begins with `bytes`.
  ///
  /// After a power failure, files of the stream may exist that its log has lost. They keep their names. A file that has
  /// no more than the beginning is what a server left that died before the log stated that the stream continues there.
  func nextName(after name: StreamName, beginning bytes: [UInt8]) throws(SystemError) -> StreamName {
    var next = name
    repeat {
      next.part += 1
    } while try isTaken(next, beginning: bytes)
    return next
  }

  /// Whether something else has one of the names of a next part's files. There is no part after the last one.
  private func isTaken(_ name: StreamName, beginning bytes: [UInt8]) throws(SystemError) -> Bool {
    guard name.part < RecordingPart.largestNumber else { return false }
    if isThere(name.final) || hasContent(name, beyond: bytes) { return true }
    do throws(SystemError) {
      try checkCompanions(of: name)
      return false
    } catch {
      if error.isObstacle { return true }
      throw error
    }
  }

  /// Whether an unfinished file of that name exists which is not a beginning of `bytes`. Also true if the file cannot
  /// be read.
  func hasContent(_ name: StreamName, beyond bytes: [UInt8]) -> Bool {
    guard isThere(name.partial) else { return false }
    guard let (file, size) = try? openExisting(name.partial, O_RDONLY) else { return true }
    return size > bytes.count || beginning(of: file, count: Int(size)) != Array(bytes.prefix(Int(size)))
  }

  private func log(_ closed: RecordingPart, _ next: RecordingPart, of base: String) throws(SystemError) {
    let lines = try parts.lines(of: base)
    var (closed, next) = (closed, next)
    closed.otherWriters = lines.last?.otherWriters ?? .nobody
    next.otherWriters = closed.otherWriters
    guard lines.count >= Self.longLog else {
      try parts.append(closed, next, to: base)
      return
    }
    // A recording that an interruption has closed counts against the quotas for as long as it is there. The first one
    // of a series shows what is removed with the stream. One without its final name has still to be finished.
    let (current, name) = (lines.current, StreamName(base: base))
    let old = lines.dropLast(Self.keptLines).filter { line in
      guard current[line.number] == line else { return false }
      return line.series == nil || (line.end != nil && !line.isSplit)
        || isThere(name.recording(line.number).partial)
    }
    try parts.rewrite(
      old + lines.suffix(Self.keptLines) + [closed, next], of: base, isSynced: durability != .none)
  }

  // MARK: Finishing

  /// Gives its final name to a recording whose stream continues in another file. `completion` is called on the loop's
  /// thread.
  private func finishSplit(
    _ split: SplitFile, loop: EventLoop, completion: @escaping (SplitOutcome) -> Void
  ) {
    // Only the loop's thread uses it. The worker merely passes it back.
    nonisolated(unsafe) let completion = completion
    // If nothing is synced, the steps are performed here, before the loop ends.
    finishSplit(split, outlivesLoop: durability != .none) { outcome in
      // The stream may have been discarded and begun again since the worker finished.
      loop.execute { completion(split.finish.isDiscarded ? .discarded : outcome) }
    }
  }

  /// - Parameters:
  ///   - outlivesLoop: whether steps may be performed when the loops have ended and another server may use the
  ///     directory.
  ///   - completion: called on any thread.
  private func finishSplit(
    _ split: SplitFile, outlivesLoop: Bool, _ completion: @escaping @Sendable (SplitOutcome) -> Void
  ) {
    let (name, finish) = (split.finishing.name, split.finish)
    guard finish.begin() else { return completion(.discarded) }
    let ended: @Sendable (SplitOutcome) -> Void = { [self] outcome in
      finish.end()
      if case .finished = outcome {
        leaveSplit(name, finish)
        // It counted against a quota if an earlier server had split it off.
        accounts?.remove(name)
      }
      completion(finish.isDiscarded ? .discarded : outcome)
    }
    // The previous server may have just finished it.
    guard isThere(name.partial) else { return ended(.finished) }
    let guarding: (@escaping DiskSync.Step) -> DiskSync.Step = { [self] step in
      let guarded = finish.guarding(step)
      return outlivesLoop ? orCancelled(guarded) : guarded
    }
    complete(split.finishing, split.file, forgetsLog: false, outlivesLoop: outlivesLoop, guarding: guarding) {
      [self] failure in
      var failure = failure
      if failure != nil, !isThere(name.partial), isThere(name.final) {
        // The previous server, which has just ended, was doing the same.
        failure = nil
        completeSidecar(name)
      }
      guard let failure else { return ended(.finished) }
      let isDataLost = failure.stage == .bytes && failure.error.code != ECANCELED
      if isDataLost {
        unlessEnded(outlivesLoop: outlivesLoop) {
          finish.unlessDiscarded { noteBroken(name, from: split.finishing.start, failure.error) }
        }
      }
      ended(.failed(failure.error, isDataLost: isDataLost))
    }
  }

  /// Fails if another server may use the directory, which then finishes the recording itself.
  private func orCancelled(_ step: @escaping DiskSync.Step) -> DiskSync.Step {
    { [self] () throws(SystemError) in
      var touched = DiskSync.Touched()
      let isDone = try unlessEnded { () throws(SystemError) in touched = try step() }
      if isDone { return touched }
      throw SystemError(operation: "finish a recording when the server has ended", code: ECANCELED)
    }
  }

  /// Prevents further acknowledgements of the stream, and records for readers of the file that it is unreliable.
  func noteBroken(_ name: StreamName, from start: UInt64, _ error: SystemError) {
    refusals.add(error, name)
    // If this fails, the next part still records it.
    guard isThere(name.partial), let gaps = try? readGaps(name, length: 0), !gaps.isDistrusted,
      (try? note(GapRecord(offset: start, length: 0, cause: .notSynced), name)) != nil
    else { return }
    syncGaps(of: name)
  }

  /// The log's line about a recording whose stream continues in another; nil if there is none, or the stream is
  /// discarded.
  private func leftSplit(_ name: StreamName) throws(SystemError) -> RecordingPart? {
    let log = try parts.lines(of: name.base)
    guard let last = log.last, last.number != name.part, !last.isDiscarded else { return nil }
    return log.last { $0.number == name.part }.flatMap { $0.isSplit ? $0 : nil }
  }

  /// Finishes a recording that an earlier server has split off. Returns false if the file does not have the name of
  /// such a recording. Any thread.
  ///
  /// - Throws: ``SystemError`` if it cannot be determined now whether it is one.
  func finishLeftSplit(_ name: StreamName) throws(SystemError) -> Bool {
    guard !isEnded.load(ordering: .acquiring), let part = try leftSplit(name) else { return false }
    if try isForeign(name, part) { return true }
    do throws(SystemError) {
      try checkSplits(name, parts.lines(of: name.base), outlivesLoop: true)
      guard let part = try leftSplit(name), let end = part.end,
        let (_, finalExtension) = StreamName.parts(ofFile: part.file[...])
      else { return false }
      try finishLeft(name.withExtension(String(finalExtension)), part, end: end)
    } catch {
      finishLater(name, isSplit: true)
    }
    return true
  }

  private func finishLeft(_ name: StreamName, _ part: RecordingPart, end: UInt64) throws(SystemError) {
    let finish = SplitFinish()
    let isFirst = splits.withLock { splits in
      guard splits[name.fileBase] == nil else { return false }
      splits[name.fileBase] = finish
      return true
    }
    // This server is finishing it already, perhaps on another thread.
    guard isFirst else { return }
    do throws(SystemError) {
      guard let (file, size) = try openExisting(name.partial, O_RDWR) else { return leaveSplit(name, finish) }
      try restoreHead(name, outlivesLoop: true)
      let length = part.start + (size - min(size, part.headerLength))
      let finishing = FinishingRecording(
        name: name, streamID: part.streamID, start: part.start, length: min(length, end), size: size, ending: .split)
      // The stream may have been discarded before any request could find it there.
      guard try leftSplit(name) != nil else {
        finish.discard()
        return leaveSplit(name, finish)
      }
      let split = SplitFile(finishing: finishing, file: file, finish: finish)
      finishSplit(split, outlivesLoop: true) { [self] outcome in
        guard case .failed = outcome else { return }
        leaveSplit(name, finish)
        finishLater(name, isSplit: true)
      }
    } catch {
      leaveSplit(name, finish)
      throw error
    }
  }

  /// This attempt is over, and another one may begin.
  private func leaveSplit(_ name: StreamName, _ finish: SplitFinish) {
    splits.withLock { if $0[name.fileBase] === finish { $0[name.fileBase] = nil } }
  }

  // MARK: Reading

  /// Whether repeated bytes of earlier recordings equal the stored ones. Recordings that an operator has moved away
  /// cannot be compared, and count as equal.
  func matchesEarlier(
    _ name: StreamName, _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool {
    var compared = 0
    for stretch in try earlierStretches(name, offset..<(offset + UInt64(count))) {
      let length = stretch.range.count
      defer { compared += length }
      guard let file = stretch.file else { continue }
      let descriptor = try file.acquire()
      defer { file.release() }
      let matches = try BodyWriter.matches(
        descriptor, bytes, pieces.dropped(octets: compared), count: length, at: stretch.range.lowerBound, of: file)
      if !matches { return false }
    }
    return true
  }

  /// Where the bytes of a stream are in recordings before the growing one, by stream offsets. A stretch has no file if
  /// it cannot be read, because an operator has moved the recording away or the log has forgotten it.
  func earlierStretches(
    _ name: StreamName, _ range: Range<UInt64>
  ) throws(SystemError) -> [(file: OpenFile?, range: Range<UInt64>)] {
    let log = try parts.lines(of: name.base)
    var stretches: [(file: OpenFile?, range: Range<UInt64>)] = []
    var position = range.lowerBound
    while position < range.upperBound {
      let part = log.last { part in
        part.isSplit && part.start <= position && position < (part.end ?? 0)
      }
      guard let part, let end = part.end else {
        stretches.append((nil, position..<range.upperBound))
        break
      }
      let held = position..<min(end, range.upperBound)
      let first = position - part.start + part.headerLength
      stretches.append((try openEarlier(name.recording(part.number), part), first..<(first + UInt64(held.count))))
      position = held.upperBound
    }
    return stretches
  }

  /// An earlier recording, read in its received form. nil if it was moved away, or if its head before the correction of
  /// its sizes cannot be determined.
  func openEarlier(_ name: StreamName, _ part: RecordingPart) throws(SystemError) -> OpenFile? {
    // It may get its final name between the two attempts.
    for file in [part.file, name.partial, part.file] {
      if file == name.partial, try isForeign(name, part) { continue }
      guard let (opened, size) = try openExisting(file, O_RDONLY) else { continue }
      // The worker may be about to change the head, after recording the received one. So the bytes that were just read
      // are the received ones, unless that record differs.
      let present = beginning(of: opened, count: WAVHead.maximumLength)
      let recorded = try recordedHead(of: name.withExtension(part.finalExtension), size: size)
      // Only a head that left its sizes open was corrected.
      if recorded == nil, part.finalExtension == ".wav", part.headerLength == 0, part.start == 0,
        WAVHead(present)?.isOpen != true
      {
        return nil
      }
      opened.headChanges(from: recorded.flatMap { $0.isEmpty ? nil : $0 } ?? present)
      return opened
    }
    return nil
  }
}
