// Records the end of a recording: the correction of its head, and its sidecar. If a server dies at any moment, either
// all of this is done or the next server completes it.
//
// 1. `.NAME.sidecar` gets everything except the digests of the file, and the received head if that will change.
// 2. The head gets its true sizes.
// 3. The recording gets its final name, and its sender is informed.
// 4. The digests are computed in the background, and `NAME.sidecar` replaces the hidden file:
//    `FileStore+Digests.swift`. They are compared with the digest of the received bytes, if it is known.
//
// If the hidden file exists beside a `.part`, the received head is restored, because the recording continues. If it
// exists beside a recording with its final name, the digests are missing.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import Recordings
internal import StreamServing

/// How a recording ends.
package enum RecordingEnding: Sendable {
  /// The sender has ended the stream, without having announced its length.
  case live
  /// All bytes of an announced length have arrived.
  case file
  /// The sender did not return.
  case interrupted
  /// It has reached its limit, and its stream continues in the next one.
  case split
}

/// A recording that will get its final name.
package struct FinishingRecording: Sendable {
  var name: StreamName
  /// The stream's ID if ``name`` does not contain it.
  var streamID: String?
  /// The stream offset of the first byte after a copied header.
  var start: UInt64
  /// The stream offset after the last byte.
  var length: UInt64
  /// The size of the file, in bytes.
  var size: UInt64
  var ending: RecordingEnding
  /// The SHA-256 of the whole recording, computed from the bytes as they arrived or stated by the sender. Nil if it is
  /// unknown.
  var sha256: [UInt8]? = nil
}

extension StreamName {
  /// The recording of a hidden sidecar; nil for other files.
  init?(pendingSidecar file: String) { self.init(hidden: file, RecordingSidecar.fileExtension) }

  /// The recording of hidden gaps; nil for other files.
  init?(hiddenGaps file: String) { self.init(hidden: file, ".gaps") }

  private init?(hidden file: String, _ ending: String) {
    guard file.hasPrefix("."), file.hasSuffix(ending),
      let name = StreamName(partialFile: file.dropFirst().dropLast(ending.count) + ".part")
    else { return nil }
    self = name
  }

  /// The name of its gaps while it is removed in its place.
  var hiddenGaps: String { ".\(gaps)" }
}

extension FileStore {
  /// The last millisecond of the year 9999, the limit of RFC 3339.
  private static let latestTime: Int64 = 253_402_300_799_999

  // MARK: What the sender states

  /// Keeps the sender's description of its stream until the recording is complete.
  func describe(_ stream: StreamFile, _ description: StreamDescription) throws(SystemError) {
    guard hasSidecars, !stream.isComplete else { return }
    let known = try readPending(stream.name)
    var sidecar = known ?? RecordingSidecar(file: stream.name.final)
    if description.started != nil { setStart(of: stream, description, &sidecar) }
    sidecar.device = description.device ?? sidecar.device
    sidecar.format = description.format ?? sidecar.format
    sidecar.rate = description.rate.map { Int(clamping: $0) } ?? sidecar.rate
    sidecar.channels = description.channels.map { Int(clamping: $0) } ?? sidecar.channels
    sidecar.software = description.software ?? sidecar.software
    if !description.clockSteps.isEmpty {
      sidecar.clockSteps = description.clockSteps.map { .init(offset: $0.offset, milliseconds: $0.milliseconds) }
    }
    if sidecar != known { try writePending(sidecar, stream.name) }
  }

  /// Determines when the recording began: the sender states when the stream began, and this recording began this many
  /// frames later.
  private func setStart(of stream: StreamFile, _ description: StreamDescription, _ sidecar: inout RecordingSidecar) {
    guard var time = description.started else { return }
    if stream.start > 0 {
      // The stream begins with the head. A later recording has a copy of it.
      guard let head = wavHead(of: stream.stored),
        let clock = StreamClock(
          started: time, first: UInt64(head.received.count), head, steps: description.clockSteps)
      else { return }
      time = clock.time(at: stream.start)
      guard (0...Self.latestTime).contains(time) else { return }
    }
    sidecar.started = WallClock(seconds: time / 1000, milliseconds: Int(time % 1000)).iso8601
    sidecar.startedBySender = true
  }

  /// The stream offset at which a recording ends because of the time of day; nil if it does not.
  func endByClock(of stream: StreamFile, _ split: RecordingSplit, _ head: WAVHead) -> UInt64? {
    guard split.needsClock else { return nil }
    let start = max(stream.start, UInt64(head.received.count))
    let sidecar = sidecar(stream.name.pendingSidecar)
    var began: WallClock?
    var steps: [StreamDescription.ClockStep] = []
    if let sidecar, sidecar.startedBySender {
      began = sidecar.started.flatMap { WallClock(iso8601: $0) }
      steps = sidecar.clockSteps.map { .init(offset: $0.offset, milliseconds: $0.milliseconds) }
    } else {
      began = WallClock(birthOf: stream.name.partial, in: directory)
    }
    return began.flatMap { StreamClock(started: $0.sinceEpoch, first: start, head, steps: steps) }?
      .end(of: split, from: start)
  }

