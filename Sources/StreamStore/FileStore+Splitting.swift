// A stream that is stored in several files, one after the other, while it goes on.
//
// The next file is made, with a copy of the header, before the log says that the stream continues in it. From then on
// the one before it does not change any more; what is left to do for it (its true sizes, its sidecar, its final name)
// can be done at any time, by this server or by the next one. So there is no moment at which a byte is in no file or in
// two.

internal import DiskFiles
package import EventLoops
internal import Glibc
internal import Recordings
package import StreamServing
internal import Synchronization

/// The file of a recording whose stream continues in the next one.
private struct SplitFile: Sendable {
  var finishing: FinishingRecording
  var file: OpenFile
}

extension FileStore {
  /// How many lines the log of a stream may have before those of recordings that were finished long ago are left out.
  private static let longLog = 48
  /// How many of the last lines stay.
  private static let keptLines = 16

  // MARK: Splitting

  /// Has a stream continue in a next file, from its present end on. Whatever fails, it continues in the one that it is
  /// in.
  func split(_ stream: StreamFile, _ head: WAVHead) throws(SystemError) -> SplitRecording {
    let (name, end, size) = (stream.name, stream.length, stream.position(of: stream.length))
    try stream.stored.check(length: size)
    var closed = stream.part ?? RecordingPart(file: name.final)
    (closed.file, closed.number, closed.end) = (name.final, name.part, end)
    if !name.streamID.isEmpty { closed.streamID = name.streamID }
    (closed.isSplit, closed.head) = (true, head.bytes)
    let next = nextName(after: name)
    var part = RecordingPart(file: next.final)
    (part.number, part.streamID, part.owner) = (next.part, closed.streamID, closed.owner)
    (part.start, part.firstReceived, part.headerLength) = (end, end, UInt64(head.bytes.count))
    part.series = .init(
      start: closed.seriesStart, missing: stream.gaps.missing, holesEnd: stream.gaps.holesEnd)

    let file = try beginFile(next, head.bytes)
    do throws(SystemError) {
      try inheritSidecar(from: name, to: next)
      try log(closed, part, of: name.base)
    } catch {
      unlinkat(directory, next.pendingSidecar, 0)
      unlinkat(directory, next.partial, 0)
      throw error
    }
    if durability != .none {
      // Whoever waits for a sync of the stream waits for these as well.
      for file in [StreamParts.path(name.base), StreamParts.directoryName] {
        disk.sync(.named(file, in: directory), "fdatasync \(file)") { _ in }
      }
    }
    let left = SplitFile(
      finishing: FinishingRecording(name: name, start: stream.start, length: end, size: size, ending: .split),
      file: stream.stored)
    let split = SplitRecording(
      name: name, start: stream.start, length: end,
      missing: stream.gaps.missing - min(stream.gaps.missing, closed.series?.missing ?? 0),
      finish: { [self] loop, completion in finishSplit(left, loop: loop, completion: completion) })
    stream.continueIn(next, file, part)
    // Without it only the sidecar says less.
    if let description = stream.description { try? describe(stream, description) }
    return split
  }

  /// Makes the file of a next part, which begins with `bytes`.
  private func beginFile(_ name: StreamName, _ bytes: [UInt8]) throws(SystemError) -> OpenFile {
    let file: OpenFile
    do throws(SystemError) {
      file = try create(name)
    } catch {
      // A server died before the log said that the stream continues there: no byte of the stream is in it.
      guard error.code == EEXIST, let (left, size) = try openExisting(name.partial, O_RDONLY), size <= bytes.count,
        beginning(of: left, count: bytes.count) == Array(bytes.prefix(Int(size)))
      else { throw error }
      unlinkat(directory, name.partial, 0)
      file = try create(name)
    }
    // What an earlier attempt left.
    unlinkat(directory, name.gaps, 0)
    try writeBeginning(bytes, file, name)
    return file
  }

  /// Writes what a next part begins with.
  func writeBeginning(_ bytes: [UInt8], _ file: OpenFile, _ name: StreamName) throws(SystemError) {
    let descriptor = try file.acquire()
    defer { file.release() }
    let written = bytes.withUnsafeBytes { pwrite(descriptor, $0.baseAddress, $0.count, 0) }
    guard written == bytes.count else {
      let error = written < 0 ? errno : ENOSPC
      unlinkat(directory, name.partial, 0)
      throw SystemError(operation: "write \(name.partial)", code: error)
    }
  }

  /// A power failure may have left files of the stream that its log has lost.
  private func nextName(after name: StreamName) -> StreamName {
    var next = name
    repeat {
      next.part += 1
    } while next.part < RecordingPart.largestNumber && (isThere(next.final) || isLeft(next))
    return next
  }

  /// Whether there is an unfinished file of that name which is more than a header.
  private func isLeft(_ name: StreamName) -> Bool {
    var status = stat()
    return fstatat(directory, name.partial, &status, AT_SYMLINK_NOFOLLOW) == 0
      && status.st_size > off_t(WAVHead.maximumLength)
  }

  private func log(_ closed: RecordingPart, _ next: RecordingPart, of base: String) throws(SystemError) {
    let lines = try parts.lines(of: base)
    guard lines.count >= Self.longLog else { return try parts.append(closed, next, to: base) }
    // A recording that an interruption has closed counts against the quotas for as long as it is there.
    let old = lines.dropLast(Self.keptLines).filter { $0.number == 1 || ($0.end != nil && !$0.isSplit) }
    try parts.rewrite(
      old + lines.suffix(Self.keptLines) + [closed, next], of: base, isSynced: durability != .none)
  }

