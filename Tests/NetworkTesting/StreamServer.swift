// Sluice's own server on a loopback port, with awaitable events.

internal import EventLoops
public import UploadServer

/// An ``UploadServer`` with a directory, which may come from a stopped server.
public final class StreamServer: Sendable {
  public let directory: TemporaryDirectory
  public let events: EventLog<ServerEvent>
  private let server: UploadServer

  /// - Parameter listen: the address. Nil is a port of the loopback address that no other server has had.
  public init(
    in directory: TemporaryDirectory? = nil, listen: String? = nil,
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws {
    let (directory, events) = (try directory ?? TemporaryDirectory(), try EventLog<ServerEvent>())
    self.directory = directory
    self.events = events
    let address = try ListenAddress(listen ?? "127.0.0.1:\(freePort())")
    var configuration = UploadServer.Configuration(listen: [address], directory: directory.path) {
      events.append($0)
    }
    configuration.durability = .none
    change(&configuration)
    server = try UploadServer(configuration: configuration)
    try server.start()
  }

  deinit { stop() }

  public var port: UInt16 { server.localAddresses[0].port ?? 0 }
  public var url: String { "http://\(server.localAddresses[0])" }

  /// Ends at once, and waits for the end.
  public func stop() {
    server.shutdown(grace: .zero)
    server.waitUntilEnded()
  }
}