  /// The sender's description of its stream also applies to the next recording.
  func inheritSidecar(from name: StreamName, to next: StreamName) throws(SystemError) {
    guard hasSidecars else { return }
    var sidecar = try readPending(name) ?? RecordingSidecar(file: next.final)
    (sidecar.file, sidecar.part) = (next.final, next.part)
    (sidecar.started, sidecar.startedBySender) = (WallClock.now.iso8601, false)
    (sidecar.stored, sidecar.received, sidecar.receivedHead) = (nil, nil, [])
    (sidecar.isClockSynchronized, sidecar.firstSeen) = (nil, nil)
    try writePending(sidecar, next)
  }

  // MARK: Completing

  /// The steps between the check of a recording and its renaming.
  func sidecarSteps(_ finishing: FinishingRecording, _ file: OpenFile) -> [DiskSync.Step] {
    let name = finishing.name
    let finished = Lock<[UInt8]?>(nil)
    let describing: DiskSync.Step = { [self] () throws(SystemError) in
      // As with the final name, the recording does not end while something else has the name of its sidecar.
      try checkSidecar(of: name)
      var sidecar = try describe(finishing)
      if finishing.ending != .file, name.finalExtension == ".wav",
        let head = try head(of: name), let corrected = head.finished(fileLength: finishing.size)
      {
        sidecar.receivedHead = head.received
        finished.withLock { $0 = corrected }
        // The stream may continue in another file, and be read from its beginning.
        file.headChanges(from: head.received)
      }
      try writePending(sidecar, name)
      // This must precede the change of the head, because otherwise the head could not be restored.
      return DiskSync.Touched(
        files: [.named(name.pendingSidecar, in: directory)],
        directory: sidecar.receivedHead.isEmpty ? nil : directory)
    }
    let correcting: DiskSync.Step = { [self] () throws(SystemError) in
      guard let head = finished.withLock({ $0 }) else { return DiskSync.Touched() }
      try writeHead(head, name.partial)
      return DiskSync.Touched(files: [.named(name.partial, in: directory)])
    }
    return [describing, correcting]
  }

  private func describe(_ finishing: FinishingRecording) throws(SystemError) -> RecordingSidecar {
    let name = finishing.name
    var sidecar = try readPending(name) ?? RecordingSidecar(file: name.final)
    sidecar.file = name.final
    if let id = finishing.streamID ?? (name.streamID.isEmpty ? nil : name.streamID) { sidecar.stream = id }
    sidecar.part = name.part
    sidecar.offset = finishing.start
    sidecar.state =
      switch finishing.ending {
      case .live, .file: .complete
      case .interrupted: .interrupted
      case .split: .split
      }
    sidecar.isLive = finishing.ending != .file
    if sidecar.started == nil { sidecar.started = WallClock(birthOf: name.partial, in: directory)?.iso8601 }
    let clock = retention?.clock ?? RetentionState.Clock()
    sidecar.ended = clock.now().iso8601
    (sidecar.isClockSynchronized, sidecar.firstSeen) = (clock.isSynchronized(), nil)
    sidecar.stored = RecordingSidecar.Content(bytes: finishing.size)
    sidecar.received = sidecar.stored
    sidecar.received?.sha256 = finishing.sha256.map { Hexadecimal.text($0) }
    let gaps = GapRecord.all(in: try gapText(name) ?? [])
    sidecar.gaps = gaps.map { .init(offset: $0.offset, length: $0.length, cause: $0.cause.rawValue) }
    sidecar.missing = try readGaps(name, from: finishing.start, length: finishing.length).missing
    sidecar.server = software
    return sidecar
  }

  // MARK: The head

  /// The received head of a finished recording. It is empty if the head was not changed, and nil if no sidecar states
  /// it.
  ///
  /// - Throws: ``SystemError`` if this cannot be determined now, because descriptors or memory are short.
  func recordedHead(of name: StreamName, size: UInt64) throws(SystemError) -> [UInt8]? {
    // The hidden one is read first, because the other exists before it is removed.
    for file in [name.pendingSidecar, name.sidecar, removedSidecar(of: name)] {
      guard let sidecar = try readSidecar(file, in: directory), sidecar.file == name.final,
        sidecar.stored?.bytes == size
      else { continue }
      return sidecar.receivedHead
    }
    return nil
  }

