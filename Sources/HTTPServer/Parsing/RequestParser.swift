// Parses HTTP/1.1 requests (RFC 9112) as a pure state machine. It is strict on purpose: if two parsers of the same
// bytes could disagree about where a request ends, it refuses the request.

/// Reads the requests of one connection, one after another.
///
/// Feed it bytes as they arrive. The result does not depend on how they were split. Body bytes are never copied, but
/// returned as ranges of the input span. Between requests the parser allocates no memory.
package struct RequestParser: Sendable {
  package struct Limits: Sendable {
    /// The request line, in bytes. A longer one is answered with 414.
    package var requestLine = 8 * 1024
    /// Request line and fields together, in bytes. A longer head is answered with 431.
    package var head = 16 * 1024
    /// How many fields a request may have (431).
    package var fields = 100
    /// The extensions of one chunk, in bytes (400).
    package var chunkExtension = 256
    /// All trailers of one request together, in bytes (431).
    package var trailers = 8 * 1024
    /// The body, in bytes; nil for no limit. A larger one is answered with 413.
    package var body: UInt64?

    package init() {}
  }

  package enum Event: Equatable, Sendable {
    /// The whole input was used. More is needed.
    case incomplete
    case head(RequestHead)
    /// Body bytes, as positions in the input span.
    case body(Range<Int>)
    /// The request is over. The next byte begins another one.
    case end
    /// Neither this request nor anything after it is read. Every later call returns `incomplete`.
    case refused(RequestRefusal)
  }

  private enum State {
    case head
    case sized(remaining: UInt64)
    case chunked(ChunkedDecoder)
    /// The permitted part of a chunked body was passed on, and there is more.
    case overflowing
    case refused
  }

  private let limits: Limits
  private var state = State.head
  private var draft = HeadDraft()
  /// The beginning of an incomplete line.
  private var partialLine: [UInt8] = []
  /// The length of the present head so far, partial line included.
  private var headLength = 0
  private var bodyLength: UInt64 = 0

  package init(limits: Limits = Limits()) {
    self.limits = limits
  }

  /// Whether a head is incomplete, which the timeout depends on.
  package var isWithinHead: Bool {
    if case .head = state { return !draft.isEmpty || !partialLine.isEmpty }
    return false
  }

  /// Continues reading at `position`, which advances past the octets used. Call it again with the same span until it
  /// returns `incomplete`.
  package mutating func next(_ octets: Span<UInt8>, _ position: inout Int) -> Event {
    do throws(RequestRefusal) {
      switch state {
      case .head: return try nextOfHead(octets, &position)
      case .sized(let remaining):
        guard remaining > 0 else {
          state = .head
          return .end
        }
        let length = Int(min(remaining, UInt64(octets.count - position)))
        guard length > 0 else { return .incomplete }
        state = .sized(remaining: remaining - UInt64(length))
        position += length
        return .body((position - length)..<position)
      case .chunked(var decoder):
        switch try decoder.next(octets, &position, limits: limits) {
        case .incomplete:
          state = .chunked(decoder)
          return .incomplete
        case .data(let range):
          state = .chunked(decoder)
          return try within(limits.body, range)
        case .end:
          state = .head
          return .end
        }
      case .overflowing: throw Self.bodyTooLarge
      case .refused:
        position = octets.count
        return .incomplete
      }
    } catch {
      state = .refused
      partialLine = []
      return .refused(error)
    }
  }

  /// The size of a chunked body is known only as it arrives.
  private mutating func within(_ maximum: UInt64?, _ range: Range<Int>) throws(RequestRefusal) -> Event {
    guard let maximum else { return .body(range) }
    let room = maximum - bodyLength
    guard UInt64(range.count) > room else {
      bodyLength += UInt64(range.count)
      return .body(range)
    }
    guard room > 0 else { throw Self.bodyTooLarge }
    // The part within the limit is passed on before the refusal, so that the result does not depend on how the bytes
    // were split.
    bodyLength = maximum
    state = .overflowing
    return .body(range.lowerBound..<(range.lowerBound + Int(room)))
  }

  private mutating func nextOfHead(_ octets: Span<UInt8>, _ position: inout Int) throws(RequestRefusal) -> Event {
    while position < octets.count {
      let start = position
      if draft.isEmpty && partialLine.isEmpty { try checkFirst(octets[start]) }
      while position < octets.count, octets[position] != Octet.lineFeed { position += 1 }
      let isComplete = position < octets.count
      if isComplete { position += 1 }
      let piece = octets.extracting(start..<position)
      // Checked before the line itself, so that a long line is refused in the same way whether it arrives as a whole or
      // in pieces.
      headLength += piece.count
      if draft.isEmpty && partialLine.count + piece.count > limits.requestLine {
        throw RequestRefusal(414, "the request line is too long")
      }
      guard headLength <= limits.head else { throw RequestRefusal(431, "the head of the request is too long") }

      if isComplete && partialLine.isEmpty {
        if let head = try take(line: piece) { return .head(head) }
        continue
      }
      piece.withUnsafeBufferPointer { partialLine.append(contentsOf: $0) }
      guard isComplete else { return .incomplete }
      let line = partialLine
      partialLine = []
      if let head = try take(line: line.span) { return .head(head) }
    }
    return .incomplete
  }

  /// Refuses input that is not HTTP at its first byte, instead of after a timeout.
  private func checkFirst(_ octet: UInt8) throws(RequestRefusal) {
    if Octet.isToken(octet) || octet == Octet.carriageReturn { return }
    // 22 is the record type of a TLS handshake, sent for an https URL with this port.
    if octet == 22 { throw RequestRefusal(400, "the request looks like TLS, and this port accepts only plain HTTP") }
    throw RequestRefusal(400, "the request does not begin with a method")
  }

  /// Processes a whole line, including CR LF. Returns the head if this line ends it.
  private mutating func take(line: Span<UInt8>) throws(RequestRefusal) -> RequestHead? {
    guard line.count >= 2, line[line.count - 2] == Octet.carriageReturn else {
      throw RequestRefusal(400, "a line of the head ends in LF without CR")
    }
    guard line.count > 2 else {
      // An old client may leave an empty line after its last body (RFC 9112, section 2.2).
      if draft.isEmpty { return nil }
      let finished = draft
      draft = HeadDraft()
      headLength = 0
      bodyLength = 0
      let head = try finished.finish(limits: limits)
      switch head.framing {
      case .absent: state = .sized(remaining: 0)
      case .sized(let length): state = .sized(remaining: length)
      case .chunked: state = .chunked(ChunkedDecoder())
      }
      return head
    }
    try draft.add(line: line.extracting(0..<(line.count - 2)), limits: limits)
    return nil
  }

  private static let bodyTooLarge = RequestRefusal(413, "the body is larger than this server accepts")
}
