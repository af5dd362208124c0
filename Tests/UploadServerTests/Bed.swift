// Where the servers of a test store: a claim that holds for each storage is one test with `arguments: Bed.all`.

import BrokerTesting
import EventLoops
import Glibc
import JetStream
import NetworkTesting
import Testing
import UploadServer

/// Servers that come one after another, or side by side, and share what they store.
///
/// `SLUICE_BROKERS=3` lets three brokers keep each message, and `SLUICE_NATS_SERVER` names another broker.
final class Bed {
  enum Storage: Sendable, CustomTestStringConvertible {
    /// A server with `--directory`, and the next one in its place.
    case directory
    /// Servers with `--store`, all of which run.
    case log
    var testDescription: String { self == .directory ? "--directory" : "--store" }
  }

  static let all = [Storage.directory, .log]

  let storage: Storage
  private let directory = TemporaryDirectory()
  private let cluster: TestCluster?
  /// The JetStream stream, which no other test has.
  private let stream: String
  private var servers: [TestServer] = []

  init(_ storage: Storage) throws {
    self.storage = storage
    cluster = storage == .log ? try SharedCluster.get() : nil
    stream = "bed-\(UInt64.random(in: 0...UInt64.max))"
  }

  /// The first server, or another one that knows nothing but what the ones before it have stored.
  func server(_ change: (inout UploadServer.Configuration) -> Void = { _ in }) throws -> TestServer {
    // A directory has one server at a time.
    if storage == .directory { servers.last?.stop() }
    let server = try TestServer(in: directory) { configuration in
      if let cluster {
        configuration.storage = .brokers(
          .init(cluster.options, stream: stream, replicas: cluster.brokers.count))
      }
      change(&configuration)
    }
    server.support = cluster
    servers.append(server)
    return server
  }

  /// What is stored of the only stream of that name, whether it is complete or not; zeros where bytes never came.
  func stored(_ id: String) throws -> String {
    guard let cluster else {
      let names = directory.names.filter { $0.contains("-\(id).") && !$0.hasSuffix(".gaps") }
      guard names.count <= 1 else { throw TestFailure("\(names)") }
      return try names.first.map { try directory.text($0) } ?? ""
    }
    let log = try BrokerLoop(cluster.options).open(stream)
    var bytes: [UInt8] = []
    for message in try log.messages(of: "*") where message.content["Stream-ID"] == id {
      let offset = message.content["Stream-Offset"].flatMap { Int($0) } ?? 0
      // A message without bytes makes no hole.
      guard !message.content.payload.isEmpty else { continue }
      guard offset >= bytes.count else { throw TestFailure("byte \(offset) is stored twice") }
      bytes += [UInt8](repeating: 0, count: offset - bytes.count) + message.content.payload
    }
    return String(decoding: bytes, as: UTF8.self)
  }
}

/// Brokers for all tests that need only their store, while one of these tests runs.
private enum SharedCluster {
  private struct Weak { weak var cluster: TestCluster? }
  private static let current = Lock(Weak())
  private static let count = getenv("SLUICE_BROKERS").flatMap { Int(String(cString: $0)) } ?? 1

  static func get() throws -> TestCluster {
    try current.withLock { current in
      if let cluster = current.cluster { return cluster }
      let cluster = try TestCluster(count)
      current.cluster = cluster
      return cluster
    }
  }
}

extension RawClient {
  /// Begins a plain request whose body the server has accepted. If the server asks for bytes before it, the request is
  /// sent once more, as a client does that no longer has them.
  static func plain(
    _ server: TestServer, id: String? = "a", offset: Int? = nil, with lines: [String] = []
  ) throws -> RawClient {
    var refusals: [Answer] = []
    while refusals.count < 2 {
      let client = try server.connect()
      let more = (lines + ["Expect: 100-continue"]).map { $0 + "\r\n" }.joined()
      try client.send(TestServer.head(id: id, offset: offset, more: more))
      let answer = try client.answer()
      if answer.status == 100 { return client }
      refusals.append(answer)
    }
    throw TestFailure("\(refusals)")
  }

  /// Sends a whole plain request, without waiting for the server to accept it.
  static func sendPlain(
    _ server: TestServer, id: String? = "a", offset: Int? = nil, with lines: [String] = [], _ body: String
  ) throws -> Answer {
    let client = try server.connect()
    let more = lines.map { $0 + "\r\n" }.joined()
    // A refusal may come before the body, and close the connection.
    try? client.send(
      TestServer.head(id: id, offset: offset, framing: "Content-Length: \(body.utf8.count)", more: more) + body)
    return try client.answer()
  }
}
