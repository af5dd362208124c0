// A server that interrupts uploads.

import NetworkTesting
import Synchronization

/// Leaves a creation unanswered after this many bytes, and accepts appends.
final class HalfServer: Sendable {
  /// The heads of all requests and the content of appends.
  let heads: EventLog<ServerConnection.Head>
  let appended = Mutex<[UInt8]>([])
  private let server: Mutex<ScriptedServer?> = Mutex(nil)
  let url: String

  /// - Parameters:
  ///   - cuts: whether to close the connection of the creation instead of leaving it open.
  ///   - willAnswerHead: called before each answer to HEAD.
  init(
    keeps count: Int, cuts: Bool = false, head: String = "", delete: String = "204 No Content",
    willAnswerHead: @escaping @Sendable () -> Void = {}
  ) throws {
    let heads = try EventLog<ServerConnection.Head>()
    self.heads = heads
    let handler = Mutex<(@Sendable ([UInt8]) -> Void)?>(nil)
    let started = try ScriptedServer { connection, _ in
      while true {
        let request = try connection.head()
        heads.append(request)
        let length = request["Content-Length"].flatMap { Int($0) } ?? 0
        switch request.line.prefix(while: { $0 != " " }) {
        case "PUT":
          try connection.send(
            "HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Draft-Interop-Version: 8\r\n"
              + "Location: /uploads/SECRET-place\r\n\r\n")
          var rest = count
          while rest > 0, let piece = try connection.receive(rest) { rest -= piece.count }
          // To receive a HEAD with a faulty answer, end the connection. Do not reset it: if a send fails because of the
          // reset, the client never reads the 104 and starts over.
          if cuts || !head.isEmpty { connection.shutdownWriting() }
          _ = connection.waitForEnd()
          return
        case "HEAD":
          willAnswerHead()
          if head.isEmpty {
            try connection.respond("204 No Content", ["Upload-Offset: \(count)", "Upload-Complete: ?0"])
          } else {
            try connection.respond(head, ["Location: /uploads/SECRET-elsewhere"])
          }
        case "DELETE": try connection.respond(delete)
        default:
          var content: [UInt8] = []
          while content.count < length, let piece = try connection.receive(length - content.count) {
            content += piece
          }
          handler.withLock { $0 }?(content)
          try connection.respond("200 OK", ["Upload-Complete: ?1"])
        }
      }
    }
    url = started.url
    server.withLock { $0 = started }
    handler.withLock { $0 = { [weak self] content in self?.appended.withLock { $0 += content } } }
  }
}
