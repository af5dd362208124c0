// The message boundaries in one direction of an HTTP/1.1 connection, according to RFC 9112, section 6, as far as a
// transparent proxy needs them. It is lenient on purpose, because the ends must refuse malformed messages.

/// Divides a connection's bytes into heads, framing and content. A value without I/O.
package struct MessageScanner: Sendable {
  package enum Direction: Sendable { case requests, responses }

  /// Ranges are positions in the input bytes.
  package enum Piece: Equatable, Sendable {
    /// The whole input was used. More is needed.
    case incomplete
    /// A complete head. Its bytes are in none of the other pieces.
    case head(MessageHead)
    /// Chunk sizes, line ends, trailers.
    case framing(Range<Int>)
    case content(Range<Int>)
    /// The message is over. Interim responses consist only of a head, and have no end of their own.
    case end
  }

  private enum State {
    case head
    case sized(UInt64)
    case chunkSize
    case chunkData(UInt64)
    case chunkEnd
    case trailers
    /// A response without a length, a switched protocol, or data that is not HTTP.
    case untilClose
    case ended
  }

  private let direction: Direction
  private var state = State.head
  /// The beginning of an incomplete head or line.
  private var partial: [UInt8] = []

  package init(_ direction: Direction) { self.direction = direction }

  /// Continues reading at `position`, which advances past the bytes used. Call it again until it returns `incomplete`.
  ///
  /// - Parameter method: the method of the request that a response answers. A response to HEAD has the fields of a body
  ///   but no body.
  package mutating func next(_ octets: Span<UInt8>, _ position: inout Int, answering method: String? = nil) -> Piece {
    if case .ended = state {
      state = .head
      return .end
    }
    guard position < octets.count else { return .incomplete }
    switch state {
    case .head:
      return nextOfHead(octets, &position, method)
    case .sized(let rest):
      let range = take(UInt64(octets.count - position), atMost: rest, &position)
      state = rest > UInt64(range.count) ? .sized(rest - UInt64(range.count)) : .ended
      return .content(range)
    case .chunkData(let rest):
      let range = take(UInt64(octets.count - position), atMost: rest, &position)
      state = rest > UInt64(range.count) ? .chunkData(rest - UInt64(range.count)) : .chunkEnd
      return .content(range)
    case .chunkSize, .chunkEnd, .trailers:
      let start = position
      if let line = nextLine(octets, &position) { lineEnded(line) }
      return .framing(start..<position)
    case .untilClose:
      let range = position..<octets.count
      position = octets.count
      return .content(range)
    case .ended: return .incomplete  // handled above
    }
  }

  private func take(_ available: UInt64, atMost rest: UInt64, _ position: inout Int) -> Range<Int> {
    let start = position
    position += Int(min(available, rest))
    return start..<position
  }

  /// A line without its end; nil if the end has not arrived.
  private mutating func nextLine(_ octets: Span<UInt8>, _ position: inout Int) -> [UInt8]? {
    while position < octets.count {
      let octet = octets[position]
      position += 1
      guard octet != UInt8(ascii: "\n") else {
        defer { partial = [] }
        return partial.last == UInt8(ascii: "\r") ? Array(partial.dropLast()) : partial
      }
      partial.append(octet)
    }
    return nil
  }

  private mutating func lineEnded(_ line: [UInt8]) {
    switch state {
    case .chunkSize:
      let digits = line.prefix { $0 != UInt8(ascii: ";") && $0 != UInt8(ascii: " ") }
      switch UInt64(String(decoding: digits, as: UTF8.self), radix: 16) {
      case 0?: state = .trailers
      case let size?: state = .chunkData(size)
      case nil: state = .untilClose
      }
    case .chunkEnd: state = line.isEmpty ? .chunkSize : .untilClose
    default: if line.isEmpty { state = .ended }
    }
  }

  private mutating func nextOfHead(_ octets: Span<UInt8>, _ position: inout Int, _ method: String?) -> Piece {
    while position < octets.count {
      partial.append(octets[position])
      position += 1
      guard partial.last == UInt8(ascii: "\n"), partial.suffix(4) == [13, 10, 13, 10] || partial.suffix(2) == [10, 10]
      else { continue }
      let head = MessageHead(partial)
      partial = []
      state = bodyState(of: head, method)
      return .head(head)
    }
    return .incomplete
  }

  /// RFC 9112, section 6.3: the length of the body.
  private func bodyState(of head: MessageHead, _ method: String?) -> State {
    if direction == .responses {
      if head.isInterim { return .head }
      if head.status == 101 { return .untilClose }
      if method == "HEAD" || head.status == 204 || head.status == 304 { return .ended }
    }
    if head["Transfer-Encoding"]?.lowercased() == "chunked" { return .chunkSize }
    switch head.integer("Content-Length") {
    case 0?: return .ended
    case let length?: return .sized(length)
    case nil: return direction == .requests ? .ended : .untilClose
    }
  }
}
