// Imitations of other servers: the answers of tusd and of SwiftNIO's resumable uploads, according to their sources.
// This file has their common part. Their answers are in OtherServer+Tusd.swift and OtherServer+SwiftNIO.swift.

import NetworkTesting
import Synchronization

/// Keeps uploads in memory, and resets connections in the middle of them.
final class OtherServer: Sendable {
  enum Program: String, CaseIterable, Sendable {
    /// `pkg/handler/unrouted_handler.go`, summer of 2026, with the draft's protocol enabled.
    case tusd
    /// `Sources/NIOResumableUpload` of swift-nio-extras, summer of 2026.
    case swiftNIO
  }

  struct Upload: Sendable {
    var bytes: [UInt8] = []
    /// Nil until it is known.
    var length: Int?
    var isComplete = false
    var isGone = false
    /// The connection of the active request.
    var connection: ServerConnection?
  }

  struct State {
    var uploads: [Upload] = []
    var cuts: [Int]
    /// The number of content bytes since the last cut.
    var received = 0
    /// The method and status of each answer.
    var answers: [(method: String, status: Int)] = []
  }

  /// A request as both interpret it.
  struct Request {
    let head: ServerConnection.Head
    let connection: ServerConnection
    var method: String { String(head.line.prefix { $0 != " " }) }
    var target: Substring { head.line.split(separator: " ")[1] }
    var version: Int? { head["Upload-Draft-Interop-Version"].flatMap { Int($0) } }
    var offset: Int? { head["Upload-Offset"].flatMap { Int($0) } }
    var contentLength: Int? { head["Content-Length"].flatMap { Int($0) } }
    var uploadLength: Int? { head["Upload-Length"].flatMap { Int($0) } }
    /// `Upload-Complete`, or its inverted predecessor; nil without either.
    var completes: Bool? {
      version == 3 ? head["Upload-Incomplete"].map { $0 == "?0" } : head["Upload-Complete"].map { $0 == "?1" }
    }

    func completeness(_ isComplete: Bool) -> String {
      version == 3 ? "Upload-Incomplete: ?\(isComplete ? 0 : 1)" : "Upload-Complete: ?\(isComplete ? 1 : 0)"
    }
  }

  private let state: Mutex<State>
  private let server: Mutex<ScriptedServer?> = Mutex(nil)
  let origin: String

  /// - Parameter cuts: the numbers of content bytes after which the connection ends, each counted from the previous
  ///   cut.
  init(_ program: Program, cuts: [Int]) throws {
    let state = Mutex(State(cuts: cuts))
    self.state = state
    let handler = Mutex<(@Sendable (Request) throws -> Bool)?>(nil)
    let started = try ScriptedServer { connection, _ in
      guard let handle = handler.withLock({ $0 }) else { return }
      while try handle(Request(head: try connection.head(), connection: connection)) {}
    }
    origin = started.url
    server.withLock { $0 = started }
    handler.withLock {
      $0 = { [weak self] request in
        guard let self else { return false }
        return switch program {
        case .tusd: try answerAsTusd(request)
        case .swiftNIO: try answerAsSwiftNIO(request)
        }
      }
    }
  }

  deinit { server.withLock { $0 }?.close() }

  /// Whether all cuts were made.
  var hasCutAll: Bool { state.withLock { $0.cuts.isEmpty } }
  var uploads: [Upload] { state.withLock { $0.uploads } }
  var answers: [(method: String, status: Int)] { state.withLock { $0.answers } }

  // MARK: Common to both

  func answer(_ request: Request, _ status: String, _ fields: [String] = [], body: String = "") throws {
    let code = Int(status.prefix { $0 != " " }) ?? 0
    state.withLock { $0.answers.append((request.method, code)) }
    try request.connection.respond(status, fields, body: request.method == "HEAD" ? "" : body)
  }

  /// An answer before the content was read. Returns false, because the connection ends.
  func answerEarly(_ request: Request, _ status: String, _ fields: [String] = [], body: String = "") throws -> Bool {
    try answer(request, status, fields + ["Connection: close"], body: body)
    request.connection.shutdownWriting()
    _ = request.connection.readToEnd()
    return false
  }

  func announce(_ request: Request, _ fields: [String]) throws {
    try request.connection.send(
      "HTTP/1.1 104 Upload Resumption Supported\r\n" + fields.map { "\($0)\r\n" }.joined() + "\r\n")
  }

  func create(_ upload: Upload) -> Int {
    state.withLock { state in
      state.uploads.append(upload)
      return state.uploads.count - 1
    }
  }

  /// The number at the end of an upload's path; nil if the upload does not exist.
  func index(_ request: Request) -> Int? {
    guard let index = Int(request.target.split(separator: "/").last ?? "") else { return nil }
    return state.withLock { $0.uploads.indices.contains(index) && !$0.uploads[index].isGone } ? index : nil
  }

  subscript(index: Int) -> Upload {
    get { state.withLock { $0.uploads[index] } }
    set { state.withLock { $0.uploads[index] = newValue } }
  }

  /// Ends the active request of an upload.
  func detach(_ index: Int) {
    let connection = state.withLock { state in
      defer { state.uploads[index].connection = nil }
      return state.uploads[index].connection
    }
    connection?.reset()
  }

  /// Reads the content into an upload. Returns false if the connection is over.
  func take(_ request: Request, into index: Int) throws -> Bool {
    state.withLock { $0.uploads[index].connection = request.connection }
    defer { state.withLock { $0.uploads[index].connection = nil } }
    var rest = request.contentLength ?? 0
    let isChunked = request.head["Transfer-Encoding"] == "chunked"
    while true {
      let piece: [UInt8]
      if isChunked {
        guard let chunk = try request.connection.chunk(brokenOff: { _ = keep($0, in: index) }) else { return true }
        piece = chunk
      } else {
        guard rest > 0 else { return true }
        guard let bytes = try request.connection.receive(min(rest, 16_384)) else { return false }
        piece = Array(bytes)
        rest -= piece.count
      }
      if keep(piece, in: index) {
        if request.method == "PATCH" {
          request.connection.reset()
        } else {
          // With a FIN, because a sending client may see a reset before it reads the 104 with the upload's URL.
          state.withLock { $0.uploads[index].connection = nil }
          request.connection.shutdownWriting()
          _ = request.connection.readToEnd()
        }
        return false
      }
    }
  }

  /// Returns whether the connection must be cut after it.
  private func keep(_ bytes: [UInt8], in index: Int) -> Bool {
    state.withLock { state in
      state.uploads[index].bytes += bytes
      state.received += bytes.count
      guard let cut = state.cuts.first, state.received >= cut else { return false }
      state.cuts.removeFirst()
      state.received = 0
      return true
    }
  }
}
