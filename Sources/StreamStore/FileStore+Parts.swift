// Closes the recording of a silent client, and continues the stream in a next part if the client returns.

internal import DiskFiles
package import EventLoops
internal import Glibc
internal import Recordings
package import StreamServing
internal import Synchronization

extension RecordingPart {
  /// The length of its file before the first byte from a client.
  var beginningLength: UInt64 { headerLength + (firstReceived - min(firstReceived, start)) }

  /// The length of its file after its end; nil if it has none yet.
  var endLength: UInt64? { end.map { headerLength + ($0 - min($0, start)) } }
}

extension FileStore {
  // MARK: Closing

  /// The stream's growing recording; nil if there is none.
  func openUnfinished(_ name: StreamName) throws(SystemError) -> StreamFile? {
    var log = try parts.lines(of: name.base)
    guard !isBeingRemoved(name, log) else { return nil }
    if try checkSplits(name, log) { log = try parts.lines(of: name.base) }
    var name = name.lastRecording(log)
    guard try !isStranger(name, log), let growing = try openGrowing(name, log) else { return nil }
    guard name.finalExtension.isEmpty else { return growing }
    // The recording is from an earlier server. If that server ended regularly, the log contains the intended file name.
    if let (_, known) = log.last.flatMap({ StreamName.parts(ofFile: $0.file[...]) }) {
      name = name.withExtension(String(known))
    } else {
      name = name.withExtension(Self.fileExtension(of: beginning(of: growing.stored, count: 12)))
    }
    return try StreamFile(
      self, name, growing.stored, part: growing.part, size: growing.position(of: growing.length))
  }

  /// The file's extension according to its first bytes.
  static func fileExtension(of head: [UInt8]) -> String {
    func begins(_ text: String) -> Bool { head.starts(with: text.utf8) }
    if begins("RIFF"), head.dropFirst(8).starts(with: "WAVE".utf8) { return ".wav" }
    if begins("fLaC") { return ".flac" }
    if begins("OggS") { return ".ogg" }
    if begins("ID3") { return ".mp3" }
    return ".bin"
  }

  func wavHead(of file: OpenFile) -> WAVHead? { WAVHead(beginning(of: file, count: WAVHead.maximumLength)) }

  func beginning(of file: OpenFile, count: Int) -> [UInt8] {
    guard let descriptor = try? file.acquire() else { return [] }
    defer { file.release() }
    return (try? beginning(of: descriptor, "a recording", count: count)) ?? []
  }

  /// How many bytes a recording has received, without its holes and copied bytes.
  func contentCount(of stream: StreamFile) -> UInt64 {
    let first = stream.part?.firstReceived ?? 0
    // If this is unknown, the recording counts as not empty.
    let missing = (try? readGaps(stream.name, from: first, length: stream.length))?.missing ?? 0
    return stream.length - min(stream.length, first) - min(missing, stream.length - min(stream.length, first))
  }

  /// Gives a recording its final name although its stream has not ended. Records this in its `.gaps` and in the
  /// stream's log.
  func closeInterrupted(
    _ stream: StreamFile, for owner: UploadOwner?, isTrusted: Bool, loop: EventLoop,
    completion: @escaping (UnfinishedStream?) -> Void
  ) {
    guard isCollected, isTrusted, durability != .none else {
      return recordEnd(stream, for: owner, isTrusted: isTrusted, loop: loop, completion: completion)
    }
    // A collector that finds a growing file with another length than its line states takes it for that of another
    // program. So the line must not survive a power failure that the bytes do not survive.
    synchronize(stream, loop: loop) { [self] error in
      if let error { return completion(UnfinishedStream(error: error, mayLackBytes: !error.isShortage)) }
      recordEnd(stream, for: owner, isTrusted: isTrusted, loop: loop, completion: completion)
    }
  }

