// Finds streams by their names, begins them, and measures them.

internal import DiskFiles
package import EventLoops
internal import Glibc
package import StreamServing

extension FileStore {
  /// The flags with which a growing file is opened. All bytes are written at its end. With O_APPEND, this is true even
  /// if another program has truncated the file. Its length then shows that bytes are missing, which a hole of zeros
  /// would hide.
  static let growing = O_RDWR | O_APPEND

  package func admits(_ credential: [UInt8]?, to name: StreamName) throws(SystemError) -> Bool {
    guard let credential else { return true }
    let record = try owners.record(of: name)
    if let record, record.owner == credential, record.isBeginner { return true }
    let log = try parts.lines(of: name.base)
    // No byte of it will remain, and it cannot be opened before that.
    if isBeingRemoved(name, log), log.closedParts.isEmpty { return true }
    let name = name.lastRecording(log)
    if let record, record.owner != credential {
      // The owner of a closed stream continues it in a next part, wherever an operator has moved the closed one.
      if log.contains(where: { $0.end != nil }) { return false }
      // A record is invalid if it belongs to an earlier stream whose files were removed.
      for file in [name.partial] + log.map(\.file) {
        if try exists(file) { return false }
      }
    } else {
      // A stream without an owner continues, in this part or in the next.
      if log.last?.end != nil { return true }
      if try exists(name.partial) { return true }
    }
    // Bytes that are sent to a complete recording are compared with it. A client that can compare single bytes can read
    // the recording in this way. So only the token that began it may do this.
    return try findComplete(name) == nil
  }

  func open(
    _ name: StreamName, for credential: [UInt8]?, at offset: UInt64, creating: Bool, isUpload: Bool = true
  ) throws(SystemError) -> StreamFile? {
    var log = try lines(of: name)
    if try checkSplits(name, log) { log = try lines(of: name) }
    // The record is written before the file, because any client may continue a file without an owner.
    if let credential, let owner = try owners.owner(of: name), owner != credential {
      try parts.forget(name.base)
      log = []
    }
    if isCollected, log.isEmpty, try findComplete(name) == nil { try checkStranger(name, log) }
    let isOwnerNew = if let credential { try recordOwner(credential, of: name, log) } else { false }
    do throws(SystemError) {
      if let stream = try openOwned(name, log, at: offset, creating: creating) {
        if !isUpload { try removeMark(of: stream, log) }
        return stream
      }
    } catch {
      if isOwnerNew { owners.forget(name) }
      throw error
    }
    if isOwnerNew { owners.forget(name) }
    return nil
  }

  /// The bytes of a plain request are only synced at its end. Without a mark, they stay after a power failure.
  ///
  /// - Parameter log: the lines about the stream before this request.
  private func removeMark(of stream: StreamFile, _ log: [RecordingPart]) throws(SystemError) {
    guard durability != .none, stream.standing != .complete else { return }
    do throws(SystemError) {
      try stream.removeMark()
    } catch {
      // A request that is refused leaves nothing behind.
      if stream.standing == .new {
        unlinkat(directory, stream.name.partial, 0)
        try? removeGaps(of: stream.name)
        if !log.isEmpty {
          try? parts.rewrite(log, of: stream.name.base, isSynced: true)
        } else if isCollected {
          try? parts.forget(stream.name.base)
        }
      }
      throw error
    }
  }

  /// The stream, whose owner is recorded. nil if there is none and `creating` is false.
  private func openOwned(
    _ name: StreamName, _ log: [RecordingPart], at offset: UInt64, creating: Bool
  ) throws(SystemError) -> StreamFile? {
    let name = name.lastRecording(log)
    if try !isStranger(name, log), let growing = try openGrowing(name, log) { return growing }
    if log.last?.end == nil, let (name, complete) = try openComplete(name) {
      return try StreamFile(self, name, complete.file, part: log.last, .complete, size: complete.length)
    }
    // The upload was there a moment ago, so its recording is neither complete nor moved away.
    guard creating else { return try beginAgain(name, log) }
    if let previous = log.last(where: { $0.end != nil }) { return try beginPart(name, after: previous, at: offset) }
    try checkStranger(name, log)
    guard isCollected, log.isEmpty else { return try beginFirst(name, log) }
    try claim(name)
    do throws(SystemError) {
      return try beginFirst(name, log)
    } catch {
      try? parts.forget(name.base)
      throw error
    }
  }

