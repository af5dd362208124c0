// Tests that a server that has ended keeps nothing when nothing refers to it any more: no loop, file or connection.

import BrokerTesting
import JetStream
import NetworkTesting
import Testing

@testable import StreamServing
@testable import UploadServer

@Suite("A server that nothing refers to any more")
struct ReleasedServerTests {
  enum Storage: CaseIterable { case directory, retention, discarding, brokers }

  /// What the server has done before it is released.
  enum Life: CaseIterable { case neverStarted, idle, complete, interrupted, unfinished }

  /// Lives as long as a loop of the server reports events.
  private final class Receiver: Sendable {}

  private static func live(_ life: Life, _ server: UploadServer) throws {
    if life == .neverStarted { return }
    try server.start()
    let client = try RawClient(server.localAddresses[0])
    switch life {
    case .neverStarted, .idle: break
    case .complete:
      try client.request("POST", "/t.txt", ["Content-Type: text/plain"], body: "abc")
      #expect(try client.final().answer.status < 300)
    case .interrupted: try client.send(TestServer.head("/t.txt") + "3\r\nabc\r\n")
    case .unfinished:
      try client.request("POST", "/t.txt", ["Upload-Complete: ?0"], body: "abc")
      #expect(try client.final().answer.status == 201)
    }
    server.shutdown(grace: .zero)
    server.waitUntilEnded()
  }

  @Test("it closes its files, its loops and its connection to the brokers", arguments: Storage.allCases, [1, 2])
  func released(_ storage: Storage, _ threads: Int) throws {
    let broker = storage == .brokers ? try TestBroker() : nil
    for life in Life.allCases {
      let directory = TemporaryDirectory()
      weak var receiver: Receiver?
      weak var shared: SharedStorage?
      do {
        let events = Receiver()
        receiver = events
        var configuration = UploadServer.Configuration(
          listen: [try ListenAddress("127.0.0.1:0")], directory: directory.path
        ) { _ in withExtendedLifetime(events) {} }
        configuration.threads = threads
        switch storage {
        case .directory: break
        case .retention: configuration.retention = RecordingRetention(longestAge: .seconds(1000))
        case .discarding: configuration.storage = .discarding
        case .brokers:
          let url = try #require(broker).url
          configuration.storage = .brokers(UploadServer.Brokers(BrokerOptions(servers: [url])))
        }
        let server = try UploadServer(configuration: configuration)
        shared = server.shared
        try Self.live(life, server)
      }
      try waitUntil("\(life): its loops are released", within: 30) { receiver == nil }
      try waitUntil("\(life): its storage is released", within: 30) { shared == nil }
    }
  }
}
