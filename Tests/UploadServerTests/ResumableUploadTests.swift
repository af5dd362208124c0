import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Resumable uploads", .serialized)
struct ResumableUploadTests {
  @Test("the event of an interrupted request has its number of bytes, and the offset of the upload", arguments: Bed.all)
  func interruptedBytes(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let location = try test.create()
    var offset = 0
    for (index, text) in ["ab", "cde", "f"].enumerated() {
      let client = try test.connect()
      try client.patch(location, at: offset, chunked: true)
      try client.sendChunk(text)
      offset += text.utf8.count
      try client.awaitProgress(offset)
      client.reset()
      let event = try test.events.wait(.interrupted, count: index + 1)
      #expect(event.bytes == UInt64(text.utf8.count) && event.offset == UInt64(offset))
    }
  }

  @Test(
    "an upload in parts is one stream: created once, continued without further events, ended once (draft, section Upload Append)",
    arguments: Bed.all
  )
  func parts(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let client = try test.connect()
    try client.request("POST", "/rooms/a.txt", ["Upload-Complete: ?0", "Stream-ID: s1"], body: "")
    let created = try client.final()
    #expect(created.answer.status == 201 && created.answer["upload-complete"] == "?0")
    #expect(created.answer["upload-offset"] == "0" && created.answer["stream-id"] == "s1")
    let location = try #require(created.answer["location"])
    // An empty creation takes nothing over and makes no file.
    if storage == .directory { #expect(test.directory.names == [".uploads"]) }
    for (offset, text) in [(0, "one "), (4, "two "), (8, "three")] {
      try client.patch(location, at: offset, body: text)
      let appended = try client.final()
      // "a 2xx (Successful) response with the Upload-Complete header field set to false"
      #expect(appended.answer.status == 204 && appended.answer["upload-complete"] == "?0")
      #expect(appended.answer["upload-offset"] == "\(offset + text.utf8.count)")
      #expect(appended.answer["content-length"] == nil)
      #expect(try bed.stored("s1").hasSuffix(text))
    }
    try client.patch(location, at: 13, completes: true, body: "")
    let ended = try client.final().answer
    #expect(ended.status == 201 && ended["upload-complete"] == "?1")
    if storage == .directory {
      #expect(ended.body == "{\"event\":\"stored\",\"name\":\"a-s1.txt\",\"bytes\":13,\"missing\":0}\n")
      #expect(test.directory.exists("a-s1.txt"))
    }
    #expect(try bed.stored("s1") == "one two three")
    #expect(test.events.all.map(\.kind) == [.begun, .ended])
  }

  @Test(
    "a 104 with Location and limits announces a creation, and all its responses repeat them (draft, section Upload Creation)",
    arguments: Bed.all
  )
  func announced(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server { $0.uploads.maximumSize = 1000 }
    let client = try test.connect()
    try client.request("POST", "/a", ["Upload-Complete: ?0"], body: "abc")
    let (answer, interim) = try client.final()
    let first = try #require(interim.first)
    #expect(first.status == 104 && first["upload-draft-interop-version"] == "8")
    #expect(
      first["upload-limit"]?.hasPrefix("max-size=1000") == true && first["upload-limit"] == answer["upload-limit"])
    if storage == .directory { #expect(first["upload-limit"] == "max-size=1000, max-age=3600") }
    let location = try #require(first["location"])
    #expect(location == answer["location"] && answer.status == 201)
    #expect(Set(interim.compactMap { $0["location"] }) == [location])
    // 128 random bits that reveal nothing about the server (section "Security Considerations").
    #expect(location.hasPrefix("/.uploads/") && location.dropFirst(10).utf8.count == 32)
  }

  @Test("each upload has its own URL (draft, section Upload Resource)", arguments: Bed.all)
  func unique(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    #expect(Set(try (0..<20).map { _ in try test.create() }).count == 20)
  }

  @Test(
    "an upload that is interrupted in its creation continues at its offset, and its response is the target's (draft, sections Upload Creation, Offset Retrieval, Upload Append)",
    arguments: Bed.all
  )
  func interrupted(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let first = try test.connect()
    try first.request("POST", "/b.txt", ["Upload-Complete: ?1", "Content-Length: 11", "Stream-ID: a"])
    let location = try #require(try first.answer()["location"])
    try first.send("hello")
    try first.awaitProgress(5)
    first.reset()
    #expect(try test.events.wait(.interrupted).offset == 5)

    let second = try test.connect()
    let standing = try second.head(location)
    #expect(standing.status == 204 && standing["upload-offset"] == "5" && standing["upload-complete"] == "?0")
    #expect(standing["upload-length"] == "11")
    if storage == .directory { #expect(standing["upload-limit"] == "max-age=86400") }
    #expect(standing["cache-control"] == "no-store")
    try second.request("GET", location)
    #expect(try second.final().answer["upload-offset"] == "5")
    try second.patch(location, at: 5, completes: true, body: " world")
    let (answer, interim) = try second.final()
    #expect(answer.status == 201 && answer["upload-complete"] == "?1")
    #expect(interim.allSatisfy { $0.status == 104 && $0["location"] == nil })
    #expect(interim.first?["upload-offset"] == "5")
    #expect(try bed.stored("a") == "hello world")
    #expect(test.events.all.map(\.kind) == [.begun, .interrupted, .continued, .ended])
  }

  @Test("100 Continue is sent as well as 104 (draft, section Status Code 104)", arguments: Bed.all)
  func continues(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let client = try test.connect()
    try client.request("POST", "/a", ["Upload-Complete: ?1", "Expect: 100-continue"], chunked: true)
    let statuses = [try client.answer().status, try client.answer().status]
    #expect(statuses == [104, 100])
    try client.send("0\r\n\r\n")
    #expect(try client.final().answer.status == 201)
    let location = try test.create()
    try client.patch(location, at: 0, ["Expect: 100-continue"], chunked: true)
    #expect(Set([try client.answer().status, try client.answer().status]) == [104, 100])
  }

  @Test(
    "the response to a wrong offset has the right one, and the running request continues (draft, sections Upload Append, Concurrency)",
    arguments: Bed.all
  )
  func mismatch(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let location = try test.create()
    let current = try test.connect()
    try current.patch(location, at: 0, chunked: true)
    try current.sendChunk("abc")
    try current.awaitProgress(3)
    let stale = try test.connect()
    try stale.patch(location, at: 1, chunked: true)
    let refused = try stale.final().answer
    #expect(refused.status == 409 && refused["upload-offset"] == "3" && refused["upload-complete"] == "?0")
    #expect(refused["content-type"] == "application/problem+json")
    #expect(refused.body.contains("\"expected-offset\":3,\"provided-offset\":1"))
    try current.sendChunk("def")
    try current.send("0\r\n\r\n")
    #expect(try current.final().answer["upload-offset"] == "6")
  }

  @Test(
    "HEAD ends the running append, counts all bytes that TCP had acknowledged, and reports the right offset (draft, section Concurrency)"
  )
  func headTakesOver() throws {
    let test = try TestServer()
    let location = try test.create()
    for round in 0..<20 {
      let start = round * 50_000
      let older = try test.connect()
      try older.patch(location, at: start, chunked: true)
      // The append is accepted once the server reports its progress.
      try older.awaitProgress(start)
      try older.sendChunk([UInt8](repeating: UInt8(round), count: 50_000))
      try waitUntil("all has arrived") { older.unacknowledged == 0 }
      let newer = try test.connect()
      let offset = try newer.head(location)["upload-offset"].flatMap { Int($0) }
      #expect(offset == start + 50_000)
      #expect(older.isCutOff())
    }
  }

  @Test("HEAD ends a stalled append at once, at any server of the log", arguments: Bed.all)
  func headEndsStalled(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let location = try test.create()
    let older = try test.connect()
    try older.patch(location, at: 0, chunked: true)
    try older.sendChunk("abc")
    try older.awaitProgress(3)
    let newer = try (storage == .log ? bed.server() : test).connect()
    #expect(try newer.head(location)["upload-offset"] == "3")
    #expect(older.isCutOff())
    try newer.patch(location, at: 3, completes: true, body: "def")
    #expect(try newer.final().answer.status == 201)
  }

  @Test(
    "an append at the right offset replaces a stalled append at once (draft, section Concurrency)", arguments: Bed.all)
  func appendTakesOver(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    let older = try test.connect()
    try older.patch(location, at: 0, chunked: true)
    try older.sendChunk("abc")
    try older.awaitProgress(3)
    let newer = try (storage == .log ? bed.server() : test).connect()
    try newer.patch(location, at: 3, completes: true, body: "def")
    #expect(try newer.final().answer.status == 201)
    #expect(older.isCutOff())
    #expect(try bed.stored("a") == "abcdef")
  }

  @Test(
    "DELETE ends the running append, and removes everything that the upload created (draft, section Upload Cancellation)",
    arguments: Bed.all
  )
  func cancelled(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    let older = try test.connect()
    try older.patch(location, at: 0, chunked: true)
    try older.sendChunk("abc")
    try older.awaitProgress(3)
    let client = try test.connect()
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 204)
    #expect(older.isCutOff())
    #expect(try bed.stored("a") == "")
    if storage == .directory { #expect(test.directory.names == [".uploads"]) }
    #expect(try test.events.wait(.cancelled).offset == 3)
    #expect(try client.head(location).status == 410)
    try client.patch(location, at: 3, body: "")
    #expect(try client.final().answer.status == 410)
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 410)
    #expect(try bed.server().connect().head(location).status == 410)
  }

  @Test("cancelling an upload keeps a stream that began before it")
  func cancelledContinuation() throws {
    let test = try TestServer()
    let plain = try test.connect()
    try plain.send(TestServer.head() + "3\r\nabc\r\n")
    _ = try test.events.wait(.begun)
    plain.disconnect()
    _ = try test.events.wait(.interrupted)
    let location = try test.create("/t", ["Stream-ID: a", "Stream-Offset: 3", "Content-Type: text/plain"])
    let client = try test.connect()
    try client.patch(location, at: 0, body: "def")
    #expect(try client.final().answer["upload-offset"] == "3")
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 204)
    #expect(try test.directory.text("t-a.part") == "abcdef")
  }

