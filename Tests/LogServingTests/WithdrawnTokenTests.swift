// A token that is withdrawn while its requests are under way.

import BrokerTesting
import NetworkTesting
import Testing
import UploadServer

@Suite("Withdrawn tokens of servers with a log")
struct WithdrawnTokenTests {
  /// A server that admits `alpha`, as long as its token is in the file.
  private final class Rig {
    static let alpha = "Authorization: Bearer alpha"
    let broker: TestBroker
    let server: LogServer
    private let directory: TemporaryDirectory

    init() throws {
      (broker, directory) = (try TestBroker(), try TemporaryDirectory())
      // The SHA-256 of "alpha", computed by sha256sum.
      let tokens = try directory.write("tokens", "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n")
      server = try LogServer(broker) { $0.tokenFile = tokens }
    }

    /// Returns when the server has read the changed file.
    func withdraw() throws {
      try directory.write("tokens", "# nobody\n")
      try waitUntil("the token is withdrawn") { try !admitsAlpha() }
    }

    func restore() throws {
      try directory.write("tokens", "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8\n")
      try waitUntil("the token is valid again") { try admitsAlpha() }
    }

    private func admitsAlpha() throws -> Bool {
      let client = try server.connect()
      try client.request("GET", "/", version: nil, [Self.alpha])
      return try client.final().answer.status != 401
    }
  }

  private enum Kind { case creation, append, plain }

  /// A request whose token is withdrawn while its bytes arrive.
  private struct Sending {
    let client: RawClient
    let kind: Kind
    let isChunked: Bool
    /// The upload resource. A plain request has none.
    let location: String?
    let streamID: String

    func send(_ text: String) throws { try isChunked ? client.sendChunk(text) : client.send(text) }
  }

  private func begin(_ kind: Kind, completes: Bool, isChunked: Bool, id: String, _ rig: Rig) throws -> Sending {
    let lines = [Rig.alpha] + (isChunked ? [] : ["Content-Length: 1000000"])
    let client = try rig.server.connect()
    var location: String?
    switch kind {
    case .creation:
      let completeness = "Upload-Complete: ?\(completes ? 1 : 0)"
      try client.request("POST", "/t.txt", lines + ["Stream-ID: \(id)", completeness], chunked: isChunked)
      location = try #require(try client.answer()["location"])
    case .append:
      let created = try rig.server.create("", ["Stream-ID: \(id)", Rig.alpha])
      try client.patch(created, at: 0, completes: completes, lines, chunked: isChunked)
      location = created
    case .plain:
      let more = ["Stream-ID: \(id)", "Expect: 100-continue"]
      try client.request("PUT", "/t.txt", version: nil, lines + more, chunked: isChunked)
      #expect(try client.answer().status == 100)
    }
    let sending = Sending(client: client, kind: kind, isChunked: isChunked, location: location, streamID: id)
    try sending.send("abc")
    if kind != .plain { try client.awaitProgress(3) }
    return sending
  }

  /// Sends until the server has checked the token again.
  private func refusal(of sending: Sending) throws -> RawClient.Answer {
    try sending.client.final { try sending.send("abc") }
  }

  @Test("soon after its token is withdrawn, no request stores bytes, and its upload can be continued with the token")
  func meanwhile() throws {
    let rig = try Rig()
    var sendings: [Sending] = []
    for (kind, completes) in [(Kind.creation, true), (.creation, false), (.append, true), (.append, false)] {
      for isChunked in [true, false] {
        let id = "s\(sendings.count)"
        sendings.append(try begin(kind, completes: completes, isChunked: isChunked, id: id, rig))
      }
    }
    sendings.append(try begin(.plain, completes: true, isChunked: true, id: "plain", rig))
    try rig.withdraw()
    var offsets: [Int] = []
    for sending in sendings {
      let answer = try refusal(of: sending)
      #expect(answer.status == 401, "\(sending.streamID): \(answer)")
      let field = sending.kind == .plain ? "stream-offset" : "upload-offset"
      let offset = try #require(answer[field].flatMap { Int($0) })
      if let location = sending.location { #expect(try rig.broker.bytes(of: location).count == offset) }
      offsets.append(offset)
    }
    try rig.restore()
    for (sending, offset) in zip(sendings, offsets) {
      let client = try rig.server.connect()
      if let location = sending.location {
        try client.patch(location, at: offset, [Rig.alpha], body: "def")
        let answer = try client.final().answer
        #expect(answer.status == 204 && answer["upload-offset"] == "\(offset + 3)", "\(sending.streamID): \(answer)")
      } else {
        let lines = ["Stream-ID: \(sending.streamID)", "Stream-Offset: \(offset)", Rig.alpha]
        try client.request("PUT", "/t.txt", version: nil, lines, body: "def")
        let answer = try client.final().answer
        #expect(answer.status < 300 && answer["stream-offset"] == "\(offset + 3)", "\(answer)")
      }
    }
  }

  @Test("a request is not acknowledged if its token is withdrawn before its end", arguments: [true, false])
  func end(completes: Bool) throws {
    let rig = try Rig()
    let sending = try begin(.append, completes: completes, isChunked: true, id: "a", rig)
    try rig.withdraw()
    try sending.client.send("0\r\n\r\n")
    let answer = try sending.client.final().answer
    #expect(answer.status == 401 && answer["upload-offset"] == "3", "\(answer)")
    try rig.restore()
    let client = try rig.server.connect()
    try client.patch(try #require(sending.location), at: 3, completes: true, [Rig.alpha], body: "")
    #expect(try client.final().answer.status == 201)
  }
}
