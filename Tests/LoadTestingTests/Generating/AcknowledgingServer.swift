// A server of resumable uploads that records by its own clock when each byte arrived, when it was acknowledged, and
// which bytes it discarded. The generator's report is compared with that.

import EventLoops
import Glibc
import NetworkTesting

/// Keeps no bytes, only their counts. It has two threads per connection, one of them for acknowledgements.
final class AcknowledgingServer: Sendable {
  /// One piece of an upload, as it was read and acknowledged.
  struct Piece: Sendable {
    /// Upload offset after its last byte.
    var end: Int
    var received: MonotonicInstant
    var acknowledged: MonotonicInstant?
    var delay: Int64? { acknowledged?.nanoseconds(since: received) }
  }

  struct Upload: Sendable {
    var pieces: [Piece] = []
    /// The length that it reports.
    var length = 0
    /// The number of bytes that it had and discarded.
    var thrownAway = 0
  }

  private let uploads = Lock<[Upload]>([])
  private let server = Lock<ScriptedServer?>(nil)
  private let delay: Duration
  /// After the first number of bytes of the first upload, the connection ends, and the second number of bytes, all
  /// acknowledged, are discarded.
  private let fault: (after: Int, throwsAway: Int)?
  let url: String

  /// - Parameter delay: the time from a piece's arrival to its acknowledgement.
  init(delay: Duration = .zero, fault: (after: Int, throwsAway: Int)? = nil) throws {
    self.delay = delay
    self.fault = fault
    let serve = Lock<(@Sendable (ServerConnection) throws -> Void)?>(nil)
    let started = try ScriptedServer { connection, _ in try serve.withLock { $0 }?(connection) }
    url = started.url
    server.withLock { $0 = started }
    serve.withLock { $0 = { [weak self] in try self?.serve($0) } }
  }

  deinit { server.withLock { $0 }?.close() }

  var all: [Upload] { uploads.withLock { $0 } }

  // MARK: Requests

  private func serve(_ connection: ServerConnection) throws {
    while true {
      let head = try connection.head()
      let (method, target) = (head.line.prefix { $0 != " " }, head.line.split(separator: " ")[1])
      let version = head["Upload-Draft-Interop-Version"].map { ["Upload-Draft-Interop-Version: \($0)"] } ?? []
      let complete = "Upload-Complete: \(head["Upload-Complete"] ?? "?0")"
      switch method {
      case "POST":
        let index = uploads.withLock { uploads in
          uploads.append(Upload())
          return uploads.count - 1
        }
        let place = version + ["Location: /uploads/\(index)"]
        try connection.send(interim(place))
        guard try take(connection, head, index, version) else { return }
        try connection.respond("201 Created", place + [complete])
      case "PATCH":
        let index = Int(target.split(separator: "/").last ?? "") ?? 0
        guard try take(connection, head, index, version) else { return }
        try connection.respond("204 No Content", version + [complete])
      case "HEAD":
        let index = Int(target.split(separator: "/").last ?? "") ?? 0
        let length = uploads.withLock { $0[index].length }
        try connection.respond("204 No Content", version + ["Upload-Offset: \(length)", "Upload-Complete: ?0"])
      default: try connection.respond("200 OK", version + ["Upload-Limit: min-size=0"])
      }
    }
  }

  private func interim(_ fields: [String]) -> String {
    "HTTP/1.1 104 Upload Resumption Supported\r\n" + fields.map { "\($0)\r\n" }.joined() + "\r\n"
  }

  /// Reads a request's content. Returns when all of it was acknowledged, or false if the connection was ended.
  private func take(
    _ connection: ServerConnection, _ head: ServerConnection.Head, _ index: Int, _ version: [String]
  ) throws -> Bool {
    guard head["Transfer-Encoding"] == "chunked" else { return true }
    let waiting = try EventLog<Int?>()
    // It only sends, while this thread only reads.
    let writer = try NamedThread("acknowledgements") { [self] in
      try? acknowledge(connection, index, version, waiting)
    }
    let goesOn: Bool
    do {
      goesOn = try read(connection, index, waiting)
      waiting.append(nil)
      writer.join()
    } catch {
      waiting.append(nil)
      writer.join()
      throw error
    }
    guard !goesOn, let fault else { return true }
    // Everything that arrived was acknowledged first, so the client no longer keeps the bytes that are now discarded.
    uploads.withLock { uploads in
      uploads[index].length -= fault.throwsAway
      uploads[index].thrownAway = fault.throwsAway
    }
    connection.shutdownWriting()
    // Closing with unread bytes would cause a reset, which destroys acknowledgements in flight.
    _ = connection.readToEnd()
    return false
  }

  /// Reads to the content's end. Returns false at the fault.
  private func read(_ connection: ServerConnection, _ index: Int, _ waiting: EventLog<Int?>) throws -> Bool {
    while let bytes = try connection.chunk() {
      let (piece, length) = uploads.withLock { uploads in
        uploads[index].length += bytes.count
        uploads[index].pieces.append(Piece(end: uploads[index].length, received: .now))
        return (uploads[index].pieces.count - 1, uploads[index].length)
      }
      waiting.append(piece)
      if let fault, index == 0, length >= fault.after { return false }
    }
    return true
  }

  private func acknowledge(
    _ connection: ServerConnection, _ index: Int, _ version: [String], _ waiting: EventLog<Int?>
  ) throws {
    var number = 0
    while true {
      let next = try waiting.wait("a piece or the end", within: .seconds(60), from: number) {
        $0.first.map { Handed(piece: $0) }
      }
      guard let next = next.piece else { return }
      number += 1
      let piece = uploads.withLock { $0[index].pieces[next] }
      sleep(until: piece.received + delay)
      try connection.send(interim(version + ["Upload-Offset: \(piece.end)"]))
      uploads.withLock { $0[index].pieces[next].acknowledged = .now }
    }
  }

  /// A name makes the nested optional readable.
  private struct Handed { var piece: Int? }

  private func sleep(until instant: MonotonicInstant) {
    let end = instant.nanoseconds
    var time = timespec(tv_sec: Int(end / 1_000_000_000), tv_nsec: Int(end % 1_000_000_000))
    while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nil) == EINTR {}
  }
}
