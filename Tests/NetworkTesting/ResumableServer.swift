// A correct server for resumable uploads that a test can configure to deviate. It is written by hand, so that it can
// imitate the deviations of real servers.

package import EventLoops
package import PropertyTesting

/// Keeps uploads in memory, with one thread per connection.
package final class ResumableServer: Sendable {
  /// Its behaviour for all requests.
  package struct Habits: Sendable {
    package var versions: Set<Int>
    /// The answer to a version that it does not support.
    package var strange: (status: String, fields: [String])
    /// The `Upload-Limit` in all appropriate responses; nil for none.
    package var limits: String?
    /// Whether creations are announced by 104.
    package var announces: Bool
    /// Sends a 104 after this number of bytes; nil for never.
    package var progress: Int?
    /// `Upload-Complete` in final responses to creations and appends.
    package var tellsCompleteness: Bool
    /// `Upload-Offset` in the same.
    package var tellsOffset: Bool
    /// Like SwiftNIO: uses the other version's completeness field in final responses.
    package var swapsCompleteness: Bool
    /// The `Location` for `/uploads/1`.
    package var location: @Sendable (String) -> String
    /// Whether to forget an upload when it is complete.
    package var forgets: Bool
    /// The `Repr-Digest` for the stored bytes.
    package var digest: (@Sendable ([UInt8]) -> String)?
    /// Additional fields in the responses to creations.
    package var creationFields: [String]

    package init(
      versions: Set<Int> = [8], strange: (status: String, fields: [String]) = ("400 Bad Request", []),
      limits: String? = "min-size=0", announces: Bool = true, progress: Int? = nil, tellsCompleteness: Bool = true,
      tellsOffset: Bool = false, swapsCompleteness: Bool = false,
      location: @escaping @Sendable (String) -> String = { $0 }, forgets: Bool = false,
      digest: (@Sendable ([UInt8]) -> String)? = nil, creationFields: [String] = []
    ) {
      (self.versions, self.strange, self.limits, self.announces) = (versions, strange, limits, announces)
      (self.progress, self.tellsCompleteness, self.tellsOffset) = (progress, tellsCompleteness, tellsOffset)
      (self.swapsCompleteness, self.location, self.forgets) = (swapsCompleteness, location, forgets)
      (self.digest, self.creationFields) = (digest, creationFields)
    }
  }

  /// The behaviour for one request.
  package enum Conduct: Sendable {
    case proper
    /// The test has answered.
    case answered
    /// Ends the connection before any content is read.
    case close
    /// Keeps this number of content bytes, and ends the connection. For an append, it is a reset.
    case cut(after: Int)
    /// Reads and keeps this number of content bytes, and answers. Then it neither continues to read nor closes.
    case early(after: Int, String, [String])
    /// Reads and keeps the content, without an answer.
    case silent
    /// Behaves correctly, but ends the connection instead of answering.
    case hangUp
    /// Reads the content, keeps none of it, forgets the upload, and sends this answer.
    case destroy(String, [String])
    /// Reads and keeps the content, and sends this answer.
    case answer(String, [String])
    /// Something else answers in the server's place.
    case odd(OddAnswer)
  }

  package struct Request: Sendable {
    package var connection: Int
    /// How many requests of this method preceded it.
    package var number: Int
    package var head: ServerConnection.Head
    package var method: String { String(head.line.prefix { $0 != " " }) }
    package var target: String { String(head.line.split(separator: " ")[1]) }
    package var offset: UInt64? { head["Upload-Offset"].flatMap { UInt64($0) } }
    package var version: Int? { head["Upload-Draft-Interop-Version"].flatMap { Int($0) } }
    /// Whether it is the last request of an upload, in either version's field.
    package var completes: Bool { head["Upload-Complete"] == "?1" || head["Upload-Incomplete"] == "?0" }
    /// How many bytes of its content were read.
    package var count = 0
  }

  package struct Upload: Sendable {
    package var bytes: [UInt8] = []
    package var isComplete = false
    package var isGone = false
    /// The head of the request that created it.
    package var head: ServerConnection.Head?
  }

  package struct State {
    package var uploads: [Upload] = []
    package var counts: [String: Int] = [:]
    package var plain: [(head: ServerConnection.Head, bytes: [UInt8])] = []
  }

  package let requests: EventLog<Request>
  package let state = Lock(State())
  package let habits: Habits
  package let conduct: @Sendable (Request, ServerConnection) throws -> Conduct
  private let server: Lock<ScriptedServer?> = Lock(nil)
  package let url: String

  package init(
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

  // MARK: Observations

  package var uploads: [Upload] { state.withLock { $0.uploads } }
  /// The bodies of plain requests.
  package var plain: [(head: ServerConnection.Head, bytes: [UInt8])] { state.withLock { $0.plain } }
  package var methods: [String] { requests.all.map(\.method) }
  package var connections: Int { Set(requests.all.map(\.connection)).count }
  package func of(_ method: String) -> [Request] { requests.all.filter { $0.method == method } }

  /// The request with this method and number, counted from 0.
  package func nth(_ method: String, _ number: Int) -> Request? { of(method).dropFirst(number).first }
  /// An upload, which is empty if it does not exist.
  package func upload(_ index: Int) -> Upload {
    let uploads = uploads
    return uploads.indices.contains(index) ? uploads[index] : Upload()
  }

  /// Loses all bytes of an upload.
  package func forget(_ index: Int) { state.withLock { $0.uploads[index].isGone = true } }
  /// Loses the last bytes of an upload.
  package func truncate(_ index: Int, to count: Int) {
    state.withLock { $0.uploads[index].bytes.removeSubrange(count...) }
  }

  @discardableResult
  package func wait(for method: String, _ count: Int = 1) throws -> Request {
    try requests.wait("\(method) number \(count)") { requests in
      let found = requests.filter { $0.method == method }
      return found.count >= count ? found[count - 1] : nil
    }
  }
}

extension ResumableServer.Upload {
  /// Whether it equals the stream's bytes from `start` on.
  package func matches(_ pattern: OffsetPattern, from start: Int = 0, count: Int? = nil) -> Bool {
    count ?? bytes.count == bytes.count && bytes == pattern[start..<start + bytes.count]
  }
}
