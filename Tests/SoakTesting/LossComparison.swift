// Whether what is missing at the server is what the client reported as lost.

package import CommandTesting

/// What became of a stream's bytes, and what was reported of them.
package struct LossComparison: Sendable {
  /// How long the stream is.
  package var captured: Int
  /// What the recordings contain.
  package var stored: OffsetSet
  /// Where they contain silence that the microphone did not hear.
  package var silent: OffsetSet
  package var reported: OffsetSet
  /// Lines of output that the client dropped, because nobody read them in time.
  package var droppedLines: Int
  /// Whether a recording was closed before the client knew what the server had stored of it.
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

  /// What the client's events report as lost.
  package static func reported(_ events: [FlatObject]) -> OffsetSet {
    OffsetSet(
      events.compactMap { event in
        guard let offset = event.integer("offset") else { return nil }
        let isLoss = event.event == "gap" || event.integer("lost_frames") ?? 0 > 0
        let length = isLoss ? event.integer("length") ?? 2 * (event.integer("lost_frames") ?? 0) : 0
        return length > 0 ? offset..<offset + length : nil
      })
  }

  /// What more than one gap has.
  package static func repeated(_ events: [FlatObject]) -> [Range<Int>] {
    var known = OffsetSet()
    return events.filter { $0.event == "gap" }.flatMap { event -> [Range<Int>] in
      let gap = reported([event])
      defer { known = known.union(gap) }
      return gap.subtracting(gap.subtracting(known)).ranges
    }
  }

  /// How many lines the client says that it has dropped. Routine lines go first, and a run has many.
  package static func droppedLines(_ events: [FlatObject]) -> Int {
    events.reduce(0) { $0 + ($1.event == "output-dropped" ? $1.integer("lines") ?? 0 : 0) }
  }

  /// Bytes that no recording has and that nobody reported.
  package var unreported: OffsetSet {
    OffsetSet([0..<captured]).subtracting(stored).union(silent).subtracting(reported)
  }

  /// What is wrong; empty when every loss was reported, and nothing else.
  package var violations: [String] {
    var found: [String] = []
    if !unreported.ranges.isEmpty {
      let dropped = droppedLines > 0 ? "; the client dropped \(droppedLines) lines of its output" : ""
      found.append("missing at the server, and not reported as lost: stream offsets \(unreported.ranges)\(dropped)")
    }
    let invented = stored.subtracting(OffsetSet([0..<captured]))
    if !invented.ranges.isEmpty { found.append("stored, and never captured: stream offsets \(invented.ranges)") }
    // A frame of the microphone may be silent: where it is the last one before a loss, nobody can tell. A client does
    // not know what a recording contains that the server has closed.
    let falseAlarms = reported.subtracting(silent).subtracting(OffsetSet([0..<captured]).subtracting(stored))
      .ranges.filter { $0.count > 4 }
    if !wasClosed, !falseAlarms.isEmpty {
      found.append("reported as lost, and stored: stream offsets \(falseAlarms)")
    }
    return found
  }
}
