// The holes of a stream, in a file beside it with one JSON line per hole, so that missing bytes are known as long as
// the recording exists.

internal import DiskFiles
internal import HTTPMessages
internal import StreamServing

/// Bytes of a stream that never arrived. The file contains zeros there. With length 0, the beginning or the end of a
/// recording that is not the whole stream.
package struct GapRecord: Equatable, Sendable {
  enum Cause: String, CaseIterable, Sendable {
    /// The first request for the stream began later than at its beginning.
    case beganLate = "began-late"
    /// A sender continued after bytes that had not arrived here.
    case notReceived = "not-received"
    /// The recording ends here because its client did not return.
    case interrupted
    /// The disk has refused bytes of the recording. From here on it is unknown which of them it has.
    case notSynced = "not-synced"
    /// The recording begins here because the stream's previous recording was interrupted.
    case nextPart = "next-part"
  }

  /// The number of lines with which a recording is closed before it gets another hole.
  ///
  /// Each request for a stream reads all lines on its loop's thread, some of them several times, and a peer adds a line
  /// with one byte and one request. A thousand lines delay the other streams of the loop by about 3 ms.
  ///
  /// A collector closes no recording because of its lines, because the next collector must find the parts that the
  /// checkpoint describes. It only keeps the record readable: ``FileStore/largestGaps``.
  package static let mostLines = 1000

  let offset: UInt64
  let length: UInt64
  let cause: Cause

  /// The line with its line feed.
  var jsonLine: String {
    "{\"offset\":\(offset),\"length\":\(length),\"cause\":\"\(cause.rawValue)\"}\n"
  }

  /// Summarizes a record for the first bytes of its stream.
  package struct Summary: Equatable, Sendable {
    /// How many of the bytes are in holes.
    package var missing: UInt64 = 0
    /// The stream offset after the last hole; 0 if there is none.
    package var holesEnd: UInt64 = 0
    /// Whether the disk has refused bytes of the recording.
    package var isDistrusted = false

    package init(missing: UInt64 = 0, holesEnd: UInt64 = 0, isDistrusted: Bool = false) {
      (self.missing, self.holesEnd, self.isDistrusted) = (missing, holesEnd, isDistrusted)
    }

    /// Adds what is known of the stream's recordings before this one.
    mutating func addPrevious(of part: RecordingPart?) {
      guard let part else { return }
      // Both numbers may come from a damaged log.
      missing = missing.addingReportingOverflow(part.missingBefore).partialValue
      holesEnd = max(holesEnd, part.series?.holesEnd ?? 0)
    }
  }

  /// Summarizes a record for the first `length` bytes of a stream.
  ///
  /// A server that was killed between writing the line and making the hole leaves a hole that ends beyond the file, and
  /// the next server writes the line again. So the union counts, up to the end of the file. An incomplete last line is
  /// skipped.
  ///
  /// - Parameter first: holes count from this offset on.
  static func summary(of text: [UInt8], from first: UInt64 = 0, length: UInt64) -> Summary {
    var summary = Summary()
    var covered = first
    for text in text.split(separator: Octet.lineFeed) {
      guard let line = Line(text) else { continue }
      if line.cause == .notSynced { summary.isDistrusted = true }
      let end = min(line.end, length)
      // This includes a hole of which a power failure has left a part.
      if line.offset < end { summary.holesEnd = max(summary.holesEnd, end) }
      let start = max(line.offset, covered)
      if end > start {
        summary.missing += end - start
        covered = end
      }
    }
    return summary
  }

  /// The part of a growing recording that counts after its server was killed.
  struct Remainder: Equatable, Sendable {
    /// The number of octets of the record.
    var count: Int
    /// The stream offset at which the recording then ends.
    var length: UInt64
  }

  /// Removes the last lines from the record of a growing recording as long as they are no longer true.
  ///
  /// A hole is made for the bytes after it. If none is stored there, the server was killed in between, and the bytes of
  /// the hole may still arrive. A growing recording is not interrupted. An incomplete line is ignored.
  ///
  /// - Parameters:
  ///   - first: the stream offset of the first byte that was received for the recording. Holes before that are between
  ///     two parts.
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

  /// The part of the record of a growing recording that counts if the disk has all bytes of its file, although it has
  /// refused bytes earlier. Nil if it has refused none, or if lines that still count follow the first refusal.
  ///
  /// - Parameters: as for ``remainder(of:from:length:)``.
  static func withoutRefusals(_ record: [UInt8], from first: UInt64, length: UInt64) -> Remainder? {
    var refusal: Int?
    for text in record.split(separator: Octet.lineFeed) {
      let line = Line(text)
      guard refusal != nil else {
        if line?.cause == .notSynced { refusal = text.startIndex }
        continue
      }
      // An incomplete last line does not count.
      if text.endIndex == record.endIndex { break }
      switch line?.cause {
      case .notSynced, .interrupted: break
      case .notReceived, .beganLate:
        guard let line, line.offset >= length else { return nil }
      case .nextPart, nil: return nil
      }
    }
    guard let refusal else { return nil }
    let remainder = remainder(of: Array(record[..<refusal]), from: first, length: length)
    return remainder.length == length ? remainder : nil
  }

  /// All complete lines with a known cause.
  static func all(in text: [UInt8]) -> [GapRecord] {
    text.split(separator: Octet.lineFeed).compactMap { text in
      guard let line = Line(text), let cause = line.cause else { return nil }
      return GapRecord(offset: line.offset, length: line.end - line.offset, cause: cause)
    }
  }

  /// Whether a server may have written a text, of which the last line may be incomplete. A power failure may have put
  /// zeros in the place of any bytes.
  static func isRecord(_ text: [UInt8]) -> Bool {
    let end = text.lastIndex { $0 != 0 }.map { $0 + 1 } ?? 0
    let lines = text[..<end].split(separator: Octet.lineFeed, omittingEmptySubsequences: false)
    return lines.dropLast().allSatisfy { Line($0) != nil || Line.isRemainder($0) }
      && lines.suffix(1).allSatisfy { Line.mayBegin(with: $0) || Line.isRemainder($0) }
  }

  /// The stream offsets of all holes.
  static func holes(in text: [UInt8]) -> [Range<UInt64>] {
    text.split(separator: Octet.lineFeed).compactMap { text in
      guard let line = Line(text), line.offset < line.end else { return nil }
      return line.offset..<line.end
    }
  }

  /// A line of a record as written by ``jsonLine``. Each request for a recording reads all of them.
  private struct Line {
    let offset: UInt64
    /// The offset after the hole.
    let end: UInt64
    /// nil if the cause is unknown.
    let cause: Cause?

    private static let (offsetKey, lengthKey) = (Array("{\"offset\":".utf8), Array(",\"length\":".utf8))
    private static let causeKey = Array(",\"cause\":\"".utf8)
    private static let ending = Array("\"}".utf8)
    private static let causes = Cause.allCases.map { (cause: $0, text: Array($0.rawValue.utf8)) }

    /// nil if the line is incomplete. It may follow an incomplete one.
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

    /// Whether a line may begin with a text, or with the beginning of this text.
    static func mayBegin(with text: ArraySlice<UInt8>) -> Bool { zip(text, offsetKey).allSatisfy(==) }

    /// Whether zeros have replaced a part of a line or all of it.
    static func isRemainder(_ text: ArraySlice<UInt8>) -> Bool {
      text.isEmpty || text.contains(0) && text.allSatisfy { $0 == 0 || Self.octets.contains($0) }
    }

    /// Those of all lines.
    private static let octets = Set(
      Cause.allCases.reduce("0123456789") { $0 + GapRecord(offset: 0, length: 0, cause: $1).jsonLine }.utf8)

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