  private func recordEnd(
    _ stream: StreamFile, for owner: UploadOwner?, isTrusted: Bool, loop: EventLoop,
    completion: @escaping (UnfinishedStream?) -> Void
  ) {
    var part = stream.part ?? RecordingPart(file: stream.name.final)
    part.file = stream.name.final
    part.number = stream.name.part
    if !stream.name.streamID.isEmpty { part.streamID = stream.name.streamID }
    let end = isTrusted ? stream.length : stream.start
    part.end = end
    part.count = contentCount(of: stream)
    part.owner = owner ?? part.owner
    // If this is not finished, the next server continues the recording.
    part.otherWriters = otherWriters(of: stream.name)
    if stream.name.finalExtension == ".wav" {
      part.head = wavHead(of: stream.stored)?.bytes ?? []
    }
    let logLength: Int
    do throws(SystemError) {
      if isTrusted || !stream.gaps.isDistrusted {
        try note(GapRecord(offset: end, length: 0, cause: isTrusted ? .interrupted : .notSynced), stream.name)
      }
      logLength = try parts.append(part, to: stream.name.base)
    } catch {
      return completion(UnfinishedStream(error: error))
    }
    let concluded: (UnfinishedStream?) -> Void = { [self] failure in
      // The recording continues. With the line, each further attempt would add two others. If the recording has its
      // final name despite the error, or if this is unknown, the line stays.
      if failure != nil, (try? exists(stream.name.partial)) == true { parts.cut(stream.name.base, to: logLength) }
      completion(failure)
    }
    guard durability != .none else {
      return finish(stream, .interrupted, forgetsLog: false, loop: loop, completion: concluded)
    }
    // Only the loop's thread uses it. The worker merely passes it back.
    nonisolated(unsafe) let carried = (stream: stream, completion: concluded)
    // A closed recording looks complete without these.
    sync([stream.name.gaps, StreamParts.path(stream.name.base), StreamParts.directoryName]) { [self] error in
      loop.execute { [self] in
        let (stream, completion) = carried
        if let error { return completion(UnfinishedStream(error: error)) }
        finish(stream, .interrupted, forgetsLog: false, loop: loop, completion: completion)
      }
    }
  }

  /// Syncs files one after another, up to the first error. `completion` is called on the worker's thread.
  private func sync(_ files: ArraySlice<String>, _ completion: @escaping @Sendable (SystemError?) -> Void) {
    guard let file = files.first else { return completion(nil) }
    disk.sync(.named(file, in: directory), "fdatasync \(file)") { [self] error in
      if let error { completion(error) } else { sync(files.dropFirst(), completion) }
    }
  }

  /// Records for the next server that the disk has refused bytes of an unfinished recording.
  func noteDistrusted(_ name: StreamName) throws(SystemError) {
    let log = try parts.lines(of: name.base)
    let name = name.lastRecording(log)
    guard isThere(name.partial), try !readGaps(name, length: 0).isDistrusted else { return }
    try note(GapRecord(offset: log.last?.start ?? 0, length: 0, cause: .notSynced), name)
    syncGaps(of: name)
  }

  /// Syncs a line that ``note(_:_:)`` does not sync.
  func syncGaps(of name: StreamName) {
    guard durability != .none else { return }
    disk.sync(.named(name.gaps, in: directory), "fdatasync \(name.gaps)", in: directory) { _ in }
  }

  /// Records for the next server who else has written to a growing recording.
  func noteOtherWriters(_ writers: OtherWriters, of name: StreamName) throws(SystemError) {
    let log = try parts.lines(of: name.base)
    var part = log.last ?? RecordingPart(file: name.final)
    let all = part.otherWriters.joined(by: writers)
    guard part.end == nil, part.otherWriters != all, isThere(name.recording(part.number).partial) else { return }
    if log.isEmpty, !name.streamID.isEmpty { part.streamID = name.streamID }
    part.otherWriters = all
    try parts.append(part, to: name.base)
    syncLog(name)
  }

  /// Anyone, if this is unknown.
  func otherWriters(of name: StreamName) -> OtherWriters {
    guard let log = try? parts.lines(of: name.base) else { return .anyone }
    return log.last?.otherWriters ?? .nobody
  }

  /// Records for the next server the final name of an unfinished recording.
  func noteUnfinished(_ name: StreamName, owner: UploadOwner?) {
    // A complete stream is not unfinished, whatever the last request for it was, and with whatever type.
    guard isThere(name.partial), let log = try? parts.lines(of: name.base), log.isEmpty, !name.finalExtension.isEmpty
    else { return }
    var part = RecordingPart(file: name.final)
    part.streamID = name.streamID
    part.owner = owner
    // Without this record, the file's content determines its extension.
    _ = try? parts.append(part, to: name.base)
  }

  /// Forgets what is known of a stream whose recordings were all removed.
  func forgetClosed(_ name: StreamName) {
    guard isForgettable(name) else { return }
    try? parts.forget(name.base)
    owners.forget(name)
  }

