// A stream whose client fell silent: its recording is closed, and continues in a next part if the client comes back.

internal import DiskFiles
package import EventLoops
internal import Glibc
package import StreamServing
internal import Synchronization

extension RecordingPart {
  /// How long its file is before the first byte of a client's.
  var beginningLength: UInt64 { headerLength + (firstReceived - min(firstReceived, start)) }
}

/// A recording that is complete but for what the disk has refused.
struct UnfinishedRecording: Hashable, Sendable {
  /// Of its files, without extension: names are equal if their streams are.
  var fileBase: String
  /// Whether its stream continues in another file, and it lacks its final name. If not, it lacks its sidecar.
  var isSplit: Bool
}

extension FileStore {
  // MARK: Closing

  /// The recording of that stream that still grows; nil if there is none.
  func openUnfinished(_ name: StreamName) throws(SystemError) -> StreamFile? {
    let log = try parts.lines(of: name.base)
    guard !isBeingRemoved(name, log) else { return nil }
    var name = name
    name.part = log.last?.number ?? 1
    guard let growing = try openGrowing(name, log) else { return nil }
    guard name.finalExtension.isEmpty else { return growing }
    // Of an earlier server: what the file was to be called is in the log if that server ended in peace.
    if let (_, known) = log.last.flatMap({ StreamName.parts(ofFile: $0.file[...]) }) {
      name = name.withExtension(String(known))
    } else {
      name = name.withExtension(Self.fileExtension(of: beginning(of: growing.stored, count: 12)))
    }
    return try StreamFile(
      self, name, growing.stored, part: growing.part, size: growing.position(of: growing.length))
  }

  /// What a file is, by its first bytes.
  private static func fileExtension(of head: [UInt8]) -> String {
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
    var head = [UInt8](repeating: 0, count: count)
    let read = pread(descriptor, &head, count, 0)
    return Array(head.prefix(max(0, read)))
  }

  /// How many bytes came for a recording, without its holes and without what was copied.
  func contentCount(of stream: StreamFile) -> UInt64 {
    let first = stream.part?.firstReceived ?? 0
    // Where nobody can tell, it is not empty.
    let missing = (try? readGaps(stream.name, from: first, length: stream.length))?.missing ?? 0
    return stream.length - min(stream.length, first) - min(missing, stream.length - min(stream.length, first))
  }

  /// Gives a recording its final name although its stream has not ended, and says so in its `.gaps` and in the stream's
  /// log.
  func closeInterrupted(
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
    // If this is not finished, the next server goes on with the recording.
    part.isShared = isShared(stream.name)
    if stream.name.finalExtension == ".wav" {
      part.head = wavHead(of: stream.stored)?.bytes ?? []
    }
    do throws(SystemError) {
      if isTrusted || !stream.gaps.isDistrusted {
        try note(GapRecord(offset: end, length: 0, cause: isTrusted ? .interrupted : .notSynced), stream.name)
      }
      try parts.append(part, to: stream.name.base)
    } catch {
      return completion(UnfinishedStream(error: error))
    }
    if durability != .none {
      // Before the name: what is synced together is renamed afterwards.
      for file in [stream.name.gaps, StreamParts.path(stream.name.base), StreamParts.directoryName] {
        disk.sync(.named(file, in: directory), "fdatasync \(file)") { _ in }
      }
    }
    finish(stream, .interrupted, forgetsLog: false, loop: loop, completion: completion)
  }

  /// Remembers for the next server that the disk has refused bytes of an unfinished recording.
  func noteDistrusted(_ name: StreamName) throws(SystemError) {
    let log = try parts.lines(of: name.base)
    var name = name
    name.part = log.last?.number ?? 1
    guard isThere(name.partial), try !readGaps(name, length: 0).isDistrusted else { return }
    try note(GapRecord(offset: log.last?.start ?? 0, length: 0, cause: .notSynced), name)
  }

