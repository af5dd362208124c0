// The holes of a stream, in a file beside it: one JSON line per hole, so that what is missing is known as long as the
// recording is.

/// Bytes of a stream that never came; the file holds zeros there. Or, with length 0, where a recording begins or ends
/// that is not the whole stream.
struct GapRecord: Equatable, Sendable {
  enum Cause: String, Sendable {
    /// The first request for the stream began later than at its beginning.
    case beganLate = "began-late"
    /// A sender went on after bytes that had not arrived here.
    case notReceived = "not-received"
    /// The recording ends here because its client did not come back.
    case interrupted
    /// The disk has refused bytes of the recording: from here on nobody knows which of them it has.
    case notSynced = "not-synced"
    /// The recording begins here: it continues a stream whose recording before this one was interrupted.
    case nextPart = "next-part"
  }

  let offset: UInt64
  let length: UInt64
  let cause: Cause

  /// With its line feed.
  var jsonLine: String {
    "{\"offset\":\(offset),\"length\":\(length),\"cause\":\"\(cause.rawValue)\"}\n"
  }

  /// What a record says of the first bytes of its stream.
  struct Summary: Equatable, Sendable {
    /// How many of them lie in holes.
    var missing: UInt64 = 0
    /// The stream offset behind the last hole; 0 where there is none.
    var holesEnd: UInt64 = 0
    /// Whether the disk has refused bytes of the recording.
    var isDistrusted = false
  }

  /// What a record says of the first `length` bytes of a stream.
  ///
  /// A server that was killed between writing the line and making the hole leaves a hole that ends beyond the file, and
  /// the next one writes the line again: what counts is the union, as far as the file goes. A last line that
  /// was cut short is passed over.
  ///
  /// - Parameter first: holes count from this offset on.
  static func summary(of text: String, from first: UInt64 = 0, length: UInt64) -> Summary {
    var summary = Summary()
    var covered = first
    for line in text.split(separator: "\n") {
      guard line.hasSuffix("}"), let offset = number("offset", in: line), let size = number("length", in: line) else {
        continue
      }
      if line.hasSuffix("\"cause\":\"\(Cause.notSynced.rawValue)\"}") { summary.isDistrusted = true }
      let (sum, overflow) = offset.addingReportingOverflow(size)
      let end = min(overflow ? .max : sum, length)
      // Also one of which a power failure has left a part.
      if offset < end { summary.holesEnd = max(summary.holesEnd, end) }
      let start = max(offset, covered)
      if end > start {
        summary.missing += end - start
        covered = end
      }
    }
    return summary
  }

  private static func number(_ key: String, in line: Substring) -> UInt64? {
    let key = "\"\(key)\":"
    var rest = line
    while !rest.isEmpty {
      if rest.hasPrefix(key) { return UInt64(rest.dropFirst(key.count).prefix { $0.isASCII && $0.isNumber }) }
      rest = rest.dropFirst()
    }
    return nil
  }
}
