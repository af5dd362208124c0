// Distinguishes the growing recordings of a collector from files of other programs whose names end with `.part`, too.
//
// A collector that starts removes what grew since its checkpoint, and operators keep other files in its directory, such
// as an interrupted download. So the log of a stream names each growing recording before its file is created. A server
// needs no such proof, because it removes no recording at its start.

internal import DiskFiles
package import EventLoops
internal import Glibc
internal import Recordings
package import StreamServing

extension SystemError {
  /// - Parameter file: the name under which a recording would grow.
  fileprivate init(stranger file: String) {
    self.init(operation: "open \(file), which no record of the collector names", code: EPERM)
  }
}

extension FileStore {
  /// Names the first recording of a stream in the stream's log. Call it before the recording has a file.
  func claim(_ name: StreamName) throws(SystemError) {
    var part = RecordingPart(file: name.final)
    if !name.streamID.isEmpty { part.streamID = name.streamID }
    try parts.append(part, to: name.base)
    syncLog(name)
  }

  /// Claims the first recording of a stream if it grows and no log names it, for a caller that knows it from another
  /// record. An earlier version, or a server, may have begun it.
  ///
  /// - Returns: whether it was claimed.
  @discardableResult
  package func adopt(_ name: StreamName) throws(SystemError) -> Bool {
    guard try parts.lines(of: name.base).isEmpty, let (file, _) = try openExisting(name.partial, O_RDONLY),
      // A recording with its final name no longer grows.
      try recordings.findKnown(name) == nil
    else { return false }
    try claim(name.withExtension(Self.fileExtension(of: beginning(of: file, count: 12))))
    return true
  }

  /// Whether a file of another program has the name under which a recording grows. Always false for a server.
  func isStranger(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) -> Bool {
    guard isCollected, try knownStatus(name.partial, in: directory) != nil else { return false }
    if let line = log.last(where: { $0.number == name.part }) {
      // What appears beside a recording that has its final name is not the collector's, and neither is another file at
      // the growing name of a closed one that was moved away.
      if line.end == nil { return try isComplete(name) }
      if try isForeign(name, line) { return true }
      return try !isBeingClosed(name, line)
    }
    if !log.isEmpty { return true }
    // A power failure may have destroyed the content of the log, which named the first recording.
    if name.part == 1, try exists(StreamParts.path(name.base)) { return false }
    return true
  }

  /// Whether a file is the recording of a line with an end that a killed collector was about to give its final name.
  private func isBeingClosed(_ name: StreamName, _ line: RecordingPart) throws(SystemError) -> Bool {
    guard let status = try knownStatus(name.partial, in: directory) else { return false }
    let size = UInt64(max(0, status.st_size))
    // The line about a recording whose bytes are not trusted states that it has none.
    if line.end == line.start, try !exists(line.file), try readGaps(name, length: 0).isDistrusted {
      if size >= line.headerLength.addingSaturated(line.count) { return true }
      // A power failure may have shortened the file, but it has kept the mark.
      if try hasMark(name.partial) { return true }
    }
    // The sizes of files that are being split off change until they are finished.
    return line.isSplit || size == line.endLength
  }

  private func hasMark(_ name: String) throws(SystemError) -> Bool {
    guard let (file, _) = try openExisting(name, O_RDONLY) else { return false }
    let descriptor = try file.acquire()
    defer { file.release() }
    return try SyncedMark.of(descriptor) != nil
  }

  /// Whether a recording whose line has no end is complete. Something else may have its final name, without a sidecar.
  private func isComplete(_ name: StreamName) throws(SystemError) -> Bool {
    guard try exists(name.sidecar) else { return false }
    return try recordings.findKnown(name) != nil
  }

  /// - Throws: ``SystemError`` if ``isStranger(_:_:)``. Its stream waits until an operator moves the file away.
  func checkStranger(_ name: StreamName, _ log: [RecordingPart]) throws(SystemError) {
    if try isStranger(name, log) { throw SystemError(stranger: name.partial) }
  }

  /// Like ``isStranger(_:_:)``, for a start of a collector. Such a file is reported.
  func leavesAlone(_ name: StreamName) throws(SystemError) -> Bool {
    guard try isStranger(name, parts.lines(of: name.base)) else { return false }
    // A server records the owner of a stream before its first recording has a file. A collector also claims it.
    if name.part == 1, try !exists(Self.checkpointName), try owners.record(of: name) != nil, try adopt(name) {
      return false
    }
    if try removeLeftBeginning(name) { return true }
    reportForeign(
      name.partial,
      "no record of the collector names \(name.partial). The collector ignores the file. Move it to another directory.")
    return true
  }

  /// Removes the file of a next part that a killed collector had begun. Call it only at a start, before a stream can be
  /// split.
  ///
  /// - Returns: false for any other file, which stays.
  private func removeLeftBeginning(_ name: StreamName) throws(SystemError) -> Bool {
    let log = try parts.lines(of: name.base)
    guard let last = log.last, last.end == nil, !last.isDiscarded, name.part > last.number,
      let (growing, _) = try openExisting(name.recording(last.number).partial, O_RDONLY),
      let head = wavHead(of: growing)
    else { return false }
    return try removeBeginning(name, of: head.bytes)
  }

  /// Removes the record of a next part that an earlier collector could not begin before it was killed. Its stream
  /// may never continue, and the record would seem to belong to a missing recording.
  ///
  /// - Parameter file: any file of the directory.
  func removeLeftGaps(_ file: String) throws(SystemError) {
    guard isCollected, file.hasSuffix(".gaps"), let name = StreamName(partialFile: "\(file.dropLast(5)).part"),
      name.part > 1, let part = try parts.lines(of: name.base).current[name.part], part.end == nil, part.series == nil
    else { return }
    for file in [name.partial, part.file, name.sidecar, name.pendingSidecar] where try exists(file) { return }
    // A recording that was moved away may have had holes.
    let holes = GapRecord.holes(in: try gapText(name) ?? [])
    guard holes.allSatisfy({ $0.upperBound <= part.firstReceived }) else { return }
    try retryingInterrupts("remove \(file)") { unlinkat(directory, file, 0) }
  }

  /// Reports a file that is left alone because it does not belong to its stream, once.
  func reportForeign(_ file: String, _ reason: String) {
    guard let emit = reports.withLock({ $0 }), foreignFiles.withLock({ $0.insert(file).inserted }) else { return }
    var event = ServerEvent(.warning, reason: reason)
    event.file = file
    emit(event)
  }
}
