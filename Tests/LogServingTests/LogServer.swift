// A real server that stores its uploads in a log, and its stored messages.

import BrokerTesting
import EventLoops
import HTTPMessages
import JetStream
import NetworkTesting
import ResumableUploads
import StreamServing
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

extension UploadLog {
  /// Opens the log for requests without a connection, on the loop of the client. Nil if that fails.
  static func open(
    with client: BrokerClient, _ options: UploadLimitsConfiguration, emit: @escaping (ServerEvent) -> Void,
    _ completion: @escaping (UploadLog?) -> Void
  ) {
    MessageStream.open("sluice", replicas: 1, with: client) { found in
      guard case .success(let stream) = found else { return completion(nil) }
      let context = ServingContext(
        loop: client.loop, assignment: .only, figures: ServerLoopFigures(), finishAfter: .seconds(3600),
        isValid: { _ in true }, emit: emit)
      let usage = LogUsage(options, finishAfter: .seconds(3600))
      completion(
        UploadLog(
          context, stream: stream, options: options, usage: usage, maximumBodyLength: nil, maximumHole: 0))
    }
  }
}

extension RequestHead {
  /// An append of content whose length is not announced.
  static func append(
    to location: String, at offset: Int, completes: Bool, _ more: HeaderFields = [:]
  ) throws -> RequestHead {
    var fields: HeaderFields = [
      "content-type": "application/partial-upload", "upload-offset": "\(offset)",
      "upload-complete": completes ? "?1" : "?0", "upload-draft-interop-version": "8",
    ]
    fields.append(contentsOf: more)
    let path = Array(location.utf8)
    return RequestHead(
      method: "PATCH", target: try RequestTarget(path.span, method: "PATCH"), minorVersion: 1, fields: fields,
      framing: .chunked, expectsContinue: false, keepsAlive: true)
  }
}
