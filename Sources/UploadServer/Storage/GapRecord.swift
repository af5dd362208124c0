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

    /// Adds what is known of the recordings before it in the same series.
    mutating func add(_ series: RecordingPart.Series?) {
      guard let series else { return }
      missing += series.missing
      holesEnd = max(holesEnd, series.holesEnd)
    }
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
      if line.hasSuffix(suffix(.notSynced)) { summary.isDistrusted = true }
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

  /// What of a growing recording counts after its server was killed.
  struct Remainder: Equatable, Sendable {
    /// How many octets of the record.
    var count: Int
    /// Up to which stream offset of the recording.
    var length: UInt64
  }

  /// Leaves out the last lines of the record of a growing recording as long as they are not true any more.
  ///
  /// A hole is made for the bytes behind it: if none is stored there, the server was killed in between, and the bytes
  /// of the hole may still come. A recording that grows is not interrupted. A line that was cut short says nothing.
  ///
  /// - Parameters:
  ///   - first: the stream offset of the first byte that was received for the recording. Holes before that are those
  ///     between two parts.
  ///   - length: the stream offset at which its file ends.
  static func remainder(of text: [UInt8], from first: UInt64, length: UInt64) -> Remainder {
    var remainder = Remainder(count: text.count, length: length)
    while remainder.count > 0 {
      let isWhole = text[remainder.count - 1] == Octet.lineFeed
      let end = isWhole ? remainder.count - 1 : remainder.count
      let start = text[..<end].lastIndex(of: Octet.lineFeed).map { $0 + 1 } ?? 0
      if isWhole {
        let line = String(decoding: text[start..<end], as: UTF8.self)[...]
        if line.hasSuffix(suffix(.notReceived)) || line.hasSuffix(suffix(.beganLate)) {
          guard let offset = number("offset", in: line), let size = number("length", in: line), offset >= first else {
            break
          }
          let (sum, overflow) = offset.addingReportingOverflow(size)
          guard overflow || sum >= remainder.length else { break }
          remainder.length = min(remainder.length, offset)
        } else if !line.hasSuffix(suffix(.interrupted)) {
          break
        }
      }
      remainder.count = start
    }
    return remainder
  }

  private static func suffix(_ cause: Cause) -> String { "\"cause\":\"\(cause.rawValue)\"}" }

  /// All lines that are whole.
  static func all(in text: String) -> [GapRecord] {
    text.split(separator: "\n").compactMap { line in
      guard line.hasSuffix("}"), let offset = number("offset", in: line), let size = number("length", in: line),
        let quoted = line.firstRange(of: "\"cause\":\""),
        let cause = Cause(rawValue: String(line[quoted.upperBound...].prefix { $0 != "\"" }))
      else { return nil }
      return GapRecord(offset: offset, length: size, cause: cause)
    }
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