  /// Whether a server has begun to remove the stream, and no one has finished that.
  func isDiscarded(_ name: StreamName) -> Bool {
    (try? parts.lines(of: name.base))?.last?.isDiscarded ?? false
  }

  /// Whether the stream has no files, and no client that would continue it in a next part.
  private func isForgettable(_ name: StreamName) -> Bool {
    guard let log = try? parts.lines(of: name.base), !hasFiles(log, name) else { return false }
    guard log.contains(where: { $0.end != nil }), let written = parts.time(of: name.base) else { return true }
    return WallClock.now.seconds.subtractingReportingOverflow(written).partialValue
      > closedLifetime.nanoseconds / 1_000_000_000
  }

  private func hasFiles(_ log: [RecordingPart], _ name: StreamName) -> Bool {
    let name = name.lastRecording(log)
    // This includes a recording whose name differs from the one in the log: its owner must not be forgotten.
    if isThere(name.partial) || log.contains(where: { isThere($0.file) }) { return true }
    // If this is unknown, there may be a recording.
    do throws(SystemError) { return try recordings.find(name) != nil } catch { return true }
  }

  // MARK: Beginning

  /// Begins the recording that follows a closed one. It has its own header if its format needs one, and begins at a
  /// frame.
  ///
  /// - Parameter writers: who has written to it before, if its beginning moves.
  func beginPart(
    _ name: StreamName, after previous: RecordingPart, at offset: UInt64, otherWriters writers: OtherWriters = .nobody
  ) throws(SystemError) -> StreamFile {
    guard offset <= StreamPlacement.largestOffset else {
      throw SystemError(operation: "begin a recording at the offset \(offset)", code: EFBIG)
    }
    var name = name.recording(previous.number + 1)
    var part = RecordingPart(file: name.final)
    part.streamID = name.streamID
    part.otherWriters = writers
    (part.start, part.firstReceived) = (offset, offset)
    var beginning: [UInt8] = []
    var missing: [Range<UInt64>] = []
    if let head = WAVHead(previous.head), name.finalExtension == ".wav" {
      let length = UInt64(head.bytes.count)
      if offset < length {
        // The client has sent only a part of the header, so the stream begins again with that.
        part.start = 0
        beginning = Array(head.bytes.prefix(Int(offset)))
      } else {
        // The bytes of the frame in whose middle the client is.
        let begun = (offset - length) % UInt64(head.frameLength)
        part.start = offset - begun
        part.headerLength = length
        let copied = try copy(part.start..<offset, of: name, after: previous)
        (beginning, missing) = (head.bytes + copied.bytes, copied.missing)
      }
    }
    part.missingBefore = try missingBytes(before: part.start, of: name, after: previous)
    name = try nextName(after: name.recording(previous.number), beginning: beginning)
    (part.file, part.number) = (name.final, name.part)
    try clearCompanions(of: name)
    var logLength: Int?
    do throws(SystemError) {
      // The line comes first. It proves that a record of gaps without a file is the store's. The file comes last,
      // because it would otherwise lack its record.
      logLength = try parts.append(part, to: name.base)
      try noteGaps(name, part, after: previous, at: offset, missing)
      let file = try createNext(name, beginning)
      try writeBeginning(beginning, file, name)
      syncLog(name)
      return try StreamFile(self, name, file, part: part, .new, size: UInt64(beginning.count))
    } catch {
      // None of it stays, if the disk permits that.
      if error.code != EEXIST { unlinkat(directory, name.partial, 0) }
      unlinkat(directory, name.gaps, 0)
      if let logLength { parts.cut(name.base, to: logLength) }
      throw error
    }
  }

  /// How many bytes before `offset`, where a part starts, are in holes of the stream's earlier recordings, or between
  /// these.
  private func missingBytes(
    before offset: UInt64, of name: StreamName, after last: RecordingPart
  ) throws(SystemError) -> UInt64 {
    var missing: UInt64 = 0
    let earlier = try parts.lines(of: name.base).current.values.filter { $0.number <= last.number }
    for part in earlier.sorted(by: { $0.number > $1.number }) {
      // All bytes of an unreliable recording lie between two parts, because it ends where it started.
      let end = part.end ?? offset
      let recorded = try recordedMissing(name.recording(part.number), length: min(offset, end))
      // An operator may have moved the record away. Then only the holes within the recording are known.
      let received = part.count.addingReportingOverflow(part.firstReceived).partialValue
      let holes = end <= offset ? end - min(end, received) : 0
      missing = missing.addingReportingOverflow(max(recorded, holes)).partialValue
      // The bytes of a recording that began later are received again, and only the gap before it counts.
      if part.firstReceived <= offset { return missing.addingReportingOverflow(part.missingBefore).partialValue }
    }
    return missing
  }

