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
    func start(at address: String) throws -> UploadServer {
      var configuration = UploadServer.Configuration(
        listen: [try ListenAddress(address)], directory: directory.path
      ) {
        events.append($0)
      }
      configuration.durability = .none
      change(&configuration)
      let server = try UploadServer(configuration: configuration)
      try server.start()
      return server
    }
    func startAnywhere() throws -> UploadServer {
      while true {
        do { return try start(at: "127.0.0.1:\(freePort())") } catch UploadServerError.listening(.portTaken) {
          // Another process took it after this one had found it free.
        }
      }
    }
    server = try listen.map { try start(at: $0) } ?? startAnywhere()
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
