// A real server that stores its uploads in a log, and its stored messages.

import BrokerTesting
import EventLoops
import JetStream
import NetworkTesting
import Testing
import UploadServer

@testable import LogServing

/// One of any number of servers that share a broker.
final class LogServer {
  let server: UploadServer
  let events: EventLog<ServerEvent>

  init(_ broker: TestBroker, _ change: (inout UploadServer.Configuration) -> Void = { _ in }) throws {
    let events = try EventLog<ServerEvent>()
    self.events = events
    var configuration = UploadServer.Configuration(
      listen: [try ListenAddress("127.0.0.1:0")],
      storage: .brokers(UploadServer.Brokers(BrokerOptions(servers: [broker.url])))
    ) { events.append($0) }
    change(&configuration)
    server = try UploadServer(configuration: configuration)
    try server.start()
  }

  deinit {
    server.shutdown(grace: .zero)
    server.waitUntilEnded()
  }

  func connect() throws -> RawClient { try RawClient(server.localAddresses[0]) }

  func head(_ location: String) throws -> RawClient.Answer { try connect().head(location) }

  /// Creates an upload with this content.
  func create(_ content: String = "", _ lines: [String] = []) throws -> String {
    let client = try connect()
    try client.request("POST", "/t.txt", ["Upload-Complete: ?0"] + lines, body: content)
    let answer = try client.final().answer
    guard answer.status == 201, let location = answer["location"] else { throw TestFailure("no upload: \(answer)") }
    return location
  }
}

extension TestBroker {
  /// The messages of an upload. Checks that they have no hole and no repeated byte.
  func messages(of location: String) throws -> [StoredMessage] {
    let stream = try BrokerLoop(BrokerOptions(servers: [url])).open("sluice")
    let messages = try stream.messages(of: String(location.dropFirst("/.uploads/".count)))
    var end: UInt64 = 0
    for message in messages {
      let entry = try #require(LogEntry(message.content), "message \(message.sequence) is damaged")
      #expect(entry.offset == end)
      end = entry.end
    }
    return messages
  }

  func bytes(of location: String) throws -> [UInt8] { try messages(of: location).flatMap(\.content.payload) }
}
