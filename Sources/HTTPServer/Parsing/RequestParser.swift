// HTTP/1.1 requests (RFC 9112) from bytes, as a pure state machine. Strict on purpose: wherever two readers of the
// same bytes could disagree about where a request ends, the request is refused instead of understood.

/// Reads the requests of one connection, one after another.
///
/// Bytes go in as they come; what comes out does not depend on how they were split. Body bytes are never copied: they
/// are told as ranges of the span that was handed in. Between requests it holds no memory of its own.
package struct RequestParser: Sendable {
  package struct Limits: Sendable {
    /// The request line, in bytes; a longer one is answered with 414.
    package var requestLine = 8 * 1024
    /// Request line and fields together, in bytes; a longer head is answered with 431.
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
    /// Everything that was handed in is used up; give more.
    case incomplete
    case head(RequestHead)
    /// Body bytes: positions in the span that was handed in.
    case body(Range<Int>)
    /// The request is over. The next byte begins another one.
    case end
    /// The request is not read any further, and nor is anything after it: every later call says `incomplete`.
    case refused(RequestRefusal)
  }

  private enum State {
    case head
    case sized(remaining: UInt64)
    case chunked(ChunkedDecoder)
    /// As much of a chunked body as is allowed was handed on, and there is more.
    case overflowing
    case refused
  }

  private let limits: Limits
  private var state = State.head
  private var draft = HeadDraft()
  /// The beginning of a line whose end has not come yet.
  private var partialLine: [UInt8] = []
  /// Bytes of the present head so far, partial line included.
  private var headLength = 0
  private var bodyLength: UInt64 = 0

  package init(limits: Limits = Limits()) {
    self.limits = limits
  }

  /// Whether bytes of a head came in whose end is still missing: what a time-out has to know.
  package var isWithinHead: Bool {
    if case .head = state { return !draft.isEmpty || !partialLine.isEmpty }
    return false
  }

  /// Reads on from `position`, which is moved past what was used. To be called again with the same span until it
  /// says `incomplete`.
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

  /// The size of a chunked body is known only as it comes.
  private mutating func within(_ maximum: UInt64?, _ range: Range<Int>) throws(RequestRefusal) -> Event {
    guard let maximum else { return .body(range) }
    let room = maximum - bodyLength
    guard UInt64(range.count) > room else {
      bodyLength += UInt64(range.count)
      return .body(range)
    }
    guard room > 0 else { throw Self.bodyTooLarge }
    // What fits is handed on before the refusal, so that what arrives does not depend on how the bytes were split.
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
      // Judged before the line is, so that a long line meets the same end whether it comes whole or in pieces.
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

  /// What is not HTTP at all is told at its first byte, not after a time-out.
  private func checkFirst(_ octet: UInt8) throws(RequestRefusal) {
    if Octet.isToken(octet) || octet == Octet.carriageReturn { return }
    // 22 is the record type of a TLS handshake: an https URL that points at us.
    if octet == 22 { throw RequestRefusal(400, "the request looks like TLS, and this port accepts only plain HTTP") }
    throw RequestRefusal(400, "the request does not begin with a method")
  }

  /// Takes a whole line, CR LF included; gives the head when this line ends it.
  private mutating func take(line: Span<UInt8>) throws(RequestRefusal) -> RequestHead? {
    guard line.count >= 2, line[line.count - 2] == Octet.carriageReturn else {
      throw RequestRefusal(400, "a line of the head ends in LF without CR")
    }
    guard line.count > 2 else {
      // An empty line before a request is left over from an old client's last body (RFC 9112, section 2.2).
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
