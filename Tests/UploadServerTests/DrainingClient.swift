// A client while the server drains, and the answer that it must receive.

import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

/// One client with a request in a known state.
final class DrainingClient {
  enum Kind: CaseIterable {
    /// Has received its answer, and keeps the connection open.
    case idle
    /// Has sent a part of a head.
    case slowHead
    /// An append without a known end.
    case liveAppend
    /// An append of a known length.
    case sizedAppend
    /// A plain stream with a name, without a known end.
    case livePlain
    /// The same with a known end.
    case sizedPlain
    /// A plain stream that cannot be continued: it has no name.
    case unnamed

    static let atWork = allCases.filter { $0 != .idle && $0 != .slowHead }
  }

  let kind: Kind
  let connection: RawClient
  /// All bytes that the client would send.
  let all: [UInt8]
  private let number: Int
  private let path: String
  private let location: String?
  private var sent = 0
  /// The offset at which it must continue.
  private var told = 0
  /// Whether the server has stored all bytes.
  private var isOver = false

  /// Whether the server must wait for it.
  var isAwaited: Bool { kind == .sizedAppend || kind == .sizedPlain || kind == .unnamed }
  /// Whether the server reports the offset at which to continue.
  var isLive: Bool { kind == .liveAppend || kind == .livePlain }
  private var isChunked: Bool { isLive || kind == .unnamed }

  init(_ kind: Kind, _ number: Int, _ test: TestServer, _ random: inout SplitMix64) throws {
    (self.kind, self.number, path) = (kind, number, "/c\(number).bin")
    let pattern = OffsetPattern(seed: random.next())
    all = (0..<UInt64(random.size(upTo: 300_000) + 100)).map { pattern[$0] }
    let isUpload = kind == .liveAppend || kind == .sizedAppend
    location = isUpload ? try test.create(path, ["Stream-ID: s\(number)"]) : nil
    connection = try test.connect()
    let framing = isChunked ? "Transfer-Encoding: chunked" : "Content-Length: \(all.count)"
    let begun = test.events.all.count { $0.kind == .begun }
    switch kind {
    case .idle:
      try connection.request("GET", "/", version: nil)
      #expect(try connection.answer().status == 200)
    case .slowHead: try connection.send("POST /c HTTP/1.1\r\nHost: h\r\nConte")
    case .liveAppend, .sizedAppend:
      try connection.patch(location ?? "", at: 0, completes: kind == .sizedAppend, [framing])
      try connection.awaitProgress(0)
    case .livePlain, .sizedPlain, .unnamed:
      try connection.send(
        TestServer.head(
          path, id: kind == .unnamed ? nil : "s\(number)", type: "application/octet-stream", framing: framing))
      _ = try test.events.wait(.begun, count: begun + 1)
    }
    if kind != .idle, kind != .slowHead { try sendMore(&random) }
  }

  /// Sends a part of the remaining bytes, never all of them. Sometimes waits for the upload's progress.
  func sendMore(_ random: inout SplitMix64) throws {
    let count = Int.random(in: 0...((all.count - sent) / 2), using: &random)
    guard count > 0 else { return }
    try send(all[sent..<(sent + count)])
    if kind == .liveAppend, random.chance(50) { try connection.awaitProgress(sent) }
  }

  private func send(_ bytes: ArraySlice<UInt8>) throws {
    if isChunked { try connection.sendChunk(Array(bytes)) } else { try connection.send(Array(bytes)) }
    sent += bytes.count
  }

  /// Waits until the server's TCP has received all bytes, so that the server can read them.
  func waitUntilDelivered() throws {
    try waitUntil("all bytes have arrived") { connection.unacknowledged == 0 }
  }

  /// Sends the rest. The request must then be complete.
  func finish() throws {
    try send(all[sent...])
    if isChunked { try connection.send("0\r\n\r\n") }
    let answer = try connection.final().answer
    #expect(answer.status == 201, "\(kind): \(answer)")
    isOver = true
    connection.disconnect()
  }

  /// The server must report as many bytes as were sent.
  func hearOffset() throws {
    let answer = try connection.final().answer
    let offset = answer[location == nil ? "stream-offset" : "upload-offset"]
    #expect(answer.status == 503 && answer["retry-after"] == "2" && offset == "\(sent)", "\(kind): \(answer)")
    told = offset.flatMap { Int($0) } ?? 0
    connection.disconnect()
  }

  /// Continues at the reported offset, without repeating a byte.
  func resume(at server: TestServer) throws {
    // A request without a name cannot be continued.
    guard kind != .unnamed else { return }
    let connection = try server.connect()
    if let location {
      #expect(try connection.head(location)["upload-offset"] == "\(told)", "\(kind)")
      try connection.patch(location, at: told, completes: true, ["Content-Length: \(all.count - told)"])
    } else {
      try connection.send(
        TestServer.head(
          path, id: "s\(number)", offset: told, type: "application/octet-stream",
          framing: "Content-Length: \(all.count - told)"))
    }
    try connection.send(Array(all[told...]))
    #expect([200, 201].contains(try connection.final().answer.status), "\(kind)")
    isOver = true
    connection.disconnect()
  }

  /// The bytes that must be stored at the end.
  var stored: [UInt8] { isOver ? all : Array(all[..<sent]) }

  /// The file that contains its stream.
  func file(in directory: TemporaryDirectory) -> String {
    directory.names.first { $0.hasPrefix("c\(number)-") } ?? "none"
  }
}
