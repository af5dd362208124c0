// Returns streams to an earlier state, for a caller that stores their bytes again from another source.

internal import DiskFiles
package import EventLoops
internal import Glibc
package import StreamServing

/// The extent of a growing recording.
package struct GrowthExtent: Equatable, Sendable {
  /// The number of the part, from 1.
  package var part: Int
  /// The stream offset after its last byte.
  package var length: UInt64

  package init(part: Int, length: UInt64) { (self.part, self.length) = (part, length) }
}

extension FileStore {
  /// Why the records of this stream cannot be read. Nil if they can, or if descriptors or memory are short.
  package func recordsError(of name: StreamName) -> SystemError? {
    let error = attempt { () throws(SystemError) in _ = try parts.lines(of: name.base) }
    return error.flatMap { $0.isShortage ? nil : $0 }
  }

  /// The extent of the stream's growing recording; nil if there is none.
  package func growth(of name: StreamName) throws(SystemError) -> GrowthExtent? {
    guard case .stored(_, let length, _) = try measure(name) else { return nil }
    return GrowthExtent(part: try parts.lines(of: name.base).last?.number ?? 1, length: length)
  }

  /// Undoes the splits of a recording since it had that extent, unless the disk has all of it, in which case it has its
  /// final name. The contents of the following recordings are removed, because they are after that extent. Call it
  /// before ``findUnfinished(except:_:unreadable:)``, which would finish a recording of which the disk may lack bytes.
  package func undoSplit(_ name: StreamName, to extent: GrowthExtent) throws(SystemError) {
    let log = try parts.lines(of: name.base)
    guard let last = log.last?.number, last > extent.part, log.last?.isDiscarded == false,
      let closed = log.last(where: { $0.number == extent.part }), closed.isSplit
    else { return }
    let name = name.recording(extent.part)
    guard isThere(name.partial), try !isForeign(name, closed) else { return }
    // A file whose number has no line is not of this stream.
    for part in Set(log.map(\.number)).filter({ $0 > extent.part }) {
      let later = name.recording(part)
      if let line = log.last(where: { $0.number == part }), isThere(line.file) { removeFinished(later, line) }
      if try !isStranger(later, log) { unlinkat(directory, later.partial, 0) }
      unlinkat(directory, later.pendingSidecar, 0)
      try removeGaps(of: later)
    }
    // The files are removed first. If the log still lists them, the next start repeats this.
    var earlier = log.filter { $0.number < extent.part || $0.number == extent.part && !$0.isSplit }
    if extent.part > 1, earlier.last?.number != extent.part {
      earlier.append(closed.reopened)
    }
    if earlier.isEmpty { return try parts.forget(name.base) }
    try parts.rewrite(earlier, of: name.base, isSynced: durability != .none)
  }

  /// Removes a recording that got its final name although the previous one has none.
  private func removeFinished(_ name: StreamName, _ line: RecordingPart) {
    guard let (_, finalExtension) = StreamName.parts(ofFile: line.file[...]) else { return }
    let name = name.withExtension(String(finalExtension))
    if let sidecar = sidecar(name.sidecar) { unlink(sidecar) }
    for file in [name.final, name.sidecar] { unlinkat(directory, file, 0) }
  }

  /// Truncates a growing recording to its earlier extent, and removes it if it did not exist. A part that the stream
  /// has begun since loses its bytes but stays, because the log of the stream lists it.
  ///
  /// - Parameters:
  ///   - extent: the earlier extent; nil if the recording did not exist.
  ///   - wasSynced: whether the disk has accepted all bytes of the extent. What it has refused since then does not
  ///     matter any more.
  /// - Returns: how many bytes are missing compared with the extent.
  @discardableResult
  package func rollBack(
    _ name: StreamName, to extent: GrowthExtent?, wasSynced: Bool = false
  ) throws(SystemError) -> UInt64 {
    let log = try parts.lines(of: name.base)
    let name = name.lastRecording(log)
    guard try !isStranger(name, log), let growing = try openGrowing(name, log) else { return 0 }
    if let extent, extent.part == name.part {
      guard growing.length >= extent.length else { return extent.length - growing.length }
      if growing.length > extent.length { try growing.truncate(to: max(growing.start, extent.length)) }
      if wasSynced { try forgetRefusals(of: growing, log) }
    } else if extent == nil, name.part == 1 {
      // The first part of a stream goes as a whole.
      while try !removeGrowing(name) {}
      try parts.forget(name.base)
      owners.forget(name)
    } else if growing.length > growing.start {
      try growing.truncate(to: growing.start)
    }
    return 0
  }

  /// Removes from the record of a growing recording that the disk has refused bytes of it. Call it after all of these
  /// were removed.
  private func forgetRefusals(of stream: StreamFile, _ log: [RecordingPart]) throws(SystemError) {
    guard let text = try gapText(stream.name), GapRecord.isRecord(text),
      let remainder = GapRecord.withoutRefusals(text, from: stream.part?.firstReceived ?? 0, length: stream.length)
    else { return }
    // If an earlier recording that was split off lacks bytes, the whole stream is unreliable.
    for number in Set(log.map(\.number)) where number < stream.name.part {
      let earlier = stream.name.recording(number)
      if try exists(earlier.partial), try readGaps(earlier, length: 0).isDistrusted { return }
    }
    try trimGaps(stream.name, to: remainder)
  }
}
