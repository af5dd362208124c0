// A parser's result for some bytes, in a form that can be compared.

import HTTPServer

/// The events of a run of the parser, with adjacent body pieces joined, because the splits of a body depend on its
/// arrival.
struct ParsedTraffic: Equatable, CustomStringConvertible {
  enum Event: Equatable {
    case head(RequestHead)
    case body([UInt8])
    case end
    case refused(RequestRefusal)
  }

  private(set) var events: [Event] = []

  /// Parses `octets`, passed in pieces that end at `cuts`.
  init(_ octets: [UInt8], cuts: [Int] = [], limits: RequestParser.Limits = .init()) {
    var parser = RequestParser(limits: limits)
    var start = 0
    for end in cuts + [octets.count] {
      // A separate copy for each piece, so that reading past its end is an access out of bounds.
      feed(&parser, Array(octets[start..<end]))
      start = end
    }
  }

  private mutating func feed(_ parser: inout RequestParser, _ piece: [UInt8]) {
    var position = 0
    while true {
      let before = position
      switch parser.next(piece.span, &position) {
      case .incomplete:
        precondition(position == piece.count, "the parser asks for more and has not used what it has")
        return
      case .head(let head): events.append(.head(head))
      case .body(let range):
        precondition(range.lowerBound >= before && range.upperBound <= position && !range.isEmpty)
        if case .body(let bytes) = events.last {
          events[events.count - 1] = .body(bytes + piece[range])
        } else {
          events.append(.body(Array(piece[range])))
        }
      case .end: events.append(.end)
      case .refused(let refusal): events.append(.refused(refusal))
      }
    }
  }

  var heads: [RequestHead] { events.compactMap { if case .head(let head) = $0 { head } else { nil } } }
  var bodies: [String] {
    events.compactMap { if case .body(let bytes) = $0 { String(decoding: bytes, as: UTF8.self) } else { nil } }
  }
  var refusal: RequestRefusal? {
    for case .refused(let refusal) in events { return refusal }
    return nil
  }
  var completed: Int { events.count { $0 == .end } }

  /// A word for the result of the first request: its status if refused, `"accepted"` or `"incomplete"`.
  var verdict: String {
    if completed > 0 { return "accepted" }
    if let refusal { return "\(refusal.status)" }
    return "incomplete"
  }

  var description: String {
    events.map { event in
      switch event {
      case .head(let head): "\(head.method) \(head.target.path) \(head.framing)"
      case .body(let bytes): "body(\(bytes.count))"
      case .end: "end"
      case .refused(let refusal): "\(refusal.status) \(refusal.reason)"
      }
    }.joined(separator: " | ")
  }
}
