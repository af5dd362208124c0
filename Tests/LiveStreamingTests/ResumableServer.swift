// A server for resumable uploads that does as it should, but for what a test says: written by hand, so that it can be as
// strange as the servers that people run.

import NetworkTesting
import PropertyTesting
import Synchronization
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
    /// Keeps so many bytes of the content, and resets the connection.
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

  private struct State {
    var uploads: [Upload] = []
    var counts: [String: Int] = [:]
    var plain: [(head: ServerConnection.Head, bytes: [UInt8])] = []
  }

  let requests: EventLog<Request>
  private let state = Mutex(State())
  private let habits: Habits
  private let conduct: @Sendable (Request, ServerConnection) throws -> Conduct
  private let server: Mutex<ScriptedServer?> = Mutex(nil)
  let url: String

  init(
    _ habits: Habits = Habits(), port: UInt16? = nil, receiveBuffer: Int32? = nil,
    _ conduct: @escaping @Sendable (Request, ServerConnection) throws -> Conduct = { _, _ in .proper }
  ) throws {
    self.habits = habits
    self.conduct = conduct
    requests = try EventLog()
    let serve = Mutex<(@Sendable (ServerConnection, Int) throws -> Void)?>(nil)
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

  // MARK: Serving

  private func serve(_ connection: ServerConnection, _ number: Int) throws {
    while true {
      let head = try connection.head()
      let method = String(head.line.prefix { $0 != " " })
      let count = state.withLock { state in
        defer { state.counts[method, default: 0] += 1 }
        return state.counts[method, default: 0]
      }
      let request = Request(connection: number, number: count, head: head)
      switch try conduct(request, connection) {
      case .answered: requests.append(request)
      case .close:
        requests.append(request)
        return
      case let other: if try !answer(request, connection, other) { return }
      }
    }
  }

  /// False if the connection has to end.
  private func answer(_ request: Request, _ connection: ServerConnection, _ conduct: Conduct) throws -> Bool {
    if let version = request.version, !habits.versions.contains(version) {
      _ = try take(request, connection, nil, .proper)
      try connection.respond(habits.strange.status, habits.strange.fields)
      return true
    }
    let limits = habits.limits.map { ["Upload-Limit: \($0)"] } ?? []
    switch request.method {
    case "OPTIONS":
      requests.append(request)
      if case .answer(let status, let fields) = conduct {
        try connection.respond(status, fields)
      } else {
        try connection.respond("200 OK", limits + version(request))
      }
      return true
    case "HEAD", "DELETE", "PATCH": return try answerUpload(request, connection, conduct, limits)
    default: break
    }
    guard request.head["Upload-Complete"] ?? request.head["Upload-Incomplete"] != nil else {
      return try answerPlain(request, connection, conduct)
    }
    let index = state.withLock { state in
      state.uploads.append(Upload(head: request.head))
      return state.uploads.count - 1
    }
    let place = ["Location: \(habits.location("/uploads/\(index)"))"]
    if habits.announces {
      try connection.send(interim(request, place + limits))
    }
    guard try take(request, connection, index, conduct) else { return false }
    return try finish(
      request, connection, index, conduct, request.completes ? "200 OK" : "201 Created",
      place + limits + habits.creationFields)
  }

  private func answerPlain(_ request: Request, _ connection: ServerConnection, _ conduct: Conduct) throws -> Bool {
    state.withLock { $0.plain.append((request.head, [])) }
    guard try take(request, connection, -1, conduct) else { return false }
    if case .answer(let status, let fields) = conduct {
      try connection.respond(status, fields)
    } else {
      try connection.respond("200 OK")
    }
    return true
  }

  private func answerUpload(
    _ request: Request, _ connection: ServerConnection, _ conduct: Conduct, _ limits: [String]
  ) throws -> Bool {
    let index = Int(request.target.split(separator: "/").last ?? "") ?? -1
    let upload = state.withLock { state in
      state.uploads.indices.contains(index) && !state.uploads[index].isGone ? state.uploads[index] : nil
    }
    switch request.method {
    case "HEAD":
      requests.append(request)
      if case .answer(let status, let fields) = conduct {
        try connection.respond(status, fields)
      } else if let upload {
        try connection.respond(
          "204 No Content",
          version(request) + completeness(request, upload.isComplete) + ["Upload-Offset: \(upload.bytes.count)"]
            + limits)
      } else {
        try connection.respond("404 Not Found")
      }
      return true
    case "DELETE":
      requests.append(request)
      if case .answer(let status, let fields) = conduct {
        try connection.respond(status, fields)
      } else {
        if upload != nil { forget(index) }
        try connection.respond(upload == nil ? "404 Not Found" : "204 No Content")
      }
      return true
    default: break
    }
    if case .destroy(let status, let fields) = conduct {
      _ = try take(request, connection, nil, .proper)
      forget(index)
      try connection.respond(status, fields)
      return true
    }
    guard let upload else {
      _ = try take(request, connection, nil, .proper)
      try connection.respond("404 Not Found")
      return true
    }
    guard request.offset == UInt64(upload.bytes.count), !upload.isComplete else {
      _ = try take(request, connection, nil, .proper)
      try connection.respond(
        "409 Conflict", ["Upload-Offset: \(upload.bytes.count)"] + completeness(request, upload.isComplete))
      return true
    }
    guard try take(request, connection, index, conduct) else { return false }
    return try finish(request, connection, index, conduct, request.completes ? "200 OK" : "204 No Content", [])
  }

  private func finish(
    _ request: Request, _ connection: ServerConnection, _ index: Int, _ conduct: Conduct, _ status: String,
    _ fields: [String]
  ) throws -> Bool {
    if case .answer(let status, let fields) = conduct {
      try connection.respond(status, fields)
      return true
    }
    let bytes = state.withLock { state in
      if request.completes { state.uploads[index].isComplete = true }
      if request.completes, habits.forgets { state.uploads[index].isGone = true }
      return state.uploads[index].bytes
    }
    if case .hangUp = conduct {
      // After the first byte of an answer libcurl does not try again by itself.
      try connection.send("HTTP/1.1 102 Processing\r\n\r\n")
      return false
    }
    var fields = fields + version(request)
    if habits.tellsCompleteness { fields += completeness(request, request.completes, isFinal: request.completes) }
    if habits.tellsOffset { fields.append("Upload-Offset: \(bytes.count)") }
    if let digest = habits.digest { fields.append("Repr-Digest: \(digest(bytes))") }
    try connection.respond(status, fields)
    return true
  }

  private func version(_ request: Request) -> [String] {
    request.version.map { ["Upload-Draft-Interop-Version: \($0)"] } ?? []
  }

  private func completeness(_ request: Request, _ isComplete: Bool, isFinal: Bool = false) -> [String] {
    let inverts = (request.version == 3) != (isFinal && habits.swapsCompleteness)
    return ["\(inverts ? "Upload-Incomplete" : "Upload-Complete"): ?\(isComplete != inverts ? 1 : 0)"]
  }

  private func interim(_ request: Request, _ fields: [String]) -> String {
    "HTTP/1.1 104 Upload Resumption Supported\r\n" + (version(request) + fields).map { "\($0)\r\n" }.joined() + "\r\n"
  }

  // MARK: Content

  /// Reads the content as it comes and keeps it in an upload (-1: the plain request's). False if the connection has to end.
  private func take(
    _ request: Request, _ connection: ServerConnection, _ index: Int?, _ conduct: Conduct
  ) throws -> Bool {
    var request = request
    var limit = Int.max
    switch conduct {
    case .cut(let count), .early(let count, _, _): limit = count
    default: break
    }
    var told = 0
    var rest = request.head["Content-Length"].flatMap { Int($0) } ?? 0
    let isChunked = request.head["Transfer-Encoding"] == "chunked"
    func keep(_ piece: [UInt8]) throws {
      let piece = piece.prefix(limit - request.count)
      request.count += piece.count
      state.withLock { state in
        switch index {
        case nil: break
        case -1: state.plain[state.plain.count - 1].bytes += piece
        case let index?: state.uploads[index].bytes += piece
        }
      }
      if let step = habits.progress, let index, index >= 0, request.count - told >= step {
        told = request.count
        let offset = state.withLock { $0.uploads[index].bytes.count }
        try connection.send(interim(request, ["Upload-Offset: \(offset)"]))
      }
    }
    func read() throws {
      while request.count < limit {
        if isChunked {
          guard let piece = try connection.chunk(brokenOff: { try? keep($0) }) else { break }
          try keep(piece)
        } else {
          guard rest > 0, let piece = try connection.receive(min(rest, 65_536)) else { break }
          rest -= piece.count
          try keep(Array(piece))
        }
      }
    }
    do {
      try read()
    } catch {
      requests.append(request)
      throw error
    }
    requests.append(request)
    switch conduct {
    case .cut:
      connection.reset()
      return false
    case .early(_, let status, let fields):
      try connection.respond(status, fields)
      _ = connection.waitForEnd()
      return false
    case .silent:
      _ = connection.waitForEnd()
      return false
    default: return true
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
