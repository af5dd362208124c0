// Determines where the bytes of a request belong in a stream that may already contain some of them. Pure: takes
// offsets, returns ranges.

/// The place of one request's body in its stream.
package struct StreamPlacement: Equatable {
  package enum Beginning: Equatable {
    /// The body continues where the stored bytes end, or repeats some of them first.
    case at(StreamPlacement)
    /// Bytes in between never arrived. `length` zeros belong there once a byte after them is stored, with a record that
    /// they are missing.
    case afterHole(StreamPlacement, length: UInt64)
    /// The stream is complete, and the request begins beyond its end.
    case beyondEnd
    /// The hole would be larger than the server allows.
    case holeTooLarge
  }

  /// The largest offset at which a request may begin: the maximum of a structured field (RFC 9651, section 3.3.1), a
  /// petabyte. Otherwise repeated holes could make the stream so long that its length overflows.
  package static let largestOffset: UInt64 = 999_999_999_999_999

  /// The stream offset of the next byte of the body.
  package private(set) var cursor: UInt64
  /// How many bytes of the stream are stored.
  package private(set) var length: UInt64

  package init(cursor: UInt64, length: UInt64) { (self.cursor, self.length) = (cursor, length) }

  /// Checks a request that begins at `offset`, for a stream of which `length` bytes are stored.
  package static func begin(offset: UInt64, length: UInt64, isComplete: Bool, maximumHole: UInt64) -> Beginning {
    if offset <= length { return .at(StreamPlacement(cursor: offset, length: length)) }
    if isComplete { return .beyondEnd }
    guard offset - length <= maximumHole, offset <= largestOffset else { return .holeTooLarge }
    return .afterHole(StreamPlacement(cursor: offset, length: offset), length: offset - length)
  }

  /// Of the next `count` bytes: how many repeat what is stored. The rest is new.
  package func repeated(_ count: Int) -> Int {
    guard cursor < length else { return 0 }
    return Int(min(UInt64(count), length - cursor))
  }

  /// `count` repeated bytes were found to be equal to the stored ones.
  package mutating func verified(_ count: Int) {
    cursor += UInt64(count)
  }

  /// `count` new bytes were stored.
  package mutating func stored(_ count: Int) {
    cursor += UInt64(count)
    length = cursor
  }
}