  /// Remembers for the next server that a growing recording must not be removed with an upload.
  func noteShared(_ name: StreamName) throws(SystemError) {
    let log = try parts.lines(of: name.base)
    var part = log.last ?? RecordingPart(file: name.final)
    var growing = name
    growing.part = part.number
    guard part.end == nil, !part.isShared, isThere(growing.partial) else { return }
    if log.isEmpty, !name.streamID.isEmpty { part.streamID = name.streamID }
    part.isShared = true
    try parts.append(part, to: name.base)
    syncLog(name)
  }

  /// Where nobody can tell, it is.
  func isShared(_ name: StreamName) -> Bool {
    guard let log = try? parts.lines(of: name.base) else { return true }
    return log.last?.isShared ?? false
  }

  /// Remembers for the next server what an unfinished recording is to be called.
  func noteUnfinished(_ name: StreamName, owner: UploadOwner?) {
    // A stream that is complete is not unfinished, whatever was asked of it last, and under whatever type.
    guard isThere(name.partial), let log = try? parts.lines(of: name.base), log.isEmpty, !name.finalExtension.isEmpty
    else { return }
    var part = RecordingPart(file: name.final)
    part.streamID = name.streamID
    part.owner = owner
    // Without it the file is called by what it looks like.
    try? parts.append(part, to: name.base)
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
    var name = name
    name.part = log.last?.number ?? 1
    // Also one that is called otherwise than the log says: its owner must not be forgotten.
    if isThere(name.partial) || log.contains(where: { isThere($0.file) }) { return true }
    // Where nobody can tell, there may be some.
    do throws(SystemError) { return try recordings.find(name) != nil } catch { return true }
  }

  // MARK: Beginning

  /// Begins the recording that follows a closed one. It has its own header where its format needs one, and begins at a
  /// frame.
  func beginPart(
    _ name: StreamName, after previous: RecordingPart, at offset: UInt64
  ) throws(SystemError) -> StreamFile {
    var name = name
    name.part = previous.number + 1
    var part = RecordingPart(file: name.final)
    part.number = name.part
    part.streamID = name.streamID
    (part.start, part.firstReceived) = (offset, offset)
    var beginning: [UInt8] = []
    if let head = WAVHead(previous.head), name.finalExtension == ".wav" {
      let length = UInt64(head.bytes.count)
      if offset < length {
        // The client has sent a part of the header: the stream begins anew with that.
        part.start = 0
        beginning = Array(head.bytes.prefix(Int(offset)))
      } else {
        // Bytes of the frame that the client is in the middle of.
        let begun = (offset - length) % UInt64(head.frameLength)
        part.start = offset - begun
        part.headerLength = length
        beginning = head.bytes + copy(of: name, after: previous, from: part.start, count: Int(begun))
      }
    }
    // What an earlier attempt left.
    unlinkat(directory, name.gaps, 0)
    var logLength: Int?
    do throws(SystemError) {
      try noteGaps(name, part, after: previous, at: offset)
      logLength = try parts.append(part, to: name.base)
      let file = try create(name)
      try writeBeginning(beginning, file, name)
      syncLog(name)
      return try StreamFile(self, name, file, part: part, .new, size: UInt64(beginning.count))
    } catch {
      // Nothing of it stays, if the disk permits that.
      if error.code != EEXIST { unlinkat(directory, name.partial, 0) }
      if let logLength { parts.cut(name.base, to: logLength) }
      unlinkat(directory, name.gaps, 0)
      throw error
    }
  }

  /// Records where a part begins, and what lies between it and the one before.
  private func noteGaps(
    _ name: StreamName, _ part: RecordingPart, after previous: RecordingPart, at offset: UInt64
  ) throws(SystemError) {
    try note(GapRecord(offset: part.start, length: 0, cause: .nextPart), name)
    guard let end = previous.end, offset > end else { return }
    // An earlier part may hold what lies between: the last one may have repeated a piece of it.
    for gap in try parts.lines(of: name.base).notReceived(in: end..<offset) {
      try note(
        GapRecord(offset: gap.lowerBound, length: gap.upperBound - gap.lowerBound, cause: .notReceived), name)
    }
  }