  /// Like ``readGaps(_:from:length:)``, but a record that the disk cannot read does not stop its stream.
  private func recordedMissing(_ name: StreamName, length: UInt64) throws(SystemError) -> UInt64 {
    do throws(SystemError) {
      return try readGaps(name, length: length).missing
    } catch {
      if error.isShortage { throw error }
      return 0
    }
  }

  /// Records where a part begins, and what lies between it and the one before.
  ///
  /// - Parameter notCopied: the stream offsets at its beginning that contain zeros because their bytes could not be
  ///   copied.
  private func noteGaps(
    _ name: StreamName, _ part: RecordingPart, after previous: RecordingPart, at offset: UInt64,
    _ notCopied: [Range<UInt64>]
  ) throws(SystemError) {
    try note(GapRecord(offset: part.start, length: 0, cause: .nextPart), name)
    var gaps = notCopied
    // An earlier part may hold what lies between: the last one may have repeated a piece of it.
    if let end = previous.end, offset > end { gaps += try parts.lines(of: name.base).notReceived(in: end..<offset) }
    for gap in gaps.merged() {
      try note(
        GapRecord(offset: gap.lowerBound, length: gap.upperBound - gap.lowerBound, cause: .notReceived), name)
    }
  }

  /// A request that waits for a sync of the stream waits for its log as well.
  func syncLog(_ name: StreamName) {
    guard durability != .none else { return }
    for file in [StreamParts.path(name.base), StreamParts.directoryName] {
      disk.sync(.named(file, in: directory), "fdatasync \(file)") { [refusals] error in
        if let error { refusals.add(error, name) }
      }
    }
  }

  // MARK: What an earlier server left

  /// Records a recording that the disk could not finish now. Any thread.
  ///
  /// - Parameters:
  ///   - error: why its sidecar could not be completed. If it recurs, it is reported.
  ///   - file: the recording's file, for the report; nil if it is unknown.
  func finishLater(_ name: StreamName, isSplit: Bool = false, after error: SystemError? = nil, file: String? = nil) {
    let recording = UnfinishedRecording(fileBase: name.fileBase, isSplit: isSplit)
    guard unfinished.withLock({ $0.postpone(recording, after: error) }), let error else { return }
    let shown = file ?? name.fileBase
    let remedy =
      if error.code == EFBIG {
        "Raise the limit of file sizes, or use a file system that allows larger files."
      } else if error.isFull {
        "Free space on the disk."
      } else if error.isForeignChange {
        "Restore the recording from a copy if something else has changed it. Otherwise check its file server."
      } else if error.isSpecialFile || error.isForeignFile {
        "Move what has that name to another directory."
      } else if error.code == EBADMSG {
        "Compare the recording with its source, and then remove \(name.pendingSidecar)."
      } else {
        "Check the disk, and restore the recording from a copy if it is damaged."
      }
    var event = ServerEvent(
      .warning,
      reason: "cannot complete the sidecar of \(shown): \(error). The server retries after growing pauses. \(remedy)")
    event.file = file
    let emit = reports.withLock { $0 }
    emit?(event)
  }

  /// Whether the sidecar of a recording is completed later. Any thread.
  private func isPostponed(_ name: StreamName) -> Bool {
    unfinished.withLock { $0.isPostponed(UnfinishedRecording(fileBase: name.fileBase, isSplit: false)) }
  }

  /// Nothing is left to be done for the sidecar of a recording. Any thread.
  func settle(_ name: StreamName) {
    unfinished.withLock { $0.settle(UnfinishedRecording(fileBase: name.fileBase, isSplit: false)) }
  }

  /// Reports recordings that the disk repeatedly does not let the server finish, until ``unlock()``.
  ///
  /// - Parameter emit: called on any thread.
  package func reportUnfinished(to emit: @escaping @Sendable (ServerEvent) -> Void) {
    reports.withLock { $0 = emit }
  }

