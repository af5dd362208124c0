// A path to a server on which an upload stops half way.

import EventLoops
import NetworkTesting

/// The first connection reaches the server's 104 and a part of the body, and is cut when the test requests it. Later
/// ones are forwarded, or reset while the path is closed.
final class Bottleneck: Sendable {
  private let server: ScriptedServer

  private final class Shared: Sendable {
    let isClosed = Lock(false)
    let mayBreak: EventLog<Bool>
    init() throws { mayBreak = try EventLog() }
  }

  private let shared: Shared

  var url: String { server.url }

  init(to far: StreamServer) throws {
    let shared = try Shared()
    let port = far.port
    self.shared = shared
    server = try ScriptedServer { connection, number in
      if number > 0 {
        if shared.isClosed.withLock({ $0 }) { return connection.reset() }
        return try connection.relay(toPort: port)
      }
      let far = try ServerConnection(connectingTo: "127.0.0.1:\(port)")
      try far.send("\(try connection.head())\n\n".replacing("\n", with: "\r\n"))
      var count = 0
      while count < 500_000, let piece = try connection.receive() {
        try far.send(Array(piece))
        count += piece.count
      }
      try connection.send("\(try far.head())\n\n".replacing("\n", with: "\r\n"))
      try shared.mayBreak.wait("the break") { $0.first }
      connection.reset()
    }
  }

  /// Cuts the first connection.
  func breakOff() { shared.mayBreak.append(true) }

  /// Whether later connections are reset.
  var isClosed: Bool {
    get { shared.isClosed.withLock { $0 } }
    set { shared.isClosed.withLock { $0 = newValue } }
  }
}