  /// Restores the received head of a recording that did not get its final name, whatever the length of its file.
  ///
  /// - Parameter outlivesLoop: whether another server may use the directory meanwhile. That one then restores it.
  /// - Throws: ``SystemError``, also if it cannot be determined now whether the head was changed.
  func restoreHead(_ name: StreamName, outlivesLoop: Bool = false) throws(SystemError) {
    guard isThere(name.partial), var sidecar = try readPending(name), let stored = sidecar.stored else { return }
    if let received = WAVHead(sidecar.receivedHead), let finished = received.finished(fileLength: stored.bytes),
      try readHead(name.partial, finished.count) == finished
    {
      let isWritten = try unlessEnded(outlivesLoop: outlivesLoop) { () throws(SystemError) in
        try writeHead(received.received, name.partial)
      }
      guard isWritten else { return }
      if durability != .none {
        let descriptor = try files.openRegular(name.partial, in: directory, O_RDONLY)
        defer { close(descriptor) }
        try retryingInterrupts("fdatasync \(name.partial)") { fdatasync(descriptor) }
      }
    }
    (sidecar.stored, sidecar.received, sidecar.receivedHead) = (nil, nil, [])
    try unlessEnded(outlivesLoop: outlivesLoop) { () throws(SystemError) in try writePending(sidecar, name) }
  }

  private func head(of name: StreamName) throws(SystemError) -> WAVHead? {
    WAVHead(try readHead(name.partial, WAVHead.maximumLength))
  }

  private func readHead(_ file: String, _ count: Int) throws(SystemError) -> [UInt8] {
    let descriptor = try files.openRegular(file, in: directory, O_RDONLY)
    defer { close(descriptor) }
    var head = [UInt8](repeating: 0, count: count)
    let read = try retryingInterrupts("read \(file)") { pread(descriptor, &head, count, 0) }
    return Array(head.prefix(read))
  }

  /// Uses its own descriptor, because appending descriptors write at the end, whatever the position.
  private func writeHead(_ head: [UInt8], _ file: String) throws(SystemError) {
    let descriptor = try files.openRegular(file, in: directory, O_WRONLY)
    defer { close(descriptor) }
    try writeAll(head, to: descriptor, at: 0, "write the head of \(file)")
  }

  // MARK: The hidden file

  /// The hidden sidecar of a recording; nil if there is none, or if it cannot be parsed.
  ///
  /// - Throws: ``SystemError`` if the disk or the kernel refuses to read it. It may be complete nevertheless.
  func readPending(_ name: StreamName) throws(SystemError) -> RecordingSidecar? {
    try knownSidecar(name.pendingSidecar, in: directory)
  }

  /// The sidecar in a file; nil if there is none, or if it cannot be parsed.
  ///
  /// - Throws: ``SystemError`` if the disk or the kernel refuses to read it. It may be complete nevertheless.
  func knownSidecar(_ file: String, in directory: Int32) throws(SystemError) -> RecordingSidecar? {
    do throws(SystemError) {
      let bytes = try files.contents(of: file, in: directory)
      return try? RecordingSidecar(parsing: bytes)
    } catch {
      // Nothing is there, or something that no server has written, such as a directory, a FIFO, or a file of any size.
      if error.isSpecialFile || [ENOENT, EOVERFLOW].contains(error.code) { return nil }
      throw error
    }
  }

  /// Like ``knownSidecar(_:in:)``, but nil if it cannot be read.
  ///
  /// - Parameter parent: the directory; nil for the directory of recordings.
  func sidecar(_ file: String, in parent: Int32? = nil) -> RecordingSidecar? {
    (try? knownSidecar(file, in: parent ?? directory)) ?? nil
  }

  /// Like ``knownSidecar(_:in:)``, but nil if the disk cannot read it.
  ///
  /// - Throws: ``SystemError`` if it cannot be read now, because descriptors or memory are short.
  func readSidecar(_ file: String, in directory: Int32) throws(SystemError) -> RecordingSidecar? {
    do throws(SystemError) {
      return try knownSidecar(file, in: directory)
    } catch {
      if error.isShortage { throw error }
      return nil
    }
  }

  private func writePending(_ sidecar: RecordingSidecar, _ name: StreamName) throws(SystemError) {
    try writeNew(sidecar, name)
    try retryingInterrupts("rename \(name.newSidecar)") {
      renameat(directory, name.newSidecar, directory, name.pendingSidecar)
    }
  }

  /// Writes a sidecar under a temporary name. The caller gives it its name.
  func writeNew(_ sidecar: RecordingSidecar, _ name: StreamName) throws(SystemError) {
    let file = name.newSidecar
    let descriptor = try files.openRegular(file, in: directory, O_WRONLY | O_CREAT | O_TRUNC, mode: 0o644)
    defer { close(descriptor) }
    do throws(SystemError) {
      try writeAll(Array(sidecar.text.utf8), to: descriptor, "write \(file)")
    } catch {
      unlinkat(directory, file, 0)
      throw error
    }
  }
}
