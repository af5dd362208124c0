// The matrix: the combinations, and how often each occurred.

/// The state of a stream when an odd answer arrives.
package enum StreamPhase: String, CaseIterable, Sendable {
  /// The answer to OPTIONS.
  case discovery
  case creation
  case firstAppend
  /// In the middle of a request's content.
  case running
  /// The answer to an append that another one follows.
  case rollOver
  /// The answer to the HEAD after a cut, or for a plain stream, to the request that continues it.
  case head
  /// The answer to the request that ends the stream.
  case final
}

package enum Wire: String, CaseIterable, Sendable {
  case http1, http2
  /// A server that does not support resumable uploads.
  case plain
}

package enum SourceKind: String, CaseIterable, Sendable {
  /// A source that cannot wait: a full buffer discards its oldest bytes.
  case mic
  /// A source that waits while the buffer is full.
  case pipe
  /// A file.
  case put
}

/// The client's path to the server.
package enum Route: String, CaseIterable, Sendable {
  case direct, tls
  /// An HTTP proxy that receives the requests themselves.
  case proxy
  /// TLS through an HTTP proxy's CONNECT.
  case tunnel

  var isSecure: Bool { self == .tls || self == .tunnel }
}

/// The kind of odd answer.
package enum AnswerFamily: String, CaseIterable, Sendable {
  /// Another status: each from 100 to 599.
  case status
  case missingField, doubledField, absurdField
  /// The head ends early, at any byte.
  case cut
  case early, late, never
  /// Interim responses that are false, or arrive where none may.
  case interim
  /// A reset or a FIN instead of an answer.
  case broken
  /// Bytes that are not HTTP.
  case garbage
  /// The proper answer, with an endless body.
  case endlessBody
  /// 401, 403 or 407 for a while or until the token is renewed, or an untrusted certificate for a while.
  case refusal
}

/// One combination of the matrix.
package struct AnswerCell: Hashable, Sendable, CustomStringConvertible {
  package var phase: StreamPhase
  package var wire: Wire
  package var source: SourceKind
  package var family: AnswerFamily
  package var route: Route

  /// All possible combinations.
  package static let possible = Wire.allCases.flatMap { wire in
    Route.allCases.flatMap { route in
      StreamPhase.allCases.filter { reasonAgainst($0, wire, route) == nil }.flatMap { phase in
        SourceKind.allCases.flatMap { source in
          AnswerFamily.allCases.map {
            AnswerCell(phase: phase, wire: wire, source: source, family: $0, route: route)
          }
        }
      }
    }
  }

  /// How many combinations are impossible, by reason.
  package static let impossible: [String: Int] = Wire.allCases.reduce(into: [:]) { counts, wire in
    for route in Route.allCases {
      for phase in StreamPhase.allCases {
        guard let reason = reasonAgainst(phase, wire, route) else { continue }
        counts[reason, default: 0] += SourceKind.allCases.count * AnswerFamily.allCases.count
      }
    }
  }

  private static func reasonAgainst(_ phase: StreamPhase, _ wire: Wire, _ route: Route) -> String? {
    if wire == .plain, [.firstAppend, .rollOver].contains(phase) {
      return "a plain stream is one request and has no appends"
    }
    if wire == .http2, route == .proxy {
      return "a proxy takes requests over HTTP/1.1, and HTTP/2 only inside a tunnel"
    }
    return nil
  }

  package var description: String {
    "\(wire.rawValue) \(source.rawValue) \(phase.rawValue) \(family.rawValue) \(route.rawValue)"
  }
}

/// The cell and the status of each case, so that a long run has every status in every phase.
struct CasePlan: Sendable {
  /// More often than the others, because there are 500 of them.
  private static let statusShare = 5
  /// All combinations without their routes.
  private static let slots: [(cell: AnswerCell, share: Int)] = AnswerCell.possible.filter { $0.route == .direct }
    .flatMap { cell in (0..<(cell.family == .status ? statusShare : 1)).map { (cell, $0) } }

  private static func routes(of wire: Wire) -> [Route] {
    wire == .http2 ? [.direct, .tls, .tunnel] : [.direct, .tls, .direct, .proxy, .tunnel]
  }

  /// - Returns: the cell, and a status for it.
  static func plan(_ index: Int) -> (cell: AnswerCell, status: Int) {
    // A prime step through the slots, so that a short run includes every kind.
    let number = index % slots.count * 389 % slots.count
    let slot = slots[number]
    let turn = index / slots.count
    let routes = routes(of: slot.cell.wire)
    var cell = slot.cell
    cell.route = routes[(turn + number) % routes.count]
    return (cell, 100 + (turn * statusShare + slot.share) * 137 % 500)
  }

  /// The number of cases that contain each combination at least once, on one of its routes.
  static var round: Int { slots.count }
}

/// How often each combination occurred.
package struct AnswerCoverage: Sendable {
  package private(set) var counts: [AnswerCell: Int] = [:]
  /// How often the odd answer was actually given.
  package private(set) var reached: [AnswerCell: Int] = [:]
  private(set) var statuses: Set<Int> = []

  package init() {}

  mutating func add(_ cell: AnswerCell, wasReached: Bool, statuses: [Int]) {
    counts[cell, default: 0] += 1
    if wasReached { reached[cell, default: 0] += 1 }
    self.statuses.formUnion(statuses)
  }

  package var missing: [AnswerCell] { AnswerCell.possible.filter { reached[$0] == nil } }

  /// How many combinations were reached, and why the others are impossible.
  package var sum: String {
    let impossible = AnswerCell.impossible.sorted { $0.value > $1.value }
    return "reached \(reached.count) of \(AnswerCell.possible.count) possible combinations; "
      + impossible.map { "\($0.value) cannot exist (\($0.key))" }.joined(separator: ", ")
  }

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
