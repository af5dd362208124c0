// The holes of a stream, in a file beside it: one JSON line per hole, so that what is missing is known as long as the
// recording is.

internal import DiskFiles
internal import HTTPMessages
internal import StreamServing

/// Bytes of a stream that never came; the file holds zeros there. Or, with length 0, where a recording begins or ends
/// that is not the whole stream.
package struct GapRecord: Equatable, Sendable {
  enum Cause: String, CaseIterable, Sendable {
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
  package struct Summary: Equatable, Sendable {
    /// How many of them lie in holes.
    package var missing: UInt64 = 0
    /// The stream offset behind the last hole; 0 where there is none.
    package var holesEnd: UInt64 = 0
    /// Whether the disk has refused bytes of the recording.
    package var isDistrusted = false

    package init(missing: UInt64 = 0, holesEnd: UInt64 = 0, isDistrusted: Bool = false) {
      (self.missing, self.holesEnd, self.isDistrusted) = (missing, holesEnd, isDistrusted)
    }

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
  static func summary(of text: [UInt8], from first: UInt64 = 0, length: UInt64) -> Summary {
    var summary = Summary()
    var covered = first
    for text in text.split(separator: Octet.lineFeed) {
      guard let line = Line(text) else { continue }
      if line.cause == .notSynced { summary.isDistrusted = true }
      let end = min(line.end, length)
      // Also one of which a power failure has left a part.
      if line.offset < end { summary.holesEnd = max(summary.holesEnd, end) }
      let start = max(line.offset, covered)
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
        guard let line = Line(text[start..<end]) else { return remainder }
        switch line.cause {
        case .notReceived, .beganLate:
          guard line.offset >= first, line.end >= remainder.length else { return remainder }
          remainder.length = min(remainder.length, line.offset)
        case .interrupted: break
        case .notSynced, .nextPart, nil: return remainder
        }
      }
      remainder.count = start
    }
    return remainder
  }

  /// All lines that are whole, and of a cause that we know.
  static func all(in text: [UInt8]) -> [GapRecord] {
    text.split(separator: Octet.lineFeed).compactMap { text in
      guard let line = Line(text), let cause = line.cause else { return nil }
      return GapRecord(offset: line.offset, length: line.end - line.offset, cause: cause)
    }
  }

  /// A line of a record as ``jsonLine`` writes it. A peer can have a recording with any number of them, and all are
  /// read with each request for it.
  private struct Line {
    let offset: UInt64
    /// The offset behind it.
    let end: UInt64
    /// nil if it is one that we do not know.
    let cause: Cause?

    private static let (offsetKey, lengthKey) = (Array("{\"offset\":".utf8), Array(",\"length\":".utf8))
    private static let causeKey = Array(",\"cause\":\"".utf8)
    private static let ending = Array("\"}".utf8)
    private static let causes = Cause.allCases.map { (cause: $0, text: Array($0.rawValue.utf8)) }

    /// nil if it was cut short. It may stand behind one that was.
    init?(_ text: ArraySlice<UInt8>) {
      guard let start = text.lastIndex(of: UInt8(ascii: "{")) else { return nil }
      var position = start
      guard Self.skip(Self.offsetKey, text, &position), let offset = Self.number(text, &position),
        Self.skip(Self.lengthKey, text, &position), let length = Self.number(text, &position),
        Self.skip(Self.causeKey, text, &position)
      else { return nil }
      let (sum, overflow) = offset.addingReportingOverflow(length)
      (self.offset, end) = (offset, overflow ? .max : sum)
      for (cause, key) in Self.causes {
        var end = position
        guard Self.skip(key, text, &end), Self.skip(Self.ending, text, &end), end == text.endIndex else { continue }
        self.cause = cause
        return
      }
      guard text[position...].suffix(2).elementsEqual(Self.ending) else { return nil }
      cause = nil
    }

    private static func skip(_ key: [UInt8], _ text: ArraySlice<UInt8>, _ position: inout Int) -> Bool {
      guard text.endIndex - position >= key.count else { return false }
      for index in key.indices where text[position + index] != key[index] { return false }
      position += key.count
      return true
    }

    private static func number(_ text: ArraySlice<UInt8>, _ position: inout Int) -> UInt64? {
      let start = position
      var value: UInt64 = 0
      while position < text.endIndex, Octet.isDigit(text[position]) {
        let (product, isLarge) = value.multipliedReportingOverflow(by: 10)
        let (sum, isLarger) = product.addingReportingOverflow(UInt64(text[position] - UInt8(ascii: "0")))
        if isLarge || isLarger { return nil }
        value = sum
        position += 1
      }
      return position > start ? value : nil
    }
  }
}