  @Test("uploads of one stream are joined: stored bytes are compared, not stored twice, and the rest follows")
  func joined() throws {
    let test = try TestServer()
    let lines = ["Stream-ID: j", "Content-Type: text/plain"]
    let client = try test.connect()
    let first = try test.create("/t", lines)
    try client.patch(first, at: 0, body: "hello")
    _ = try client.final()
    // The client has lost its upload, and continues at the oldest byte that it still has.
    let second = try test.create("/t", lines + ["Stream-Offset: 3"])
    try client.patch(second, at: 0, body: "lo wor")
    #expect(try client.final().answer["upload-offset"] == "6")
    // The first upload counts these bytes too, because a byte of a stream is the same from every client.
    #expect(try client.head(first)["upload-offset"] == "9")
    try client.patch(first, at: 9, completes: true, body: "ld")
    #expect(try client.final().answer.status == 201)
    #expect(try test.directory.text("t-j.txt") == "hello world")
    let contradiction = try test.create("/t", ["Stream-ID: k", "Content-Type: text/plain"])
    try client.patch(contradiction, at: 0, body: "hello")
    _ = try client.final()
    let other = try test.create("/t", ["Stream-ID: k", "Content-Type: text/plain"])
    try client.patch(other, at: 0, body: "HELLO")
    let refused = try client.final().answer
    #expect(refused.status == 409 && refused["upload-complete"] == nil)
    #expect(try test.connect().head(other).status == 410)
    #expect(try test.directory.text("t-k.part") == "hello")
  }

