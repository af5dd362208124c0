// The server's side of an HTTP/2 connection without TLS, frame by frame, for a server that can break off on command,
// unlike real ones.

/// Serves requests of a client with prior knowledge (RFC 9113, section 3.3). Used by one thread at a time.
public final class HTTP2Connection {
  /// Section 7.
  public enum ErrorCode: UInt8, Sendable {
    case protocolError = 1
    case internalError = 2
  }

  private enum FrameType {
    static let data: UInt8 = 0
    static let headers: UInt8 = 1
    static let reset: UInt8 = 3
    static let settings: UInt8 = 4
    static let goAway: UInt8 = 7
    static let windowUpdate: UInt8 = 8
    static let continuation: UInt8 = 9
  }
  /// For DATA and HEADERS. For SETTINGS, the same bit means an acknowledgement.
  private static let endStream: UInt8 = 1
  private static let acknowledged: UInt8 = 1
  private static let endHeaders: UInt8 = 4
  private static let padded: UInt8 = 8
  private static let hasPriority: UInt8 = 0x20

  private typealias Frame = (type: UInt8, flags: UInt8, stream: UInt32, payload: [UInt8])

  /// A request's head.
  package struct Request {
    package var stream: UInt32
    /// Its line has the method and the target.
    package var head: ServerConnection.Head
    package var hasContent: Bool
  }

  private let connection: ServerConnection
  private let inflater: FieldInflater
  /// Requests whose heads arrived while another one's content was being read.
  private var waiting: [Request] = []

  /// Reads the client's preface, and sends the settings.
  public init(_ connection: ServerConnection) throws {
    self.connection = connection
    inflater = try FieldInflater()
    guard try Self.take(24, connection) == Array("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".utf8) else {
      throw TestFailure("this is not HTTP/2")
    }
    try send(FrameType.settings, stream: 0)
  }

  /// Waits for the next request's head, and returns its stream's number.
  public func request() throws -> UInt32 { try nextRequest().stream }

  /// Waits for the next request's head.
  package func nextRequest() throws -> Request {
    if !waiting.isEmpty { return waiting.removeFirst() }
    while true {
      if let request = try request(in: try receive()) { return request }
    }
  }

  /// Waits for the end of a request's content. The head must not have ended it.
  public func content(of stream: UInt32) throws {
    var isEnd = false
    while !isEnd { _ = try piece(of: stream, isEnd: &isEnd) }
  }

  /// The next bytes of a request's content, which may be empty.
  ///
  /// - Parameter isEnd: whether they are the last.
  /// - Throws: if the client has aborted the request, or begun another one.
  package func piece(of stream: UInt32, isEnd: inout Bool) throws -> [UInt8] {
    while true {
      let frame = try receive()
      if frame.type == FrameType.reset, frame.stream == stream { throw TestFailure("the client broke the request off") }
      if let request = try request(in: frame) {
        waiting.append(request)
        throw TestFailure("the client has begun another request")
      }
      guard frame.type == FrameType.data, frame.stream == stream else { continue }
      isEnd = frame.flags & Self.endStream != 0
      guard frame.flags & Self.padded != 0, let count = frame.payload.first else { return frame.payload }
      return Array(frame.payload.dropFirst().dropLast(Int(count)))
    }
  }

  private func request(in frame: Frame) throws -> Request? {
    guard frame.type == FrameType.headers else { return nil }
    var block = frame.payload[...]
    if frame.flags & Self.padded != 0 { block = block.dropFirst().dropLast(Int(block.first ?? 0)) }
    if frame.flags & Self.hasPriority != 0 { block = block.dropFirst(5) }
    var isWhole = frame.flags & Self.endHeaders != 0
    while !isWhole {
      let more = try receive()
      guard more.type == FrameType.continuation else { throw TestFailure("no CONTINUATION") }
      block += more.payload
      isWhole = more.flags & Self.endHeaders != 0
    }
    let fields = try inflater.fields(Array(block))
    func pseudo(_ name: String) -> String { fields.first { $0.name == name }?.value ?? "" }
    return Request(
      stream: frame.stream,
      head: .init(
        line: "\(pseudo(":method")) \(pseudo(":path")) HTTP/2", fields: fields.filter { !$0.name.hasPrefix(":") }),
      hasContent: frame.flags & Self.endStream == 0)
  }

  /// Enlarges the client's window by this number of bytes: for one stream, or for the connection (0).
  package func enlargeWindow(of stream: UInt32, by count: UInt32) throws {
    try send(FrameType.windowUpdate, stream: stream, (0..<4).map { UInt8(truncatingIfNeeded: count >> (24 - 8 * $0)) })
  }

