// A server that reports what it receives, and answers each complete request.

import NetworkTesting

/// The events of each connection. The first connection has the number 0.
enum Seen: Sendable {
  case request(Int, ServerConnection.Head)
  case content(Int, [UInt8])
  case ended(Int, orderly: Bool)
}

/// Reads requests with a `Content-Length`, one after another.
final class WatchingServer: Sendable {
  let seen: EventLog<Seen>
  private let server: ScriptedServer

  /// - Parameter answer: called with each complete request; by default 204 with `Upload-Offset`.
  init(
    receiveBuffer: Int32? = nil,
    answer: @escaping @Sendable (ServerConnection, ServerConnection.Head, _ contentCount: Int) throws -> Void =
      WatchingServer.acknowledge
  ) throws {
    let seen = try EventLog<Seen>()
    self.seen = seen
    server = try ScriptedServer(receiveBuffer: receiveBuffer) { connection, number in
      do {
        while true {
          guard connection.waitForBytes() else { return }
          let head = try connection.head()
          seen.append(.request(number, head))
          let length = Int(head["Content-Length"] ?? "") ?? 0
          var rest = length
          while rest > 0 {
            guard let bytes = try connection.receive(rest) else { throw Closed() }
            seen.append(.content(number, Array(bytes)))
            rest -= bytes.count
          }
          try answer(connection, head, length)
        }
      } catch let failure as TestFailure where failure.description.hasPrefix("recv") {
        seen.append(.ended(number, orderly: false))
      } catch {
        seen.append(.ended(number, orderly: true))
      }
    }
  }

  private struct Closed: Error {}

  var address: String { String(server.url.dropFirst("http://".count)) }

  static func acknowledge(_ connection: ServerConnection, _ head: ServerConnection.Head, _ count: Int) throws {
    let offset = (Int(head["Upload-Offset"] ?? "") ?? 0) + count
    let isHead = head.line.hasPrefix("HEAD")
    try connection.respond("204 No Content", ["Upload-Offset: \(isHead ? 1000 : offset)"])
  }

  /// All content of one connection so far.
  func content(_ connection: Int) -> [UInt8] {
    seen.all.reduce(into: []) { all, event in
      if case .content(connection, let bytes) = event { all += bytes }
    }
  }

  /// Waits until that much content has arrived on a connection.
  func waitForContent(_ connection: Int, _ count: Int) throws {
    try seen.wait("\(count) bytes on connection \(connection)") { _ in
      content(connection).count >= count ? true : nil
    }
  }

  /// Waits for the end of a connection. Returns whether it was orderly.
  @discardableResult
  func waitForEnd(_ connection: Int, within limit: Duration = .seconds(60)) throws -> Bool {
    try seen.wait("the end of connection \(connection)", within: limit) { events in
      for case .ended(connection, let orderly) in events { return orderly }
      return nil
    }
  }

  func hasEnded(_ connection: Int) -> Bool {
    seen.all.contains { if case .ended(connection, _) = $0 { true } else { false } }
  }

  /// The requests of one connection so far.
  func requests(_ connection: Int) -> [ServerConnection.Head] {
    seen.all.compactMap { if case .request(connection, let head) = $0 { head } else { nil } }
  }
}
