// A chaos proxy between a client and a server that the test controls.

import EventLoops
import NetworkTesting
import Testing

/// The common part of the suites about the proxy.
struct ChaosBench {
  let pattern = (0..<400_000).map { UInt8(truncatingIfNeeded: $0 &* 2_654_435_761 >> 7) }
  let server: WatchingServer
  let proxy: ChaosProxy

  init() throws {
    server = try WatchingServer()
    proxy = try ChaosProxy(to: server.address)
  }

  func client() throws -> ServerConnection { try ServerConnection(connectingTo: proxy.address) }

  func patchHead(_ length: Int, offset: Int = 0, method: String = "PATCH") -> String {
    "\(method) /upload HTTP/1.1\r\nHost: x\r\nUpload-Offset: \(offset)\r\nContent-Length: \(length)\r\n\r\n"
  }

  /// Sends the head of a PATCH and `sent` bytes of its content.
  func beginPatch(_ client: ServerConnection, length: Int = 300_000, sent: Int, offset: Int = 0) throws {
    try client.send(patchHead(length, offset: offset))
    try client.send(Array(pattern[..<sent]))
  }

  @discardableResult
  func applied(_ kind: ChaosFault.Kind) throws -> Int? {
    try proxy.events.wait("the fault \(kind)") { events -> Int?? in
      for case .applied(_, let fault, let connection, _) in events where fault.kind == kind {
        return .some(connection)
      }
      return nil
    }
  }

  func closed(_ connection: Int) -> Bool {
    proxy.events.all.contains { if case .closed(connection) = $0 { true } else { false } }
  }

  func waitUntilClosed(_ connection: Int) throws {
    try proxy.events.first("the end of connection \(connection)") {
      if case .closed(connection) = $0 { true } else { false }
    }
  }

  /// Whether a client's connection ends in an orderly way.
  ///
  /// - Parameter take: given the bytes that come before.
  func endsOrderly(_ client: ServerConnection, _ take: (ArraySlice<UInt8>) -> Void = { _ in }) throws -> Bool {
    do {
      while let bytes = try client.receive() { take(bytes) }
      return true
    } catch let failure as TestFailure where failure.description.contains("reset") {
      return false
    }
  }
}
