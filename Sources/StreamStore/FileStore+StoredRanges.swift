// Determines which bytes of a stream its recordings contain.

internal import DiskFiles
package import EventLoops
package import StreamServing

/// How bytes relate to those that closed recordings of their stream contain.
package enum ClosedComparison {
  case same, different
  /// Some cannot be compared, because an operator has moved a recording or the record of its received head away.
  case unknown
}

extension FileStore {
  /// Where the bytes of a stream are stored. Call it while no recording of the stream is being finished or removed.
  package func storedRanges(of name: StreamName) throws(SystemError) -> StoredRanges {
    // This may correct the log.
    let extent = try measure(name)
    let log = try parts.lines(of: name.base)
    // A recording that grows, is complete or is being removed is not closed, nor are those into which it was split.
    let isClosed = extent == .closed && log.last?.isDiscarded != true
    let firstOpen = isClosed ? Int.max : log.firstDiscarded
    var closed: [Range<UInt64>] = []
    for part in log.closedParts.values where part.number < firstOpen { closed += try received(part, name, log) }
    guard case .stored(let start, let length, let gaps) = extent, !gaps.isDistrusted else {
      return StoredRanges(closed: closed)
    }
    let part = log.last ?? RecordingPart(file: name.final)
    return StoredRanges(closed: closed, growing: start..<max(start, length), holes: try holes(part, name, log))
  }

  /// Compares bytes of a stream with its closed recordings, which contain all of them according to
  /// ``storedRanges(of:)``.
  package func compareClosed(
    _ bytes: Span<UInt8>, at offset: UInt64, of name: StreamName
  ) throws(SystemError) -> ClosedComparison {
    guard !bytes.isEmpty else { return .same }
    var unequal = [offset..<(offset + UInt64(bytes.count))]
    var unknown: [Range<UInt64>] = []
    // Several may contain the same byte. It is stored if one of them does.
    for part in try parts.lines(of: name.base).current.values.sorted(by: { $0.number > $1.number }) {
      let first = max(part.start, part.firstReceived)
      guard let end = part.end, first < end else { continue }
      let recording = name.recording(part.number)
      let contained = unequal.map { (first..<end).clamped(to: $0) }.filter { !$0.isEmpty }
      guard !contained.isEmpty else { continue }
      // The holes are read first, because a removal moves them before the recording.
      let held = contained.subtracting(GapRecord.holes(in: try gapText(recording) ?? []))
      guard let file = try openEarlier(recording, part) else {
        unknown += held
        continue
      }
      let descriptor = try file.acquire()
      defer { file.release() }
      for range in held {
        let piece = Int(range.lowerBound - offset)..<Int(range.upperBound - offset)
        let isSame = try BodyWriter.matches(
          descriptor, bytes, [piece], count: piece.count, at: range.lowerBound - part.start + part.headerLength,
          of: file)
        if isSame { unequal = unequal.subtracting([range]) }
      }
    }
    if unequal.isEmpty { return .same }
    return unequal.subtracting(unknown).isEmpty ? .unknown : .different
  }

  /// The received bytes of a closed recording, and of those before it in its series.
  private func received(
    _ part: RecordingPart, _ name: StreamName, _ log: [RecordingPart]
  ) throws(SystemError) -> [Range<UInt64>] {
    let first = log.current[log.firstOfSeries(part)] ?? part
    guard let end = part.end, first.firstReceived < end else { return [] }
    // Without a record of its holes, which an operator has moved away, it is unknown which bytes it has received.
    let (received, overflow) = part.firstReceived.addingReportingOverflow(part.count)
    if overflow || received < end, try gapText(name.recording(part.number)) == nil { return [] }
    return [first.firstReceived..<end].subtracting(try holes(part, name, log))
  }

  /// The holes of a recording, and of those before it in its series. It includes all bytes that may be in a hole,
  /// because an operator has moved the record of it away.
  private func holes(
    _ part: RecordingPart, _ name: StreamName, _ log: [RecordingPart]
  ) throws(SystemError) -> [Range<UInt64>] {
    // Most series have no holes, and may have many recordings.
    let first = (part.series?.holesEnd ?? 0) > 0 ? log.firstOfSeries(part) : part.number
    var holes: [Range<UInt64>] = []
    for number in first..<part.number { holes += GapRecord.holes(in: try gapText(name.recording(number)) ?? []) }
    if let series = part.series, let beginning = log.current[first], beginning.firstReceived < series.holesEnd {
      let recorded = holes.merged().reduce(UInt64(0)) { $0 + ($1.upperBound - $1.lowerBound) }
      let missing = part.missingBefore - min(part.missingBefore, beginning.missingBefore)
      if recorded < missing { holes.append(beginning.firstReceived..<series.holesEnd) }
    }
    return holes + GapRecord.holes(in: try gapText(name.recording(part.number)) ?? [])
  }
}

extension [RecordingPart] {
  /// The number of the first recording in the series of a part.
  fileprivate func firstOfSeries(_ part: RecordingPart) -> Int {
    last { $0.series == nil && $0.number <= part.number }?.number ?? part.number
  }
}
