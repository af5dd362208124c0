// A resource on a server that misbehaves, for downloads by sluice get.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Synchronization
import Testing

/// A resource, and the answers to successive requests for it.
final class FaultyResource: Sendable {
  /// How a server answers one request.
  enum Fault: String, CaseIterable {
    case none
    case cutBeforeHead, cutInHead, cutAfterHead, cutAtFirstByte, cutInBody, cutAtLastByte, reset
    case stall, busy, serverError, redirect, relativeRedirect
    case changed, ignoresRange, ignoresCondition, otherRange, laterRange, noContentRange, otherTotal, multipart
    case shorterPart, starPart, unsatisfied, preconditionFailed, excess, earlyEnd, encoded, wrongDigest
    case notFound, gone, badRequest, notImplemented, noContent, portal, redirectNowhere, oddLength, chunkedCut

    /// The reason in the event that reports a restart; nil if the download must not restart.
    var restart: String? {
      switch self {
      case .changed, .ignoresCondition, .preconditionFailed: "changed"
      case .ignoresRange, .chunkedCut: "ignored"
      case .otherRange, .laterRange, .noContentRange, .otherTotal, .multipart, .unsatisfied: "range"
      case .excess: "excess"
      default: nil
      }
    }
    /// The exit code of the process if it ends because of this fault.
    var code: Int32? {
      switch self {
      case .wrongDigest: 76
      default: nil
      }
    }
  }

  struct State {
    var version: UInt64 = 0
    var plan: [Fault]
  }
  static let size = 400_000

  let state: Mutex<State>
  let requests: EventLog<ServerConnection.Head>
  let validator: Validator

  enum Validator: String, CaseIterable { case tag, date, weak, none }

  init(_ plan: [Fault], _ validator: Validator = .tag) throws {
    state = Mutex(State(plan: plan))
    requests = try EventLog()
    self.validator = validator
  }

  var content: [UInt8] { Self.bytes(Self.size, version: state.withLock { $0.version }) }

  func serve() throws -> ScriptedServer {
    try ScriptedServer { [self] connection, _ in
      while true {
        let head = try connection.head()
        requests.append(head)
        try answer(head, connection)
      }
    }
  }