  /// The bytes of a response, interim or final, which the test may send unchanged or modified.
  package static func response(
    _ status: Int, _ fields: [(name: String, value: String)], body: [UInt8] = [], isInterim: Bool = false,
    to stream: UInt32
  ) -> [UInt8] {
    // RFC 7541, section 6.2.2: literals that are not indexed. Number 8 of the static table is ":status".
    var block: [UInt8] = [8] + literal("\(status)")
    for field in fields { block += [0] + literal(field.name.lowercased()) + literal(field.value) }
    var bytes: [UInt8] = []
    // Section 4.2: no frame above 16 KiB.
    var rest = block[...]
    repeat {
      let piece = rest.prefix(16_384)
      rest = rest.dropFirst(piece.count)
      let end = rest.isEmpty ? endHeaders : 0
      let last = bytes.isEmpty && body.isEmpty && !isInterim ? endStream : 0
      bytes += frame(
        bytes.isEmpty ? FrameType.headers : FrameType.continuation, end | last, stream: stream, Array(piece))
    } while !rest.isEmpty
    return body.isEmpty ? bytes : bytes + frame(FrameType.data, endStream, stream: stream, body)
  }

  /// Content of an unfinished response, at most 16 KiB.
  package static func data(_ bytes: [UInt8], to stream: UInt32) -> [UInt8] {
    frame(FrameType.data, 0, stream: stream, bytes)
  }

  /// Ends the connection after the streams up to this one.
  package func goAway(_ lastStream: UInt32, code: UInt8) throws {
    let number = (0..<4).map { UInt8(truncatingIfNeeded: lastStream >> (24 - 8 * $0)) }
    try send(FrameType.goAway, stream: 0, number + [0, 0, 0, code])
  }

  /// Ends one stream, with any code.
  package func reset(_ stream: UInt32, code: UInt8) throws {
    try send(FrameType.reset, stream: stream, [0, 0, 0, code])
  }

  /// A response without content.
  ///
  /// - Parameter fields: names in lower case.
  public func respond(_ status: Int, _ fields: [(name: String, value: String)] = [], to stream: UInt32) throws {
    try connection.send(Self.response(status, fields, to: stream))
  }

  /// Ends one stream. The connection stays.
  public func reset(_ stream: UInt32, _ code: ErrorCode) throws { try reset(stream, code: code.rawValue) }

  /// Unencoded, after its length (RFC 7541, sections 5.1 and 5.2).
  private static func literal(_ text: String) -> [UInt8] {
    let bytes = Array(text.utf8)
    guard bytes.count >= 127 else { return [UInt8(bytes.count)] + bytes }
    var length: [UInt8] = [127]
    var rest = bytes.count - 127
    while rest >= 128 {
      length.append(UInt8(rest & 127 | 128))
      rest >>= 7
    }
    return length + [UInt8(rest)] + bytes
  }

  // MARK: Frames

  private func send(_ type: UInt8, _ flags: UInt8 = 0, stream: UInt32, _ payload: [UInt8] = []) throws {
    try connection.send(Self.frame(type, flags, stream: stream, payload))
  }

  private static func frame(_ type: UInt8, _ flags: UInt8, stream: UInt32, _ payload: [UInt8]) -> [UInt8] {
    let length = payload.count
    let number = (0..<4).map { UInt8(truncatingIfNeeded: stream >> (24 - 8 * $0)) }
    return [UInt8(length >> 16 & 0xFF), UInt8(length >> 8 & 0xFF), UInt8(length & 0xFF), type, flags] + number + payload
  }

  private func receive() throws -> Frame {
    let head = try Self.take(9, connection)
    let length = head[..<3].reduce(0) { $0 << 8 | Int($1) }
    let frame: Frame = (
      head[3], head[4], head[5...].reduce(0) { $0 << 8 | UInt32($1) } & 0x7FFF_FFFF, try Self.take(length, connection)
    )
    if frame.type == FrameType.settings, frame.flags & Self.acknowledged == 0 {
      try send(FrameType.settings, Self.acknowledged, stream: 0)
    }
    return frame
  }

  private static func take(_ count: Int, _ connection: ServerConnection) throws -> [UInt8] {
    var bytes: [UInt8] = []
    while bytes.count < count {
      guard let more = try connection.receive(count - bytes.count) else {
        throw TestFailure("the client ended the connection")
      }
      bytes += more
    }
    return bytes
  }
}
