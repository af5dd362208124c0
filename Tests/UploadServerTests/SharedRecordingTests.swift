// Tests several uploads of one stream: the end of one removes no byte that was acknowledged to another client.

import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Recordings that several uploads share")
struct SharedRecordingTests {
  /// How the upload that joined last ends.
  enum End: String, CaseIterable, CustomStringConvertible {
    case cancelled, expired, interrupted, completedWrongly
    var description: String { rawValue }
  }

  /// The state of the first upload when the second joins.
  enum First: String, CaseIterable, CustomStringConvertible {
    case atRest, appending
    var description: String { rawValue }
  }

  @Test(
    "an upload keeps its bytes for any end of another upload of its stream", arguments: End.allCases, First.allCases)
  func kept(_ end: End, _ first: First) throws {
    for (isFirstLive, restarts) in [(true, false), (false, false), (true, true), (false, true)] {
      try judge(end, first, isFirstLive: isFirstLive, restarts: restarts)
    }
  }

  private func judge(_ end: End, _ first: First, isFirstLive: Bool, restarts: Bool) throws {
    let context: Comment = "\(end), the first \(first), live \(isFirstLive), restarts \(restarts)"
    // The first upload does not expire in this test. An upload that expires is of the other kind.
    let isSecondLive = end == .expired ? !isFirstLive : isFirstLive
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        let (short, long) = (Duration.milliseconds(300), Duration.seconds(3600))
        $0.finishAfter = end == .expired && isSecondLive ? short : long
        $0.uploads.maximumAge = end == .expired && !isSecondLive ? short : long
      }
    }
    func length(_ isLive: Bool, _ count: Int) -> [String] { isLive ? [] : ["Upload-Length: \(count)"] }
    var test = try server()
    let one = try test.create("/t.txt", ["Stream-ID: a"] + length(isFirstLive, 10))
    let client = try test.connect()
    try client.patch(one, at: 0, chunked: true)
    try client.sendChunk("01234")
    try client.awaitProgress(5)
    if first == .atRest {
      try client.send("0\r\n\r\n")
      _ = try client.final()
    }
    var fields = ["Stream-ID: a", "Stream-Offset: 5"]
    if end == .completedWrongly { fields.append("Repr-Digest: sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:") }
    let two = try test.create("/t.txt", fields + length(isSecondLive, 2))
    if end != .interrupted { try test.append(two, at: 0, "5") }
    if restarts {
      test.stop()
      test = try server()
    }
    switch end {
    case .cancelled:
      let other = try test.connect()
      try other.request("DELETE", two)
      #expect(try other.final().answer.status == 204, context)
    case .expired:
      // An upload of another stream, of the same kind and last used at the same time as the second.
      let clock = try test.create("/c.txt", ["Stream-ID: c"] + length(isSecondLive, 2))
      try test.append(clock, at: 0, "5")
      _ = try test.events.wait(isSecondLive ? .closed : .expired)
    case .interrupted:
      try test.plain("/t.txt", id: "a", offset: 5, Array("5".utf8))
    case .completedWrongly:
      let other = try test.connect()
      try other.patch(two, at: 1, completes: true, body: "6")
      #expect(try other.final().answer.status == 400, context)
    }
    let now = try test.connect().head(one)
    let offset = now["upload-offset"].flatMap { Int($0) } ?? -1
    #expect(now.status == 204 && offset >= 5, "\(context): \(now)")
    guard offset >= 5 else { return }
    #expect(try test.directory.text("t-a.part").hasPrefix("01234"), context)
    try test.append(one, at: offset, completes: true, Array("0123456789".utf8.dropFirst(offset)))
    #expect(try test.directory.text("t-a.txt").hasPrefix("01234"), context)
    #expect(!test.events.all.contains { $0.kind == .closed && $0.stream == "a" }, context)
  }

  /// How far an upload has come that has no byte.
  enum Beginning: String, CaseIterable, CustomStringConvertible {
    case created, createdChunked, appendedChunked, cutAppend
    var description: String { rawValue }
  }

  /// What another request of the same stream does.
  enum Other: String, CaseIterable, CustomStringConvertible {
    case plainCut, plainCutAfterBytes, uploadCancelled, uploadCut
    var description: String { rawValue }
  }

  @Test(
    "an upload without a byte can be continued or cancelled after any other request of its stream",
    arguments: Beginning.allCases, Other.allCases)
  func withoutByte(_ beginning: Beginning, _ other: Other) throws {
    for isCancelled in [false, true] { try judge(beginning, other, isCancelled: isCancelled) }
  }

  @Test(
    "an upload without a byte survives a restart after any other request of its stream",
    arguments: Durability.allCases, Other.allCases)
  func restartedWithoutByte(_ durability: Durability, _ other: Other) throws {
    for beginning in Beginning.allCases {
      for hasAppended in [false, true] {
        let context: Comment = "\(beginning), has appended: \(hasAppended)"
        let directory = TemporaryDirectory()
        func server() throws -> TestServer { try TestServer(in: directory) { $0.durability = durability } }
        var test = try server()
        let upload = try begin(beginning, test)
        try perform(other, test)
        if hasAppended {
          let offset = try #require(try offset(upload, test), context)
          try test.append(upload, at: offset, Array("0123".utf8.dropFirst(offset)))
        }
        test.stop()
        test = try server()
        // The record of an upload that has got no byte may be older than its last announcement.
        guard let offset = try offset(upload, test) else {
          #expect(!hasAppended, context)
          continue
        }
        #expect(!hasAppended || offset >= 4, context)
        try test.append(upload, at: offset, completes: true, Array("01234".utf8.dropFirst(offset)))
        #expect(try test.directory.text("t-a.txt") == "01234", context)
      }
    }
  }

  /// Where it may be continued; nil if nowhere.
  private func offset(_ upload: String, _ test: TestServer) throws -> Int? {
    let now = try test.connect().head(upload)
    #expect(now.status == 204 || now.status == 410, "\(now)")
    return now["upload-offset"].flatMap { Int($0) }
  }

  private func begin(_ beginning: Beginning, _ test: TestServer) throws -> String {
    let client = try test.connect()
    let upload: String
    if beginning == .createdChunked {
      try client.request("POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a"], chunked: true)
      try client.send("0\r\n\r\n")
      upload = try #require(try client.final().answer["location"])
    } else {
      upload = try test.create("/t.txt", ["Stream-ID: a"])
    }
    if beginning == .appendedChunked || beginning == .cutAppend {
      try client.patch(upload, at: 0, chunked: true)
      if beginning == .appendedChunked {
        try client.send("0\r\n\r\n")
        #expect(try client.final().answer["upload-offset"] == "0")
      } else {
        try client.awaitProgress(0)
        client.disconnect()
        _ = try test.events.wait(.interrupted)
      }
    }
    return upload
  }

  private func judge(_ beginning: Beginning, _ other: Other, isCancelled: Bool) throws {
    let test = try TestServer()
    let upload = try begin(beginning, test)
    try perform(other, test)
    if isCancelled {
      #expect(try test.connect().head(upload)["upload-offset"] != nil)
      let last = try test.connect()
      try last.request("DELETE", upload)
      #expect(try last.final().answer.status == 204)
      guard other == .plainCut || other == .uploadCancelled else { return }
      // No upload is left that may bring the bytes before this offset.
      let after = try test.connect()
      try after.send(TestServer.head("/t.txt", offset: 100, framing: "Content-Length: 0"))
      #expect(try after.final().answer.status != 409)
      return
    }
    let now = try test.connect().head(upload)
    let offset = try #require(now["upload-offset"].flatMap { Int($0) }, "\(now)")
    #expect(now.status == 204, "\(now)")
    try test.append(upload, at: offset, completes: true, Array("01234".utf8.dropFirst(offset)))
    #expect(try test.directory.text("t-a.txt") == "01234")
  }

  private func perform(_ other: Other, _ test: TestServer) throws {
    let client = try test.connect()
    switch other {
    case .plainCut, .plainCutAfterBytes:
      let interruptions = test.events.all.filter { $0.kind == .interrupted }.count
      try client.request("PUT", "/t.txt", version: nil, ["Stream-ID: a", "Expect: 100-continue"], chunked: true)
      #expect(try client.answer().status == 100)
      if other == .plainCutAfterBytes { try client.sendChunk("012") }
      client.disconnect()
      _ = try test.events.wait(.interrupted, count: interruptions + 1)
    case .uploadCancelled, .uploadCut:
      let second = try test.create("/t.txt", ["Stream-ID: a"])
      try client.patch(second, at: 0, chunked: true)
      client.disconnect()
      let last = try test.connect()
      try last.request(other == .uploadCut ? "HEAD" : "DELETE", second)
      #expect(try last.final().answer.status == 204)
    }
  }

  @Test("the last upload of a stream removes its file, whichever it is", arguments: [false, true])
  func last(_ restarts: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    let one = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 10"])
    try test.append(one, at: 0, "01234")
    let two = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 5", "Upload-Length: 10"])
    try test.append(two, at: 0, "56")
    for upload in [two, one] {
      if restarts {
        test.stop()
        test = try TestServer(in: directory)
      }
      #expect(test.directory.exists("t-a.part"))
      let client = try test.connect()
      try client.request("DELETE", upload)
      #expect(try client.final().answer.status == 204)
    }
    #expect(test.directory.names.filter { !$0.hasPrefix(".") } == [])
  }

  @Test(
    "an upload whose stream is longer than its length keeps its bytes when another upload of its client is discarded",
    arguments: [End.cancelled, .completedWrongly], [false, true])
  func outgrown(_ end: End, restarts: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    let one = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 10"])
    try test.append(one, at: 0, "01234")
    var fields = ["Stream-ID: a", "Stream-Offset: 5", "Upload-Length: 10"]
    if end == .completedWrongly { fields.append("Repr-Digest: sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:") }
    let two = try test.create("/t.txt", fields)
    try test.append(two, at: 0, "56789abc")
    if restarts {
      test.stop()
      test = try TestServer(in: directory)
    }
    let client = try test.connect()
    if end == .cancelled {
      try client.request("DELETE", two)
      #expect(try client.final().answer.status == 204)
    } else {
      try client.patch(two, at: 8, completes: true, body: "de")
      #expect(try client.final().answer.status == 400)
    }
    // This waits for a removal.
    let now = try test.connect().head(one)
    #expect(now.status == 410, "\(now)")
    #expect(try directory.text("t-a.part").hasPrefix("01234"))
  }

  @Test("the last upload of a stream removes its file, even if the stream is longer than the upload's length")
  func lastOutgrown() throws {
    let test = try TestServer()
    let one = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 10"])
    try test.append(one, at: 0, "01234")
    let two = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 5", "Upload-Length: 10"])
    try test.append(two, at: 0, "56789abc")
    for upload in [two, one] {
      #expect(try test.directory.text("t-a.part") == "0123456789abc")
      let client = try test.connect()
      try client.request("DELETE", upload)
      #expect(try client.final().answer.status == 204)
    }
    #expect(test.directory.names.filter { !$0.hasPrefix(".") } == [])
  }

  @Test("a recording whose bytes two addresses have sent stays while one of their uploads is unfinished")
  func addresses() throws {
    let path = TemporaryDirectory()
    let test = try TestServer { $0.listen.append(.unix(path: path.path + "/socket")) }
    let one = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(one, at: 0, "01234")
    let other = try RawClient(test.server.localAddresses[1])
    try other.request("POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: 5"], body: "5")
    let created = try other.final().answer
    let location = try #require(created["location"])
    try other.request("DELETE", location)
    #expect(try other.final().answer.status == 204)
    #expect(try test.connect().head(one)["upload-offset"] == "6")
    #expect(test.directory.exists("t-a.part"))
  }
}
