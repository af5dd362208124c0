// One connection of a client, as HTTP/1.1 or HTTP/2: it receives requests, and sends bytes that need not be a response.

import EventLoops
import Glibc
import NetworkTesting

/// A request as a server of the matrix receives it.
struct WireRequest: Sendable {
  var method: String
  var target: String
  var head: ServerConnection.Head
  /// HTTP/2's stream.
  var stream: UInt32 = 0

  var offset: UInt64? { head["Upload-Offset"].flatMap { UInt64($0) } }
  var completes: Bool { head["Upload-Complete"] == "?1" }
  /// The host to which a proxy must forward it.
  var host: String?

  /// For a proxy, the target is a URL (RFC 9112, section 3.2.2).
  mutating func takeHost() {
    guard target.hasPrefix("http://") else { return }
    let rest = target.dropFirst("http://".count)
    let path = rest.firstIndex { "/?#".contains($0) } ?? rest.endIndex
    host = String(rest[..<path])
    target = String(rest[path...])
  }

  var isCreation: Bool { head["Upload-Complete"] != nil && method != "PATCH" }
}

/// Used by one thread at a time.
protocol AnswerWire: AnyObject {
  var connection: ServerConnection { get }
  /// Waits for the next request's head.
  func nextRequest() throws -> WireRequest
  /// The next bytes of the request's content; nil at its end.
  ///
  /// - Throws: if the connection or the request ends before its content. `brokenOff` receives the bytes before that.
  func piece(brokenOff: ([UInt8]) -> Void) throws -> [UInt8]?
  /// The bytes of a response on this wire: its head, and its content separately.
  func bytes(of head: ReplyHead, isInterim: Bool, hasNoContent: Bool) -> (head: [UInt8], body: [UInt8])
  /// The head of a response that does not state its body's length.
  func openHead(of head: ReplyHead) -> [UInt8]
  /// Some of that body, at most 16 KiB.
  func bodyPiece(_ bytes: [UInt8]) -> [UInt8]
}

final class HTTP1Wire: AnswerWire {
  let connection: ServerConnection
  private var isChunked = false
  private var rest = 0

  init(_ connection: ServerConnection) { self.connection = connection }

  func nextRequest() throws -> WireRequest {
    let head = try connection.head()
    let words = head.line.split(separator: " ")
    guard words.count == 3 else { throw TestFailure("this is not a request: \(head.line)") }
    isChunked = head["Transfer-Encoding"] == "chunked"
    rest = head["Content-Length"].flatMap { Int($0) } ?? 0
    var request = WireRequest(method: String(words[0]), target: String(words[1]), head: head)
    request.takeHost()
    return request
  }

  func piece(brokenOff: ([UInt8]) -> Void) throws -> [UInt8]? {
    if isChunked {
      let piece = try connection.chunk(brokenOff: brokenOff)
      if piece == nil { isChunked = false }
      return piece
    }
    guard rest > 0 else { return nil }
    guard let piece = try connection.receive(min(rest, 65_536)) else {
      throw TestFailure("the client ended the connection")
    }
    rest -= piece.count
    return Array(piece)
  }

  func bytes(of head: ReplyHead, isInterim: Bool, hasNoContent: Bool) -> (head: [UInt8], body: [UInt8]) {
    var lines = ["HTTP/1.1 \(head.status) So"] + head.fields.map { "\($0.name): \($0.value)" }
    // A fault may have set another one.
    let isFramed = ["Content-Length", "Transfer-Encoding"].contains { head.value($0) != nil }
    if !isInterim, !isFramed, ![204, 304].contains(head.status) {
      lines.append("Content-Length: \(head.body.utf8.count)")
    }
    let text = lines.map { "\($0)\r\n" }.joined() + "\r\n"
    return (Array(text.utf8), hasNoContent ? [] : Array(head.body.utf8))
  }

  func openHead(of head: ReplyHead) -> [UInt8] { bytes(of: head, isInterim: true, hasNoContent: true).head }
  func bodyPiece(_ bytes: [UInt8]) -> [UInt8] { bytes }
}

final class HTTP2Wire: AnswerWire {
  let connection: ServerConnection
  private let http2: HTTP2Connection
  private var request: HTTP2Connection.Request?
  private var isEnd = true

  init(_ connection: ServerConnection) throws {
    self.connection = connection
    http2 = try HTTP2Connection(connection)
    try http2.enlargeWindow(of: 0, by: 1 << 30)
  }

  func nextRequest() throws -> WireRequest {
    let next = try http2.nextRequest()
    (request, isEnd) = (next, !next.hasContent)
    if next.hasContent { try http2.enlargeWindow(of: next.stream, by: 1 << 30) }
    let words = next.head.line.split(separator: " ")
    guard words.count == 3 else { throw TestFailure("this is not a request: \(next.head.line)") }
    return WireRequest(method: String(words[0]), target: String(words[1]), head: next.head, stream: next.stream)
  }

  func piece(brokenOff: ([UInt8]) -> Void) throws -> [UInt8]? {
    guard let request, !isEnd else { return nil }
    return try http2.piece(of: request.stream, isEnd: &isEnd)
  }

  func bytes(of head: ReplyHead, isInterim: Bool, hasNoContent: Bool) -> (head: [UInt8], body: [UInt8]) {
    let body = hasNoContent || isInterim ? [] : Array(head.body.utf8)
    let all = HTTP2Connection.response(
      head.status, head.fields, body: body, isInterim: isInterim, to: request?.stream ?? 1)
    // The frame of the content has nine bytes of its own.
    let tail = body.isEmpty ? 0 : body.count + 9
    return (Array(all.dropLast(tail)), Array(all.suffix(tail)))
  }

  func openHead(of head: ReplyHead) -> [UInt8] { bytes(of: head, isInterim: true, hasNoContent: true).head }
  func bodyPiece(_ bytes: [UInt8]) -> [UInt8] { HTTP2Connection.data(bytes, to: request?.stream ?? 1) }

  func resetStream(_ code: UInt8) throws { try http2.reset(request?.stream ?? 1, code: code) }
  func goAway(_ code: UInt8) throws { try http2.goAway(request?.stream ?? 1, code: code) }
}

extension ServerConnection {
  /// Waits, without reading, until the peer has ended its side or the whole connection.
  func waitForPeerEnd() {
    var entry = pollfd(fd: descriptor, events: Int16(0x2000), revents: 0)  // POLLRDHUP
    _ = poll(&entry, 1, 60_000)
  }
}