  // MARK: Finishing

  /// Gives a recording its final name whose stream continues in another file. `completion` is called on the loop's
  /// thread.
  private func finishSplit(
    _ split: SplitFile, loop: EventLoop, completion: @escaping (SystemError?, _ isDataLost: Bool) -> Void
  ) {
    // Touched on the loop's thread only; the worker merely carries it back there.
    nonisolated(unsafe) let completion = completion
    finishSplit(split) { error, isDataLost in loop.execute { completion(error, isDataLost) } }
  }

  /// - Parameter completion: called on any thread; at once if somebody else is finishing the recording.
  private func finishSplit(
    _ split: SplitFile, _ completion: @escaping @Sendable (SystemError?, _ isDataLost: Bool) -> Void
  ) {
    let name = split.finishing.name
    guard splitting.withLock({ $0.insert(name.fileBase).inserted }) else { return completion(nil, false) }
    guard isThere(name.partial) else {
      // The other one who was at it has done it.
      _ = splitting.withLock { $0.remove(name.fileBase) }
      return completion(nil, false)
    }
    let isDataSynced = Lock(false)
    let dataSynced: @Sendable () -> Void = { isDataSynced.withLock { $0 = true } }
    complete(split.finishing, split.file, forgetsLog: false, dataSynced: dataSynced) { [self] error, _ in
      var error = error
      if error != nil, !isThere(name.partial), isThere(name.final) {
        // A server that ended a moment ago was at it, too.
        error = nil
        completeSidecar(name)
      }
      // Nobody can tell which of its bytes the disk has. Asking it again proves nothing (fsync(2), "Errors").
      let isDataLost = error != nil && !isDataSynced.withLock { $0 }
      if isDataLost, let error { brokenSplits.withLock { $0[name.base] = error } }
      _ = splitting.withLock { $0.remove(name.fileBase) }
      completion(error, isDataLost)
    }
  }

  /// Why the disk did not take a recording of the stream that was finished while the stream went on; nil if it did.
  package func brokenSplit(of name: StreamName) -> SystemError? { brokenSplits.withLock { $0[name.base] } }

  /// Finishes a recording that an earlier server has split off. False if the file is not one.
  func finishLeftSplit(_ name: StreamName) -> Bool {
    guard !isEnded.load(ordering: .acquiring), let log = try? parts.lines(of: name.base), let last = log.last,
      last.number != name.part,
      let part = log.last(where: { $0.number == name.part }), part.isSplit, let end = part.end,
      let (_, finalExtension) = StreamName.parts(ofFile: part.file[...])
    else { return false }
    let name = name.withExtension(String(finalExtension))
    // This server is at it itself.
    guard splitting.withLock({ !$0.contains(name.fileBase) }) else { return true }
    do throws(SystemError) {
      guard let (file, size) = try openExisting(name.partial, O_RDWR) else { return true }
      try restoreHead(name)
      let length = part.start + (size - min(size, part.headerLength))
      let finishing = FinishingRecording(
        name: name, streamID: part.streamID, start: part.start, length: min(length, end), size: size, ending: .split)
      finishSplit(SplitFile(finishing: finishing, file: file)) { [self] error, _ in
        if error != nil { finishLater(name, isSplit: true) }
      }
    } catch {
      finishLater(name, isSplit: true)
    }
    return true
  }

  // MARK: Reading

  /// Whether bytes that came for earlier recordings of a stream are what these hold. What somebody has moved away
  /// cannot be compared, and counts as the same.
  func matchesEarlier(
    _ name: StreamName, _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool {
    let log = try parts.lines(of: name.base)
    var compared = 0
    while compared < count {
      let position = offset + UInt64(compared)
      let part = log.last { part in
        part.isSplit && part.start <= position && position < (part.end ?? 0)
      }
      guard let part, let end = part.end else { return true }
      let length = Int(min(UInt64(count - compared), end - position))
      var earlier = name
      earlier.part = part.number
      if let file = try openEarlier(earlier, part) {
        let descriptor = try file.acquire()
        defer { file.release() }
        let rest = pieces.dropped(octets: compared)
        func matches() throws(SystemError) -> Bool {
          try BodyWriter.matches(
            descriptor, bytes, rest, count: length, at: position - part.start + part.headerLength, of: file)
        }
        if try !matches() {
          // Its head may have got its true sizes since.
          guard knowsHead(of: file, earlier, part), try matches() else { return false }
        }
      }
      compared += length
    }
    return true
  }

  private func openEarlier(_ name: StreamName, _ part: RecordingPart) throws(SystemError) -> OpenFile? {
    // It may get its final name between the first look and the second.
    for file in [part.file, name.partial, part.file] {
      guard let (opened, _) = try openExisting(file, O_RDONLY) else { continue }
      _ = knowsHead(of: opened, name, part)
      return opened
    }
    return nil
  }

  /// Has the head of an earlier recording read as it was received. False if it was not changed.
  private func knowsHead(of file: OpenFile, _ name: StreamName, _ part: RecordingPart) -> Bool {
    guard let (_, finalExtension) = StreamName.parts(ofFile: part.file[...]), let end = part.end else { return false }
    let head = receivedHead(
      of: name.withExtension(String(finalExtension)), size: end - part.start + part.headerLength)
    if !head.isEmpty { file.headChanges(from: head) }
    return !head.isEmpty
  }
}
