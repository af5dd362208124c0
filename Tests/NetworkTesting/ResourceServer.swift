// A server whose resources may change, whose responses break off on request, and which may stop and return.

internal import EventLoops
internal import Glibc

/// Answers GET with Range and If-Range according to RFC 9110. Each resource has a strong entity tag for its content.
public final class ResourceServer: Sendable {
  private struct State {
    /// All versions of each resource. The last one is the present one.
    var bodies: [String: [[UInt8]]] = [:]
    var breaksAfter: Int?
    var server: ScriptedServer?
  }

  /// A received request.
  public struct Request: Sendable {
    public var path: String
    /// The start of the requested range; nil for the whole resource.
    public var start: Int?
  }

  public let requests: EventLog<Request>
  public let port: UInt16
  private let state = Lock(State())

  public init() throws {
    requests = try EventLog()
    let server = try ScriptedServer { _, _ in }
    port = server.port
    server.close()
    try open()
  }

  deinit { close() }

  public func url(_ path: String) -> String { "http://127.0.0.1:\(port)/\(path)" }

  /// Gives a resource its content.
  public func set(_ path: String, _ body: [UInt8]) {
    state.withLock { $0.bodies["/\(path)", default: []].append(body) }
  }

  public func body(_ path: String) -> [UInt8] { bodies(path).last ?? [] }

  /// All versions of a resource.
  public func bodies(_ path: String) -> [[UInt8]] { state.withLock { $0.bodies["/\(path)"] ?? [] } }

  /// The number of content bytes after which each response breaks off; nil for none.
  public var breaksAfter: Int? {
    get { state.withLock { $0.breaksAfter } }
    set { state.withLock { $0.breaksAfter = newValue } }
  }

  /// Refuses connections from here on.
  public func close() { state.withLock { $0.server.take() }?.close() }

  /// Accepts connections again.
  public func open() throws {
    // Retries until the port is free again.
    let deadline = MonotonicInstant.now + .seconds(60)
    while true {
      do {
        let server = try ScriptedServer(.port(port)) { [weak self] connection, _ in
          while let self { try self.serve(connection) }
        }
        return state.withLock { $0.server = server }
      } catch {
        guard MonotonicInstant.now < deadline else { throw error }
        poll(nil, 0, 5)
      }
    }
  }

  private func serve(_ connection: ServerConnection) throws {
    let head = try connection.head()
    let path = String(head.line.split(separator: " ").dropFirst().first ?? "")
    let (bodies, breaksAfter) = state.withLock { ($0.bodies[path] ?? [], $0.breaksAfter) }
    let tag = "\"\(bodies.count)\""
    let asked = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) }
    requests.append(Request(path: path, start: asked))
    let start = head["If-Range"] ?? tag == tag ? asked : nil
    guard let body = bodies.last else { return try connection.respond("404 Not Found", body: "there is no \(path)\n") }
    if let start, start >= body.count {
      return try connection.respond(
        "416 Range Not Satisfiable", ["Content-Range: bytes */\(body.count)", "ETag: \(tag)"])
    }
    let content = body[(start ?? 0)...]
    let range = start.map { "Content-Range: bytes \($0)-\(body.count - 1)/\(body.count)\r\n" } ?? ""
    try connection.send(
      "HTTP/1.1 \(start == nil ? "200 OK" : "206 Partial Content")\r\nETag: \(tag)\r\nAccept-Ranges: bytes\r\n\(range)"
        + "Content-Length: \(content.count)\r\n\r\n")
    try connection.send(Array(content.prefix(breaksAfter ?? .max)))
    if let breaksAfter, content.count > breaksAfter {
      connection.shutdownWriting()
      _ = connection.waitForEnd()
      throw TestFailure("broken off")
    }
  }
}