  /// Begins the first recording of a stream.
  private func beginFirst(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> StreamFile {
    try clearCompanions(of: name)
    let file = try create(name)
    do throws(SystemError) {
      return try StreamFile(self, name, file, part: log.last, .new)
    } catch {
      unlinkat(directory, name.partial, 0)
      throw error
    }
  }

  /// Records the owner of a stream. The record is synced before any byte of the stream is, and its name precedes the
  /// stream's file in the journal of the file system, so that no other client is admitted after a power failure.
  ///
  /// A client that continues a stream without an owner excludes all others from then on. But it did not begin the
  /// stream, so it must not download the earlier bytes.
  ///
  /// - Returns: whether the stream had no record.
  private func recordOwner(
    _ credential: [UInt8], of name: StreamName, _ log: [RecordingPart]
  ) throws(SystemError) -> Bool {
    let record = try owners.record(of: name)
    if let record, record.owner == credential, record.isBeginner { return false }
    var isNew = log.isEmpty
    if isNew { isNew = try !exists(name.partial) }
    if isNew { isNew = try findComplete(name) == nil }
    if record?.owner == credential, !isNew { return false }
    try owners.record(credential, of: name, isBeginner: isNew)
    guard durability != .none else { return record == nil }
    // The worker performs the syncs in this order, so a request that waits for a sync of the stream waits for these,
    // too.
    for file in [owners.path(name), StreamOwners.directoryName] {
      disk.sync(.named(file, in: directory), "fdatasync of the owner's record of a stream") { [refusals] error in
        if let error { refusals.add(error, name) }
      }
    }
    return record == nil
  }

  /// The stream's growing recording. Nil if there is none.
  func openGrowing(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> StreamFile? {
    guard let (growing, size) = try openGrowingFile(name.partial) else { return nil }
    // An earlier server was killed while it completed the recording, which now continues.
    try restoreHead(name)
    // An earlier server was killed before it had written the beginning of the file, so no byte of it was acknowledged.
    if size < log.last?.beginningLength ?? 0 {
      try retryingInterrupts("unlink \(name.partial)") { unlinkat(directory, name.partial, 0) }
      return try beginAgain(name, log)
    }
    var part = log.last
    if let closed = part, closed.end != nil {
      // An earlier server was killed while it closed or split the recording, which now continues.
      part = closed.reopened
      try parts.append(closed.reopened, to: name.base)
    }
    // If this fails, an empty recording is left until the stream is split.
    try? removeLeftBeginning(after: name, growing)
    let stream = try StreamFile(self, name, growing, part: part, size: size)
    guard let text = try gapText(name) else { return stream }
    guard GapRecord.isRecord(text) else { throw RegularFile.foreign(name.gaps) }
    let remainder = remainder(of: text, part, length: stream.length)
    if remainder.length < stream.length {
      // The server was killed before it stored a byte after the hole.
      try stream.truncate(to: remainder.length)
      return try openGrowing(name, log)
    }
    if remainder.count < text.count || text.isEmpty {
      try trimGaps(name, to: remainder)
      return try StreamFile(self, name, growing, part: part, size: size)
    }
    return stream
  }

  /// Begins the growing recording of a stream at another offset. All bytes that it has received are removed.
  ///
  /// - Returns: nil if no closed recording precedes it, so that it cannot begin elsewhere.
  func moveBeginning(of stream: StreamFile, to offset: UInt64) throws(SystemError) -> StreamFile? {
    let (name, log) = (stream.name, try parts.lines(of: stream.name.base))
    guard let former = stream.part, let previous = log.last(where: { $0.end != nil }), previous.number < former.number
    else { return nil }
    try stream.stored.check(length: stream.size)
    let writers = log.last?.otherWriters ?? .nobody
    // Comes first, because nothing has changed if the disk refuses it. Without this, each request of a peer could add a
    // line to the log.
    try parts.rewrite(log.filter { $0.number != former.number }, of: name.base, isSynced: durability != .none)
    do throws(SystemError) {
      try retryingInterrupts("unlink \(name.partial)") { unlinkat(directory, name.partial, 0) }
      return try beginPart(name, after: previous, at: offset, otherWriters: writers)
    } catch {
      // If this fails too, the next request begins the part.
      if let again = try? beginPart(name, after: previous, at: former.firstReceived, otherWriters: writers) {
        stream.begin(as: again)
      }
      throw error
    }
  }

  func create(_ name: StreamName) throws(SystemError) -> OpenFile {
    // It describes an earlier recording of that name that was moved away.
    if hasSidecars { unlinkat(directory, name.pendingSidecar, 0) }
    let file = try openFile(name.partial, Self.growing | O_CREAT | O_EXCL).file
    do throws(SystemError) {
      try disk.begin(file)
    } catch {
      unlinkat(directory, name.partial, 0)
      throw error
    }
    return file
  }

  /// The complete recording of the stream, regardless of its extension, with its name. Nil if there is none.
  private func openComplete(_ name: StreamName) throws(SystemError) -> (StreamName, (file: OpenFile, length: UInt64))? {
    guard let found = try findComplete(name) else { return nil }
    // It may have been removed a moment ago.
    guard let (file, size) = try openExisting(found.final, O_RDONLY) else { return nil }
    guard found.finalExtension == ".wav", let head = try recordedHead(of: found, size: size), !head.isEmpty else {
      return (found, (file, size))
    }
    // A head that a client sends again is compared with the received one.
    file.headChanges(from: head)
    return (found, (file, size))
  }

  func findComplete(_ name: StreamName) throws(SystemError) -> StreamName? {
    try recordings.find(name)
  }

  package func measure(_ name: StreamName) throws(SystemError) -> StreamExtent {
    var log = try parts.lines(of: name.base)
    if isBeingRemoved(name, log) { return log.closedParts.isEmpty ? .absent : .closed }
    if try checkSplits(name, log) { log = try parts.lines(of: name.base) }
    let part = log.last
    let name = name.lastRecording(log)
    let growing = try isStranger(name, log) ? nil : openGrowingFile(name.partial)
    var found = growing
    // A closed recording cannot be continued.
    if found == nil, part?.end != nil { return .closed }
    var complete: StreamName?
    if found == nil, let (name, file) = try openComplete(name) { (complete, found) = (name, file) }
    let start = part?.seriesStart ?? 0
    guard let (_, size) = found else {
      guard let part, splitHead(name, log) != nil else { return .absent }
      // A power failure has destroyed the file before it contained a byte. See ``beginAgain(_:_:)``.
      var gaps = GapRecord.Summary()
      gaps.addPrevious(of: part)
      return .stored(start: start, length: part.start, gaps)
    }
    var length = (part?.start ?? 0) + (size - min(size, part?.headerLength ?? 0))
    if growing != nil { length = remainder(of: try gapText(name) ?? [], part, length: length).length }
    var gaps = try readGaps(name, length: length)
    gaps.addPrevious(of: part)
    // An earlier server may have been killed before the records of its uploads stated what it had acknowledged.
    if let growing, try growing.file.lacksSynced() { gaps.isDistrusted = true }
    if let complete { return .complete(complete, start: start, length: length, gaps) }
    return .stored(start: start, length: length, gaps)
  }
}
