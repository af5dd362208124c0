// The server's side of an HTTP/2 connection without TLS, frame by frame, for a server that breaks off as no real one does on command.
// Requests are told apart by their number: their fields are not read, so that no decoder is needed for them.

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
  }
  /// Of DATA and HEADERS; for SETTINGS the same bit says that they are acknowledged.
  private static let endStream: UInt8 = 1
  private static let acknowledged: UInt8 = 1
  private static let endHeaders: UInt8 = 4

  private let connection: ServerConnection

  /// Takes the client's preface, and says hello.
  public init(_ connection: ServerConnection) throws {
    self.connection = connection
    guard try Self.take(24, connection) == Array("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".utf8) else {
      throw TestFailure("this is no HTTP/2")
    }
    try send(FrameType.settings, stream: 0)
  }

  /// Waits for the next request's head, and gives its stream's number.
  public func request() throws -> UInt32 {
    while true {
      let frame = try receive()
      if frame.type == FrameType.headers { return frame.stream }
    }
  }

  /// Waits for the end of a request's content, whose head had not ended it.
  public func content(of stream: UInt32) throws {
    while true {
      let frame = try receive()
      if frame.type == FrameType.data, frame.stream == stream, frame.flags & Self.endStream != 0 { return }
    }
  }

  /// A response without content.
  ///
  /// - Parameter fields: names in lower case.
  public func respond(_ status: Int, _ fields: [(name: String, value: String)] = [], to stream: UInt32) throws {
    // RFC 7541, section 6.2.2: literals that are not indexed; number 8 of the static table is ":status".
    var block: [UInt8] = [8] + Self.literal("\(status)")
    for field in fields { block += [0] + Self.literal(field.name) + Self.literal(field.value) }
    try send(FrameType.headers, Self.endHeaders | Self.endStream, stream: stream, block)
  }

  /// Ends one stream; the connection stays.
  public func reset(_ stream: UInt32, _ code: ErrorCode) throws {
    try send(FrameType.reset, stream: stream, [0, 0, 0, code.rawValue])
  }

  /// As it is, in less than 127 bytes: section 5.2 there.
  private static func literal(_ text: String) -> [UInt8] { [UInt8(text.utf8.count)] + Array(text.utf8) }

  // MARK: Frames

  private func send(_ type: UInt8, _ flags: UInt8 = 0, stream: UInt32, _ payload: [UInt8] = []) throws {
    let length = payload.count
    let number = (0..<4).map { UInt8(truncatingIfNeeded: stream >> (24 - 8 * $0)) }
    let head = [UInt8(length >> 16), UInt8(length >> 8 & 0xFF), UInt8(length & 0xFF), type, flags] + number
    try connection.send(head + payload)
  }

  private func receive() throws -> (type: UInt8, flags: UInt8, stream: UInt32) {
    let head = try Self.take(9, connection)
    let frame = (type: head[3], flags: head[4], stream: head[5...].reduce(0) { $0 << 8 | UInt32($1) } & 0x7FFF_FFFF)
    _ = try Self.take(head[..<3].reduce(0) { $0 << 8 | Int($1) }, connection)
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
