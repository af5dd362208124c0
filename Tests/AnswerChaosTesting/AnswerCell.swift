// The matrix: what is combined with what, and how often each combination came about.

/// Where a stream is when an odd answer comes.
package enum StreamPhase: String, CaseIterable, Sendable {
  /// The answer to OPTIONS.
  case discovery
  case creation
  case firstAppend
  /// In the middle of a request's content.
  case running
  /// The answer to an append that another one follows.
  case rollOver
  /// The question for the offset after a cut; of a plain stream, the request that continues it.
  case head
  /// The answer to the request that ends the stream.
  case final
}

package enum Wire: String, CaseIterable, Sendable {
  case http1, http2
  /// A server that knows nothing of resumable uploads.
  case plain
}

package enum SourceKind: String, CaseIterable, Sendable {
  /// Cannot wait: a full buffer discards its oldest bytes.
  case mic
  /// Waits while the buffer is full.
  case pipe
  /// A file.
  case put
}

/// What is odd about an answer.
package enum AnswerFamily: String, CaseIterable, Sendable {
  /// Another status: each from 100 to 599.
  case status
  case missingField, doubledField, absurdField
  /// Ends after some byte of its head.
  case cut
  case early, late, never
  /// Interim responses that are not true, or come where none may.
  case interim
  /// A reset or a FIN instead of an answer.
  case broken
  /// Bytes that are not HTTP.
  case garbage
}

/// One combination of the matrix.
package struct AnswerCell: Hashable, Sendable, CustomStringConvertible {
  package var phase: StreamPhase
  package var wire: Wire
  package var source: SourceKind
  package var family: AnswerFamily

  package static let all: [AnswerCell] = Wire.allCases.flatMap { wire in
    phases(of: wire).flatMap { phase in
      SourceKind.allCases.flatMap { source in
        AnswerFamily.allCases.map { AnswerCell(phase: phase, wire: wire, source: source, family: $0) }
      }
    }
  }

  /// A plain stream is one request: it has no appends.
  private static func phases(of wire: Wire) -> [StreamPhase] {
    wire == .plain ? [.discovery, .creation, .running, .head, .final] : StreamPhase.allCases
  }

  package var description: String { "\(wire.rawValue) \(source.rawValue) \(phase.rawValue) \(family.rawValue)" }
}

/// The cell and the status of each case, so that a long run has every status in every phase.
struct CasePlan: Sendable {
  /// More often than the others, for there are 500 of them.
  private static let statusShare = 5
  private static let slots: [(cell: AnswerCell, share: Int)] = AnswerCell.all.flatMap { cell in
    (0..<(cell.family == .status ? statusShare : 1)).map { (cell, $0) }
  }

  /// - Returns: the cell, and a status for it.
  static func plan(_ index: Int) -> (cell: AnswerCell, status: Int) {
    // A prime step through the slots, so that a short run has something of each kind.
    let slot = slots[index % slots.count * 389 % slots.count]
    let round = index / slots.count * statusShare + slot.share
    return (slot.cell, 100 + round * 137 % 500)
  }

  /// So many cases have each cell at least once.
  static var round: Int { slots.count }
}

/// How often each combination came about.
package struct AnswerCoverage: Sendable {
  package private(set) var counts: [AnswerCell: Int] = [:]
  /// Of those, how often the odd answer was given.
  package private(set) var reached: [AnswerCell: Int] = [:]
  private(set) var statuses: Set<Int> = []

  package init() {}

  mutating func add(_ cell: AnswerCell, wasReached: Bool, statuses: [Int]) {
    counts[cell, default: 0] += 1
    if wasReached { reached[cell, default: 0] += 1 }
    self.statuses.formUnion(statuses)
  }

  package var missing: [AnswerCell] { AnswerCell.all.filter { reached[$0] == nil } }

  /// For each phase and kind of answer, how often it was given.
  package var table: String {
    let phases = StreamPhase.allCases
    let head = "  " + Self.pad("", 14) + phases.map { Self.pad($0.rawValue, 12) }.joined()
    let lines = AnswerFamily.allCases.map { family in
      "  " + Self.pad(family.rawValue, 14)
        + phases.map { phase in
          let count = reached.filter { $0.key.family == family && $0.key.phase == phase }.map(\.value).reduce(0, +)
          return Self.pad("\(count)", 12)
        }.joined()
    }
    return ([head] + lines).joined(separator: "\n")
  }

  private static func pad(_ text: String, _ width: Int) -> String {
    text + String(repeating: " ", count: max(1, width - text.count))
  }
}