  /// Whoever waits for a sync of the stream waits for its log as well.
  func syncLog(_ name: StreamName) {
    guard durability != .none else { return }
    for file in [StreamParts.path(name.base), StreamParts.directoryName] {
      disk.sync(.named(file, in: directory), "fdatasync \(file)") { _ in }
    }
  }

  /// Bytes of the closed recordings of a stream, zeros where they are not there any more.
  private func copy(of name: StreamName, after last: RecordingPart, from offset: UInt64, count: Int) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: count)
    guard count > 0 else { return bytes }
    // The next part may begin before the last one, of which the disk has refused bytes.
    let log = (try? parts.lines(of: name.base)) ?? []
    let part = log.last { $0.start <= offset && $0.end ?? 0 > offset } ?? last
    guard offset >= part.start, let (file, size) = try? openExisting(part.file, O_RDONLY),
      let descriptor = try? file.acquire()
    else { return bytes }
    defer { file.release() }
    // Also of one that cannot be counted on: most likely the disk has them.
    let position = offset - part.start + part.headerLength
    _ = pread(descriptor, &bytes, Int(min(UInt64(count), size - min(size, position))), off_t(position))
    return bytes
  }

  // MARK: What an earlier server left

  /// Notes a recording that the disk did not let finish now. Any thread.
  func finishLater(_ name: StreamName, isSplit: Bool = false) {
    unfinished.withLock { _ = $0.insert(UnfinishedRecording(fileBase: name.fileBase, isSplit: isSplit)) }
  }

  /// Tries again to finish the recordings that the disk did not let finish. Any thread.
  package func finishUnfinished() {
    let recordings = unfinished.withLock { recordings in
      defer { recordings = [] }
      return recordings
    }
    for recording in recordings {
      worker.executeSlice { [self] in
        guard !isEnded.load(ordering: .acquiring) else { return }
        guard let name = StreamName(partialFile: recording.fileBase + ".part") else { return }
        if recording.isSplit { _ = finishLeftSplit(name) } else { completeLeftSidecar(name) }
      }
    }
  }

  /// Gives the streams of which something is recorded and nothing is left, or that are still to be removed. For a thread
  /// of its own.
  package func findRemoved(_ gone: (String) -> Void) throws(SystemError) {
    for names in [try parts.names(), try owners.files()].compactMap(\.self) {
      while case let files = try names.next(1000), !files.isEmpty {
        for base in files.map(StreamOwners.stream) {
          let name = StreamName(base: base)
          if isDiscarded(name) || isForgettable(name) { gone(base) }
        }
      }
    }
  }

  /// Gives the name of each unfinished recording, and how many seconds ago it was written, to `found`. Takes as long as
  /// the directory is large: for a thread of its own.
  package func findUnfinished(_ found: (StreamName, Int64) -> Void) throws(SystemError) {
    let names = try DirectoryNames(of: directory)
    let now = WallClock.now.seconds
    while case let files = try names.next(1000), !files.isEmpty {
      for file in files {
        if let name = StreamName(pendingSidecar: file) { completeLeftSidecar(name) }
        // The sidecar is the last to go.
        if let name = StreamName(hiddenGaps: file), !isThere(name.pendingSidecar) { unlinkat(directory, file, 0) }
        var status = stat()
        guard let name = StreamName(partialFile: file), !isDiscarded(name), !finishLeftSplit(name),
          fstatat(directory, file, &status, AT_SYMLINK_NOFOLLOW) == 0,
          status.st_mode & S_IFMT == S_IFREG
        else { continue }
        found(name, now.subtractingReportingOverflow(Int64(status.st_mtim.tv_sec)).partialValue)
      }
    }
  }
}