  /// Tries again to finish the recordings that the disk could not finish and whose pauses are over. Call it in each
  /// round of maintenance. Any thread.
  package func finishUnfinished() {
    for recording in unfinished.withLock({ $0.round() }) {
      worker.executeSlice { [self] in
        guard !isEnded.load(ordering: .acquiring) else { return }
        guard let name = StreamName(partialFile: recording.fileBase + ".part") else { return }
        guard recording.isSplit else { return completeLeftSidecar(name) }
        do throws(SystemError) { _ = try finishLeftSplit(name) } catch { finishLater(name, isSplit: true) }
      }
    }
  }

  /// Reports the streams that have records but no files, or that still have to be removed. For a separate thread.
  ///
  /// - Parameters:
  ///   - streams: the streams that are passed over.
  ///   - continuable: the streams with uploads that may continue, however long ago their recordings were closed. They
  ///     are reported only if they have to be removed.
  /// - Returns: why this cannot be determined of some streams now; nil if it was determined of all.
  /// - Throws: ``SystemError`` if the records cannot be listed.
  @discardableResult
  package func findRemoved(
    except streams: Set<StreamName> = [], continuable: Set<StreamName> = [], _ gone: (String) -> Void
  ) throws(SystemError) -> SystemError? {
    var failure: SystemError?
    for names in [try parts.names(), try owners.files()].compactMap(\.self) {
      while case let files = try names.next(1000), !files.isEmpty {
        for base in files.map(StreamOwners.stream) {
          let name = StreamName(base: base)
          if streams.contains(name) { continue }
          let error = attempt { () throws(SystemError) in
            let isDiscarded = try parts.lines(of: base).last?.isDiscarded ?? false
            if isDiscarded || !continuable.contains(name) && isForgettable(name) { gone(base) }
          }
          failure = failure ?? error
        }
      }
    }
    return failure
  }

  /// Passes the name of each unfinished recording, and the seconds since its last write, to `found`. The worker syncs
  /// those that a killed server has not synced. The duration depends on the size of the directory, so it requires a
  /// separate thread.
  ///
  /// It can be repeated at any time, but with the store of a collector, only before a stream is opened. What is being
  /// finished since the last time is not finished twice.
  ///
  /// - Parameters:
  ///   - streams: the streams that are passed over.
  ///   - unreadable: called with each stream whose files or records cannot be read now. Returns whether the search
  ///     ignores the error.
  /// - Throws: ``SystemError`` if the directory or some of its files cannot be read now. All other files were found.
  package func findUnfinished(
    except streams: Set<StreamName> = [], _ found: (StreamName, Int64) -> Void,
    unreadable: (StreamName, SystemError) -> Bool = { _, _ in false }
  ) throws(SystemError) {
    let names = try DirectoryNames(of: directory)
    let now = WallClock.now.seconds
    var failure: SystemError?
    while case let files = try names.next(1000), !files.isEmpty {
      for file in files {
        // The next server searches, too.
        if isEnded.load(ordering: .acquiring) { return }
        let name = StreamName(partialFile: file)
        if let name, streams.contains(name) { continue }
        let error = attempt { () throws(SystemError) in
          guard let (name, written) = try unfinished(file) else { return }
          found(name, now.subtractingReportingOverflow(written).partialValue)
          markLater(name)
        }
        if let name, let error, unreadable(name, error) { continue }
        failure = failure ?? error
      }
      markUnmarked()
    }
    if let failure { throw failure }
  }

  /// The recording that grows in a file, and when that was written, in seconds of the wall clock; nil for other files.
  /// Completes what an earlier server has left of these.
  private func unfinished(_ file: String) throws(SystemError) -> (StreamName, written: Int64)? {
    // A search may be repeated often, and must not read a damaged recording each time.
    if let name = StreamName(pendingSidecar: file), !isPostponed(name) { completeLeftSidecar(name) }
    // The sidecar is removed last.
    if let name = StreamName(hiddenGaps: file) {
      unlessEnded { if !isThere(name.pendingSidecar) { _ = unlinkat(directory, file, 0) } }
    }
    // If this fails, only `sluice verify` notices the record.
    try? removeLeftGaps(file)
    guard let name = StreamName(partialFile: file), try parts.lines(of: name.base).last?.isDiscarded != true,
      try !finishLeftSplit(name), try !leavesAlone(name)
    else { return nil }
    // Without a status, it has got its final name, or was removed.
    return try knownStatus(file, in: directory).map { (name, written: Int64($0.st_mtim.tv_sec)) }
  }
}