  private func answer(_ head: ServerConnection.Head, _ connection: ServerConnection) throws {
    let (fault, version) = state.withLock { state -> (Fault, UInt64) in
      let isRedirected = head.line.contains("/moved")
      let fault = isRedirected || state.plan.isEmpty ? .none : state.plan.removeFirst()
      if [.changed, .ignoresCondition, .preconditionFailed].contains(fault) { state.version += 1 }
      return (fault, state.version)
    }
    let content = Self.bytes(Self.size, version: version)
    var fields: [String] =
      switch validator {
      case .tag: ["ETag: \"v\(version)\""]
      case .weak: ["ETag: W/\"v\(version)\""]
      case .date:
        ["Last-Modified: Sun, 06 Nov 1994 08:4\(version % 10):37 GMT", "Date: Sun, 06 Nov 1994 09:49:37 GMT"]
      case .none: []
      }
    let start = head["Range"].flatMap { Int($0.dropFirst(6).dropLast()) }
    let isCurrent =
      validator == .tag && head["If-Range"] == "\"v\(version)\""
      || validator == .date && head["If-Range"] == fields.first.map { String($0.dropFirst(15)) }
    func send(_ status: String, _ body: ArraySlice<UInt8>, length: Int? = nil, cut: Int? = nil) throws {
      let text =
        (["HTTP/1.1 \(status)"] + fields + ["Content-Length: \(length ?? body.count)"])
        .map { "\($0)\r\n" }.joined() + "\r\n"
      if fault == .cutInHead {
        try connection.send(String(text.prefix(text.utf8.count / 2)))
        throw TestFailure("cut")
      }
      try connection.send(text)
      try connection.send(Array(body.prefix(cut ?? body.count)))
      if fault == .reset { connection.reset() }
      if fault == .stall { _ = connection.waitForEnd() }
      if cut != nil || fault == .earlyEnd { throw TestFailure("cut") }
    }
    switch fault {
    case .cutBeforeHead: throw TestFailure("cut")
    case .busy: return try connection.respond("503 Service Unavailable", ["Retry-After: 0"])
    case .serverError: return try connection.respond("502 Bad Gateway", body: "no")
    case .notFound: return try connection.respond("404 Not Found", body: "no")
    case .gone: return try connection.respond("410 Gone", body: "no")
    case .badRequest: return try connection.respond("400 Bad Request", body: "no")
    case .notImplemented: return try connection.respond("501 Not Implemented", body: "no")
    case .noContent: return try connection.respond("204 No Content")
    case .portal: return try connection.respond("200 OK", ["Content-Type: text/html"], body: "<html>Log in</html>")
    case .redirectNowhere: return try connection.respond("302 Found")
    case .oddLength:
      try connection.send("HTTP/1.1 200 OK\r\nETag: \"v\(version)\"\r\nContent-Length: 1, \(content.count)\r\n\r\n")
      try connection.send(content)
      throw TestFailure("cut")
    case .chunkedCut:
      try connection.send(
        "HTTP/1.1 200 OK\r\nETag: \"v\(version)\"\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n")
      try connection.send(Array(content[..<4096]))
      throw TestFailure("cut")
    case .redirect: return try connection.respond("302 Found", ["Location: /moved/file.bin"])
    case .relativeRedirect: return try connection.respond("307 Found", ["Location: moved/../moved/file.bin?x"])
    case .preconditionFailed: if start != nil { return try connection.respond("412 Precondition Failed") }
    case .unsatisfied:
      if start != nil { return try connection.respond("416 No", ["Content-Range: bytes */\(start! / 2)"]) }
    case .encoded: fields.append("Content-Encoding: gzip")
    case .wrongDigest: fields.append("Repr-Digest: sha-256=:\(String(repeating: "A", count: 43))=:")
    default: break
    }
    guard let start, fault != .ignoresRange, isCurrent || fault == .ignoresCondition else {
      switch fault {
      case .excess:
        // libcurl reads no more than Content-Length announces. A part can announce less than the server sends.
        return try send("200 OK", content[...])
      default: return try send("200 OK", content[...], cut: cut(fault, content.count))
      }
    }
    func part(_ first: Int, _ last: Int, total: String = "\(FaultyResource.size)") -> String {
      "Content-Range: bytes \(first)-\(last)/\(total)"
    }
    let end = content.count
    switch fault {
    case .otherRange:
      fields.append(part(start - 1, end - 1))
      try send("206 Partial Content", content[(start - 1)...])
    case .laterRange:
      fields.append(part(min(start + 7, end - 1), end - 1))
      try send("206 Partial Content", content[min(start + 7, end - 1)...])
    case .noContentRange: try send("206 Partial Content", content[start...])
    case .otherTotal:
      fields.append(part(start, end - 1, total: "\(end + 5)"))
      try send("206 Partial Content", content[start...])
    case .multipart:
      fields.append("Content-Type: multipart/byteranges; boundary=x")
      try send("206 Partial Content", content[start...])
    case .shorterPart:
      let middle = start + (end - start) / 2
      fields.append(part(start, middle - 1))
      try send("206 Partial Content", content[start..<middle])
    case .starPart:
      let middle = start + (end - start) / 2
      fields.append(part(start, middle - 1, total: "*"))
      try send("206 Partial Content", content[start..<middle])
    case .excess:
      fields.append(part(start, end - 2))
      try send("206 Partial Content", content[start...])
    default:
      fields.append(part(start, end - 1))
      try send("206 Partial Content", content[start...], cut: cut(fault, end - start))
    }
  }

  private func cut(_ fault: Fault, _ count: Int) -> Int? {
    switch fault {
    case .cutAfterHead: 0
    case .cutAtFirstByte: 1
    case .cutInBody, .reset, .stall, .earlyEnd: count / 2
    case .cutAtLastByte: count - 1
    default: nil
    }
  }
}

extension FaultyResource {
  /// The content of a resource.
  static func bytes(_ count: Int, version: UInt64 = 0) -> [UInt8] {
    var random = SplitMix64(state: version)
    var bytes: [UInt8] = []
    bytes.reserveCapacity(count + 8)
    while bytes.count < count { withUnsafeBytes(of: random.next()) { bytes += $0 } }
    return Array(bytes.prefix(count))
  }

  /// Options with which `sluice get` tries again soon, and reports events.
  static let patience = ["--retry-ceiling", "20ms", "--response-timeout", "300ms", "--progress", "json"]

  /// Begins a download, receives half of the content, and ends the process.
  func begin(_ server: ScriptedServer, _ path: String, kill: Bool) throws {
    state.withLock { $0.plan = [.stall] + $0.plan }
    let process = try sluice(
      ["get", "\(server.url)/file.bin", "-o", path, "--progress", "none", "--response-timeout", "1h"])
    // The part contains all bytes that were sent.
    try waitUntil("half of it is there") { (try? fileContents(path + ".part"))?.count == FaultyResource.size / 2 }
    process.signal(kill ? SIGKILL : SIGTERM)
    #expect(try process.wait() == (kill ? 128 + SIGKILL : 130))
    if !kill { #expect(process.errors.contains { $0.contains("resume with: sluice get --resume") }) }
  }
}
