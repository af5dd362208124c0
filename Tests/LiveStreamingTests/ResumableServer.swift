// A server for resumable uploads that does as it should, but for what a test says: written by hand, so that it can be as
// strange as the servers that people run.

import EventLoops
import NetworkTesting
import PropertyTesting
import UploadClient

@testable import LiveStreaming

/// Keeps uploads in memory, one thread a connection.
final class ResumableServer: Sendable {
  /// How it speaks, for all requests.
  struct Habits: Sendable {
    var versions: Set<Int> = [8]
    /// The answer to a version that it does not speak.
    var strange: (status: String, fields: [String]) = ("400 Bad Request", [])
    /// `Upload-Limit` where it belongs; nil for never.
    var limits: String? = "min-size=0"
    /// Whether creations are announced by 104.
    var announces = true
    /// Tells progress by 104 after so many bytes; nil for never.
    var progress: Int?
    /// `Upload-Complete` in final responses to creations and appends.
    var tellsCompleteness = true
    /// `Upload-Offset` in the same.
    var tellsOffset = false
    /// As SwiftNIO: of a final response, completeness by the other field.
    var swapsCompleteness = false
    /// What `Location` says of `/uploads/1`.
    var location: @Sendable (String) -> String = { $0 }
    /// Forgets an upload when it is complete.
    var forgets = false
    /// `Repr-Digest` for what it has.
    var digest: (@Sendable ([UInt8]) -> String)?
    /// More fields of the responses to creations.
    var creationFields: [String] = []
  }

  /// What to do with one request.
  enum Conduct: Sendable {
    case proper
    /// The test has answered.
    case answered
    /// Ends the connection before a byte of the content is read.
    case close
    /// Keeps so many bytes of the content, and ends the connection: an append's by a reset.
    case cut(after: Int)
    /// Reads so many bytes of the content and keeps them, answers, and neither reads on nor closes.
    case early(after: Int, String, [String])
    /// Reads and keeps the content, and answers nothing.
    case silent
    /// Does as it should, but ends the connection instead of answering.
    case hangUp
    /// Reads the content, keeps nothing, forgets the upload, and answers this.
    case destroy(String, [String])
    /// Reads and keeps the content, and answers this.
    case answer(String, [String])
  }

  struct Request: Sendable {
    var connection: Int
    /// How many requests of this method came before.
    var number: Int
    var head: ServerConnection.Head
    var method: String { String(head.line.prefix { $0 != " " }) }
    var target: String { String(head.line.split(separator: " ")[1]) }
    var offset: UInt64? { head["Upload-Offset"].flatMap { UInt64($0) } }
    var version: Int? { head["Upload-Draft-Interop-Version"].flatMap { Int($0) } }
    /// The last request of an upload, whatever the version calls it.
    var completes: Bool { head["Upload-Complete"] == "?1" || head["Upload-Incomplete"] == "?0" }
    /// Bytes of its content that were read.
    var count = 0
  }

  struct Upload: Sendable {
    var bytes: [UInt8] = []
    var isComplete = false
    var isGone = false
    /// Of the request that created it.
    var head: ServerConnection.Head?
  }

  struct State {
    var uploads: [Upload] = []
    var counts: [String: Int] = [:]
    var plain: [(head: ServerConnection.Head, bytes: [UInt8])] = []
  }

  let requests: EventLog<Request>
  let state = Lock(State())
  let habits: Habits
  let conduct: @Sendable (Request, ServerConnection) throws -> Conduct
  private let server: Lock<ScriptedServer?> = Lock(nil)
  let url: String

  init(
    _ habits: Habits = Habits(), port: UInt16? = nil, receiveBuffer: Int32? = nil,
    _ conduct: @escaping @Sendable (Request, ServerConnection) throws -> Conduct = { _, _ in .proper }
  ) throws {
    self.habits = habits
    self.conduct = conduct
    requests = try EventLog()
    let serve = Lock<(@Sendable (ServerConnection, Int) throws -> Void)?>(nil)
    let started = try ScriptedServer(port.map { .port($0) } ?? .ipv4, receiveBuffer: receiveBuffer) {
      connection, number in
      try serve.withLock { $0 }?(connection, number)
    }
    url = started.url
    server.withLock { $0 = started }
    serve.withLock { $0 = { [weak self] in try self?.serve($0, $1) } }
  }

  deinit { server.withLock { $0 }?.close() }

  // MARK: What a test sees

  var uploads: [Upload] { state.withLock { $0.uploads } }
  /// The bodies of plain requests.
  var plain: [(head: ServerConnection.Head, bytes: [UInt8])] { state.withLock { $0.plain } }
  var methods: [String] { requests.all.map(\.method) }
  var connections: Int { Set(requests.all.map(\.connection)).count }
  func of(_ method: String) -> [Request] { requests.all.filter { $0.method == method } }

  /// The request of that method with this number, from 0.
  func nth(_ method: String, _ number: Int) -> Request? { of(method).dropFirst(number).first }
  /// An upload, which has nothing if there is none.
  func upload(_ index: Int) -> Upload {
    let uploads = uploads
    return uploads.indices.contains(index) ? uploads[index] : Upload()
  }

  /// Loses what it has of an upload.
  func forget(_ index: Int) { state.withLock { $0.uploads[index].isGone = true } }
  /// Loses its last bytes.
  func truncate(_ index: Int, to count: Int) { state.withLock { $0.uploads[index].bytes.removeSubrange(count...) } }

  @discardableResult
  func wait(for method: String, _ count: Int = 1) throws -> Request {
    try requests.wait("\(method) number \(count)") { requests in
      let found = requests.filter { $0.method == method }
      return found.count >= count ? found[count - 1] : nil
    }
  }
}

extension RunningStream {
  /// A stream of a source into a server that may support resumable uploads.
  convenience init(
    _ source: any StreamSource, _ session: UploadSession, _ server: ResumableServer,
    _ change: (inout LiveStreamConfiguration) -> Void = { _ in }
  ) throws {
    try self.init(source, session, server.url + "/take") {
      $0.resumable = .auto
      change(&$0)
    }
  }

  var notices: [UploadNotice] { events.all.compactMap { if case .upload(let notice) = $0 { notice } else { nil } } }
  /// Reasons of the parts after the first.
  var parts: [String] { notices.compactMap { if case .newPart(_, _, let reason) = $0 { reason } else { nil } } }

  func waitUntilAcknowledged(_ offset: UInt64) throws {
    try events.wait("the acknowledgement of \(offset)") { events in
      events.contains { if case .acknowledged(let end) = $0 { end >= offset } else { false } } ? true : nil
    }
  }
}

extension ResumableServer.Upload {
  /// Whether it is what the stream holds from `start` on.
  func matches(_ pattern: OffsetPattern, from start: Int = 0, count: Int? = nil) -> Bool {
    count ?? bytes.count == bytes.count && bytes == patternBytes(pattern, start, bytes.count)
  }
}
