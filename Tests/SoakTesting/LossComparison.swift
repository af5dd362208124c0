// Compares the bytes missing at the server with the client's reports of losses.

package import CommandTesting

/// The stored and missing bytes of a stream, and the reported ones.
package struct LossComparison: Sendable {
  /// The length of the stream.
  package var captured: Int
  /// What the recordings contain.
  package var stored: OffsetSet
  /// Where they contain silence that the microphone did not record.
  package var silent: OffsetSet
  package var reported: OffsetSet
  /// Lines of output that the client dropped, because they were not read in time.
  package var droppedLines: Int
  /// Whether a recording was closed before the client knew how much the server had stored.
  package var wasClosed: Bool

  package init(
    captured: Int, stored: OffsetSet, silent: OffsetSet, reported: OffsetSet, droppedLines: Int = 0,
    wasClosed: Bool = false
  ) {
    self.captured = captured
    self.stored = stored
    self.silent = silent
    self.reported = reported
    self.droppedLines = droppedLines
    self.wasClosed = wasClosed
  }

  /// The losses that the client's events report.
  package static func reported(_ events: [FlatObject]) -> OffsetSet {
    OffsetSet(
      events.compactMap { event in
        guard let offset = event.integer("offset") else { return nil }
        let isLoss = event.event == "gap" || event.integer("lost_frames") ?? 0 > 0
        let length = isLoss ? event.integer("length") ?? 2 * (event.integer("lost_frames") ?? 0) : 0
        return length > 0 ? offset..<offset + length : nil
      })
  }

  /// The ranges that more than one gap contains.
  package static func repeated(_ events: [FlatObject]) -> [Range<Int>] {
    var known = OffsetSet()
    return events.filter { $0.event == "gap" }.flatMap { event -> [Range<Int>] in
      let gap = reported([event])
      defer { known = known.union(gap) }
      return gap.subtracting(gap.subtracting(known)).ranges
    }
  }

  /// How many lines the client reports as dropped. Routine lines are dropped first, and a run has many.
  package static func droppedLines(_ events: [FlatObject]) -> Int {
    events.reduce(0) { $0 + ($1.event == "output-dropped" ? $1.integer("lines") ?? 0 : 0) }
  }

  /// Bytes that are missing in all recordings and were not reported.
  package var unreported: OffsetSet {
    OffsetSet([0..<captured]).subtracting(stored).union(silent).subtracting(reported)
  }

  /// The violations; empty if every loss was reported, and nothing else.
  package var violations: [String] {
    var found: [String] = []
    if !unreported.ranges.isEmpty {
      let dropped = droppedLines > 0 ? "; the client dropped \(droppedLines) lines of its output" : ""
      found.append("missing at the server, and not reported as lost: stream offsets \(unreported.ranges)\(dropped)")
    }
    let invented = stored.subtracting(OffsetSet([0..<captured]))
    if !invented.ranges.isEmpty { found.append("stored, and never captured: stream offsets \(invented.ranges)") }
    // A frame of the microphone may be silent, which is ambiguous for the last one before a loss. A client does not
    // know the content of a recording that the server has closed.
    let falseAlarms = reported.subtracting(silent).subtracting(OffsetSet([0..<captured]).subtracting(stored))
      .ranges.filter { $0.count > 4 }
    if !wasClosed, !falseAlarms.isEmpty {
      found.append("reported as lost, and stored: stream offsets \(falseAlarms)")
    }
    return found
  }
}
