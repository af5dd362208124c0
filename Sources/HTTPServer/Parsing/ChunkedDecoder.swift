// The chunked coding (RFC 9112, section 7.1), one octet at a time around the data and one span at a time within it.

/// Decodes a chunked body. It stores no octets: data is returned as ranges of the input, and extensions and trailers
/// are checked and dropped.
struct ChunkedDecoder: Sendable {
  enum Event: Equatable {
    /// The whole input was used.
    case incomplete
    /// Data of a chunk, as positions in the input span.
    case data(Range<Int>)
    /// The last chunk and its trailers have ended.
    case end
  }

  private enum State: Equatable {
    case size(digits: Int)
    case blanksAfterSize
    case chunkExtension
    case sizeLineFeed
    case data
    case dataCarriageReturn
    case dataLineFeed
    case trailerStart
    case trailerName
    case trailerValue
    case trailerLineFeed
    case lastLineFeed
    case ended
  }

  private var state = State.size(digits: 0)
  /// The size being read, and then the rest of the chunk.
  private var remaining: UInt64 = 0
  /// The number of octets in the present chunk's extensions, or in all trailers.
  private var overhead = 0

  /// Continues reading at `position`, which advances past the octets used.
  mutating func next(
    _ octets: Span<UInt8>, _ position: inout Int, limits: RequestParser.Limits
  ) throws(RequestRefusal) -> Event {
    while position < octets.count {
      if state == .data {
        let length = Int(min(remaining, UInt64(octets.count - position)))
        let range = position..<(position + length)
        remaining -= UInt64(length)
        position += length
        if remaining == 0 { state = .dataCarriageReturn }
        return .data(range)
      }
      let octet = octets[position]
      position += 1
      try step(octet, limits: limits)
      if state == .ended { return .end }
    }
    return .incomplete
  }

  private mutating func step(_ octet: UInt8, limits: RequestParser.Limits) throws(RequestRefusal) {
    switch state {
    case .size(let digits):
      if let value = Octet.hexValue(octet) {
        // 64 bits hold sixteen digits at most. More would either overflow or be padding that hides something.
        guard digits < 16, remaining >> 59 == 0 else { throw RequestRefusal(400, "a chunk size is too large") }
        remaining = remaining << 4 | UInt64(value)
        state = .size(digits: digits + 1)
        return
      }
      guard digits > 0 else { throw RequestRefusal(400, "a chunk size is not a hexadecimal number") }
      overhead = 0
      try stepBehindSize(octet, limits: limits)
    case .blanksAfterSize: try stepBehindSize(octet, limits: limits)
    case .chunkExtension:
      if octet == Octet.carriageReturn {
        state = .sizeLineFeed
        return
      }
      guard Octet.isFieldContent(octet) else {
        throw RequestRefusal(400, "a chunk extension contains a control character")
      }
      try countExtension(limits)
    case .sizeLineFeed:
      guard octet == Octet.lineFeed else { throw RequestRefusal(400, "a chunk size line does not end in CR LF") }
      if remaining > 0 {
        state = .data
      } else {
        overhead = 0
        state = .trailerStart
      }
    case .data: break  // handled in `next`, one span at a time
    case .dataCarriageReturn:
      guard octet == Octet.carriageReturn else { throw RequestRefusal(400, "a chunk is longer than its size") }
      state = .dataLineFeed
    case .dataLineFeed:
      guard octet == Octet.lineFeed else { throw RequestRefusal(400, "a chunk is longer than its size") }
      state = .size(digits: 0)
    case .trailerStart, .trailerName, .trailerValue, .trailerLineFeed, .lastLineFeed:
      try stepTrailer(octet, limits: limits)
    case .ended: break  // `next` has reported the end, and the parser does not ask again
    }
  }

  /// Skips blanks. RFC 9112 requires it before an extension (section 7.1.1), and some senders pad sizes with blanks at
  /// the end of the line. Nothing may follow that could be read as another size.
  private mutating func stepBehindSize(_ octet: UInt8, limits: RequestParser.Limits) throws(RequestRefusal) {
    switch octet {
    case Octet.carriageReturn: state = .sizeLineFeed
    case UInt8(ascii: ";"): state = .chunkExtension
    case Octet.space, Octet.tab:
      state = .blanksAfterSize
      try countExtension(limits)
    default: throw RequestRefusal(400, "a chunk size is not a hexadecimal number")
    }
  }

  /// Each chunk may have one, so without a limit a body could consist of extensions without data.
  private mutating func countExtension(_ limits: RequestParser.Limits) throws(RequestRefusal) {
    overhead += 1
    guard overhead <= limits.chunkExtension else { throw RequestRefusal(400, "a chunk extension is too long") }
  }

  private mutating func stepTrailer(_ octet: UInt8, limits: RequestParser.Limits) throws(RequestRefusal) {
    overhead += 1
    guard overhead <= limits.trailers else { throw RequestRefusal(431, "the trailers are too long") }
    switch state {
    case .trailerStart where octet == Octet.carriageReturn: state = .lastLineFeed
    case .trailerStart, .trailerName:
      if octet == Octet.colon && state == .trailerName {
        state = .trailerValue
      } else {
        guard Octet.isToken(octet) else { throw RequestRefusal(400, "the name of a trailer is malformed") }
        state = .trailerName
      }
    case .trailerValue:
      if octet == Octet.carriageReturn {
        state = .trailerLineFeed
      } else {
        guard Octet.isFieldContent(octet) else { throw RequestRefusal(400, "a trailer contains a control character") }
      }
    case .trailerLineFeed:
      guard octet == Octet.lineFeed else { throw RequestRefusal(400, "a trailer does not end in CR LF") }
      state = .trailerStart
    default:
      guard octet == Octet.lineFeed else { throw RequestRefusal(400, "a chunked body does not end in CR LF") }
      state = .ended
    }
  }
}
