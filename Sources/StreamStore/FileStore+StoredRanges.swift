// Determines which bytes of a stream its recordings contain.

package import EventLoops
package import StreamServing

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

  /// The holes of a recording, and of those before it in its series.
  private func holes(
    _ part: RecordingPart, _ name: StreamName, _ log: [RecordingPart]
  ) throws(SystemError) -> [Range<UInt64>] {
    // Most series have no holes, and may have many recordings.
    let first = (part.series?.holesEnd ?? 0) > 0 ? log.firstOfSeries(part) : part.number
    var holes: [Range<UInt64>] = []
    for number in first...part.number { holes += GapRecord.holes(in: try gapText(name.recording(number)) ?? []) }
    return holes
  }
}

extension [RecordingPart] {
  /// The number of the first recording in the series of a part.
  fileprivate func firstOfSeries(_ part: RecordingPart) -> Int {
    last { $0.series == nil && $0.number <= part.number }?.number ?? part.number
  }
}