  @Test(
    "a client that completes again receives a lost final response, even from a restarted server (draft, section Upload Append)"
  )
  func replayed() throws {
    let test = try TestServer()
    let location = try test.create()
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, body: "abc")
    let answer = try client.final().answer
    func check(_ client: RawClient) throws {
      let standing = try client.head(location)
      #expect(standing["upload-complete"] == "?1" && standing["upload-offset"] == "3")
      try client.patch(location, at: 3, completes: true, body: "")
      let again = try client.final().answer
      #expect(again.status == answer.status && again.body == answer.body && again["upload-complete"] == "?1")
      try client.patch(location, at: 3, completes: true, chunked: true)
      try client.send("0\r\n\r\n")
      let unsized = try client.final().answer
      #expect(unsized.status == answer.status && unsized.body == answer.body && unsized["upload-complete"] == "?1")
      try client.patch(location, at: 3, body: "")
      let refused = try client.final().answer
      #expect(refused.status == 409 && refused["upload-complete"] == "?0")
      try client.patch(location, at: 3, completes: true, chunked: true)
      try client.sendChunk("d")
      let surplus = try client.final().answer
      #expect(surplus.status == 409 && surplus["upload-offset"] == "3")
    }
    try check(client)
    test.stop()
    let next = try TestServer(in: test.directory)
    try check(try next.connect())
    #expect(next.events.all.map(\.kind) == [.refused, .refused])
  }

  @Test("a restarted server continues with the same offset and the same limits (draft, sections Offset, Limits)")
  func restarted() throws {
    let directory = TemporaryDirectory()
    var location = ""
    for round in 0..<4 {
      let test = try TestServer(in: directory) { $0.uploads.maximumSize = round == 0 ? 100 : 5 }
      if round == 0 { location = try test.create("/r.txt", ["Upload-Length: 20"]) }
      let client = try test.connect()
      let standing = try client.head(location)
      #expect(standing["upload-offset"] == "\(round * 5)" && standing["upload-length"] == "20")
      #expect(standing["upload-limit"]?.hasPrefix("max-size=100,") == true)
      try client.patch(location, at: round * 5, completes: round == 3, chunked: true)
      try client.sendChunk("part\(round)")
      try client.awaitProgress(round * 5 + 5)
      if round == 3 {
        try client.send("0\r\n\r\n")
        // The upload created the file, although on an earlier server.
        #expect(try client.final().answer.status == 201)
      }
      client.disconnect()
      test.stop()
    }
    let test = try TestServer(in: directory)
    #expect(try directory.text(test.onlyFile) == "part0part1part2part3")
  }

  @Test("if acknowledged bytes are gone, the server ends the upload and reports it (draft, section Offset)")
  func lost() throws {
    let directory = TemporaryDirectory()
    var location = ""
    do {
      let test = try TestServer(in: directory)
      location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, body: "hello")
      _ = try client.final()
      test.stop()
      truncate(directory.path + "/" + test.onlyFile, 3)
    }
    do {
      let test = try TestServer(in: directory)
      #expect(try test.connect().head(location).status == 410)
      test.stop()
      unlink(directory.path + "/" + test.onlyFile)
    }
    let test = try TestServer(in: directory)
    #expect(try test.connect().head(location).status == 410)
  }

  @Test("a server that stops sends an append its offset, and the next server continues there", arguments: Bed.all)
  func stops(_ storage: Bed.Storage) throws {
    let bed = try Bed(storage)
    let test = try bed.server()
    let location = try test.create()
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("hello")
    try client.awaitProgress(5)
    test.server.shutdown(grace: .zero)
    let told = try client.final().answer
    #expect(told.status == 503 && told["upload-offset"] == "5" && told["upload-complete"] == "?0")
    #expect(told["retry-after"] == "2")
    client.disconnect()
    test.server.waitUntilEnded()
    #expect(try bed.server().connect().head(location)["upload-offset"] == "5")
  }

  @Test("OPTIONS returns the limits of a target, and of the whole server (draft, section Limits)")
  func discovered() throws {
    let test = try TestServer { $0.uploads.maximumAppendSize = 5000 }
    let client = try test.connect()
    for target in ["/anything", "*"] {
      try client.request("OPTIONS", target, target == "*" ? ["Upload-Complete: ?0"] : [])
      let answer = try client.final().answer
      #expect(answer.status == 204 && answer["upload-limit"] == "max-append-size=5000, max-age=3600")
      #expect(answer["allow"] == "GET, HEAD, POST, PUT, OPTIONS")
    }
    let location = try test.create()
    try client.request("OPTIONS", location)
    let answer = try client.final().answer
    #expect(answer["allow"] == "HEAD, GET, PATCH, DELETE, OPTIONS" && answer["upload-limit"] == nil)
  }

  @Test("an unknown upload is 404, and an upload supports no other methods", arguments: Bed.all)
  func unknown(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let client = try test.connect()
    for target in ["/.uploads/0123456789abcdef0123456789abcdef", "/.uploads/", "/.uploads/../x"] {
      #expect(try client.head(target).status == 404)
    }
    try client.request("POST", try test.create(), body: "")
    let answer = try client.final().answer
    #expect(answer.status == 405 && answer["allow"] == "HEAD, GET, PATCH, DELETE, OPTIONS")
  }

  @Test(
    "content beyond the announced length ends the upload permanently (draft, section Upload Append)", arguments: Bed.all
  )
  func tooLong(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server()
    let location = try test.create("/t.txt", ["Upload-Length: 4"])
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("abc")
    try client.awaitProgress(3)
    try client.sendChunk("def")
    let answer = try client.final().answer
    #expect(answer.status == 400 && answer.body.contains("#inconsistent-upload-length"))
    #expect(try test.connect().head(location).status == 410)
  }

  @Test("metadata of a creation can only name files in the directory (draft, section Security Considerations)")
  func sanitized() throws {
    let test = try TestServer()
    let location = try test.create("/%2e%2e/%2e%2e/etc/pass%0awd", ["Stream-ID: x"])
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, body: "x")
    #expect(try client.final().answer.status == 201)
    #expect(test.directory.names == [".uploads", "pass_wd-x.bin"])
    try client.request("POST", "/a", ["Upload-Complete: ?0", "Stream-ID: ../x"], body: "")
    #expect(try client.final().answer.status == 400)
  }

  @Test("an idle upload uses no descriptor, and continues normally", arguments: [true, false])
  func parked(_ isKept: Bool) throws {
    let log = WrappedHandlerTests.Log()
    let test = try TestServer {
      $0.uploads.parkDelay = .milliseconds(1)
      if !isKept { $0.handler = { WrappedHandlerTests.Echo($0, log) { _ in nil } } }
    }
    /// Whether this server has a file open besides its directories and its lock.
    func holdsFile() -> Bool {
      guard let paths = try? openPaths() else { return true }
      return paths.contains { path in
        path.hasPrefix(test.directory.path) && (path.hasSuffix(".part") || path.hasSuffix(".body"))
      }
    }
    let location = try test.create()
    for round in 0..<3 {
      let client = try test.connect()
      #expect(try client.head(location)["upload-offset"] == "\(round * 3)")
      try client.patch(location, at: round * 3, body: "abc")
      #expect(try client.final().answer.status == 204)
      try waitUntil("the file is closed") { !holdsFile() }
    }
    let client = try test.connect()
    try client.patch(location, at: 9, completes: true, body: "")
    #expect(try client.final().answer["upload-complete"] == "?1")
    if isKept {
      #expect(try test.directory.text(test.onlyFile) == "abcabcabc")
      #expect(test.events.all.map(\.kind) == [.begun, .ended])
    } else {
      #expect(log.all.count == 2 && log.all.last == "end abcabcabc")
    }
  }

  @Test("a Location begins with the front end's prefix", arguments: Bed.all)
  func publicURL(_ storage: Bed.Storage) throws {
    let test = try Bed(storage).server { $0.uploads.publicURL = "https://example.com/in" }
    #expect(try test.create().hasPrefix("https://example.com/in/.uploads/"))
  }
}
