// Tests live streams whose client does not return: their recording is closed and kept.

import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Recordings of silent live streams")
struct ClosedRecordingTests: ClosedRecordingSuite {
  private static let interruptedAtThree = "{\"offset\":3,\"length\":0,\"cause\":\"interrupted\"}\n"

  @Test("an upload without an announced length is closed under its final name, as its .gaps and the log record")
  func upload() throws {
    // A busy machine may let the upload expire before it has bytes.
    for age in [.milliseconds(100), .seconds(2)] as [Duration] {
      do { return try checkClosing(ofAge: age) } catch is TestFailure {}
    }
    try checkClosing(ofAge: .seconds(10))
  }

  private func checkClosing(ofAge age: Duration) throws {
    let test = try server(finishAfter: age * 3) { $0.uploads.maximumAge = age }
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(location, at: 0, "abc")
    let closed = try test.events.wait(.closed)
    #expect(closed.file == "t-a.txt" && closed.stream == "a" && closed.offset == 3 && closed.bytes == 3)
    #expect(closed.reason?.contains("interrupted") == true)
    #expect(try test.directory.text("t-a.txt") == "abc")
    #expect(try test.directory.text("t-a.gaps") == Self.interruptedAtThree)
    #expect(!test.directory.exists("t-a.part"))
    let client = try test.connect()
    #expect(try client.head(location).status == 410)
    try client.patch(location, at: 3, body: "def")
    #expect(try client.final().answer.status == 410)
    for version in 3...8 {
      let client = try test.connect()
      try client.request("HEAD", location, version: version, [])
      #expect(try client.final(withBody: false).answer.status == (version < 7 ? 404 : 410), "version \(version)")
    }
    #expect(!test.events.all.contains { $0.kind == .expired })
  }

  @Test("a plain stream whose connection was lost is closed likewise, and one that ended later is not")
  func plain() throws {
    let test = try server()
    try test.plain(id: "a", Array("abc".utf8))
    #expect(try test.events.wait(.closed).file == "t-a.txt")
    #expect(try test.directory.text("t-a.txt") == "abc")
    #expect(try test.directory.text("t-a.gaps") == Self.interruptedAtThree)

    try test.plain(id: "b", Array("abc".utf8))
    let client = try test.connect()
    try client.send(TestServer.head(id: "b", offset: 3))
    try client.sendChunk("def")
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 200)
    // The server closes another recording meanwhile, which shows that enough time has passed.
    try test.plain(id: "c", Array("x".utf8))
    _ = try test.events.wait(.closed, count: 2)
    #expect(test.directory.exists("t-c.txt"))
    #expect(!test.directory.exists("t-b.gaps"))
  }

  @Test("a stream without bytes leaves no file")
  func empty() throws {
    let test = try server()
    let begun = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 1000"])
    let client = try test.connect()
    try client.patch(begun, at: 0, chunked: true)
    try client.awaitProgress(0)
    try waitUntil("the upload has a file") { test.directory.exists("t-a.part") }
    client.reset()
    _ = try test.create("/t.txt", ["Stream-ID: b"])
    try test.plain(id: "c", offset: 1000, [])
    _ = try test.events.wait(.expired, count: 3)
    #expect(test.directory.names.filter { !$0.hasPrefix(".") } == [])
  }

  @Test("a plain request without a byte frees its name at once, however long recordings wait for their clients")
  func emptyAtOnce() throws {
    let test = try TestServer { $0.finishAfter = .seconds(3600) }
    try test.plain(id: "a", [])
    #expect(try test.events.wait(.expired).reason == "interrupted before its first byte")
    #expect(test.directory.names.filter { !$0.hasPrefix(".") } == [])
    try test.plain(id: "b", Array("b".utf8))
    #expect(test.directory.exists("t-b.part"))
  }

  @Test("a client that is silent and connected keeps its recording")
  func silent() throws {
    let test = try server()
    let live = try test.connect()
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    try live.patch(location, at: 0, chunked: true)
    try live.sendChunk("abc")
    try live.awaitProgress(3)
    let plain = try test.connect()
    try plain.send(TestServer.head(id: "b"))
    try plain.sendChunk("abc")
    // The time limit passes more than once.
    for round in 1...2 {
      try test.plain(id: "c\(round)", Array("x".utf8))
      _ = try test.events.wait(.closed, count: round)
    }
    try live.sendChunk("def")
    try live.send("0\r\n\r\n")
    #expect(try live.final().answer["upload-offset"] == "6")
    try plain.sendChunk("def")
    try plain.send("0\r\n\r\n")
    #expect(try plain.answer().status == 201)
    #expect(try test.directory.text("t-b.txt") == "abcdef")
  }

  @Test("a later deadline does not hide an earlier one")
  func earlierDeadline() throws {
    let test = try server { $0.uploads.maximumAge = .seconds(3600) }
    let long = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 6"])
    try test.append(long, at: 0, "abc")
    let live = try test.create("/t.txt", ["Stream-ID: b"])
    try test.append(live, at: 0, "abc")
    #expect(try test.events.wait(.closed).stream == "b")
    #expect(try test.connect().head(long)["upload-offset"] == "3")
  }

  @Test("a recording is not closed while its name is in use: it stays, and the server tries again")
  func nameTaken() throws {
    // A busy machine needs a moment for two requests and a file.
    let test = try server(finishAfter: .seconds(3))
    try test.directory.write("t-a.txt", [1])
    let location = try test.create("/t.txt", ["Stream-ID: b"])
    try test.append(location, at: 0, "abc")
    try test.directory.write("t-b.txt", [1])
    let warning = try test.events.wait(.warning)
    #expect(warning.reason?.contains("t-b.part") == true)
    #expect(try test.directory.text("t-b.part") == "abc" && test.directory.contents("t-b.txt") == [1])
    unlink(test.directory.path + "/t-b.txt")
    _ = try test.events.wait(.closed)
    #expect(try test.directory.text("t-b.txt") == "abc")
  }

  // MARK: Owners

  @Test(
    "an older upload that expires changes neither the file of a newer one nor a complete recording"
  )
  func older() throws {
    for isPlain in [true, false] {
      let test = try server(finishAfter: .seconds(60)) {
        // A busy machine needs a moment for two requests.
        $0.uploads.maximumAge = .seconds(2)
        // An upload that expires has closed its file by then.
        $0.uploads.parkDelay = .milliseconds(1)
      }
      var others = 0
      /// Waits until two other uploads have expired in succession, and checks that this one has expired too.
      func expires(_ location: String) throws {
        for _ in 0..<2 {
          _ = try test.create("/t.txt", ["Upload-Length: 1"])
          others += 1
          _ = try test.events.wait(.expired, count: others)
        }
        // The server forgets it after the same time again.
        #expect([410, 404].contains(try test.connect().head(location).status))
      }
      let older = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 100", "Stream-Offset: 5"])
      try test.append(older, at: 0, "abc")
      #expect(test.directory.exists("t-a.gaps"))
      // No request for the stream is in progress when the older upload expires.
      var newer = ""
      if isPlain {
        try test.plain(id: "a", offset: 8, Array("def".utf8))
      } else {
        newer = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 8"])
        try test.append(newer, at: 0, "def")
      }
      try expires(older)
      #expect(try test.directory.text("t-a.part") == "\0\0\0\0\0abcdef")
      if isPlain {
        try test.plain(id: "a", offset: 11, Array("ghi".utf8))
      } else {
        try test.append(newer, at: 3, "ghi")
      }
      #expect(try test.directory.text("t-a.part") == "\0\0\0\0\0abcdefghi")

      // Another upload expires after the stream is complete.
      let last = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 100", "Stream-Offset: 14"])
      try test.append(last, at: 0, "jkl")
      let client = try test.connect()
      try client.send(TestServer.head(id: "a", offset: 17))
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 200)
      try expires(last)
      #expect(try test.directory.text("t-a.txt") == "\0\0\0\0\0abcdefghijkl")
      #expect(test.directory.exists("t-a.gaps"))
    }
  }

  @Test("DELETE removes a live recording and its next parts, and never a closed one")
  func cancelled() throws {
    let test = try server()
    let first = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(first, at: 0, "abc")
    _ = try test.events.wait(.closed)
    let second = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
    try test.append(second, at: 0, "def")
    let client = try test.connect()
    try client.request("DELETE", second)
    #expect(try client.final().answer.status == 204)
    try waitUntil("the live recording is removed") {
      test.directory.names.filter { !$0.hasPrefix(".") } == ["t-a.gaps", "t-a.txt"]
    }
    // The stream continues in the part that was removed.
    let third = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
    try test.append(third, at: 0, completes: true, "DEF")
    #expect(try test.directory.text("t-a~2.txt") == "DEF")
  }

  @Test("a handler that stores nothing is informed, and the bytes stay, even after a restart")
  func wrapped() throws {
    let log = WrappedHandlerTests.Log()
    let directory = TemporaryDirectory()
    var body = ""
    var location = ""
    do {
      let test = try server(directory) {
        $0.uploads.maximumAge = .milliseconds(200)
        $0.handler = { head in WrappedHandlerTests.Echo(head, log) { _ in nil } }
      }
      location = try test.create("/echo")
      try test.append(location, at: 0, "abc")
      body = try #require(try test.events.wait(.closed).file)
      #expect(log.all.last?.hasPrefix("aborted") == true)
      let client = try test.connect()
      #expect(try client.head(location).status == 410)
    }
    let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(200) }
    _ = try test.create("/t.txt", ["Upload-Length: 3"])
    // So much time passes that the record of any other upload would be forgotten.
    _ = try test.events.wait(.expired)
    _ = try test.create("/t.txt", ["Upload-Length: 3"])
    _ = try test.events.wait(.expired, count: 2)
    #expect(try directory.text(body) == "abc")
    #expect(try test.connect().head(location).status == 410)
  }

  // MARK: Quotas

  @Test(
    "closed recordings count against the quotas until they are removed, even after a restart",
    arguments: ["plain", "upload", "wrapped"])
  func quota(_ kind: String) throws {
    let directory = TemporaryDirectory()
    func run(_ quota: UInt64?, perClient: UInt64? = nil, _ body: (TestServer) throws -> Void) throws {
      let log = WrappedHandlerTests.Log()
      let test = try server(directory) {
        ($0.uploads.quota, $0.uploads.quotaPerClient) = (quota, perClient)
        $0.handler = { $0.target.path == "/echo" ? WrappedHandlerTests.Echo($0, log) { _ in nil } : nil }
      }
      try body(test)
    }
    func room(_ test: TestServer) throws -> Int {
      let client = try test.connect()
      try client.request("POST", "/r.txt", ["Upload-Complete: ?0"], body: "")
      let created = try client.final().answer
      guard let location = created["location"] else { return created.status == 507 ? 0 : -1 }
      try client.patch(location, at: 0, body: String(repeating: "x", count: 10))
      let offset = try client.final().answer["upload-offset"].flatMap { Int($0) } ?? -1
      let cancelling = try test.connect()
      try cancelling.request("DELETE", location)
      guard try cancelling.final().answer.status == 204 else { return -1 }
      return offset
    }
    var file = ""
    try run(nil) { test in
      if kind == "plain" {
        try test.plain(id: "a", Array("1234567890".utf8))
      } else {
        try test.append(try test.create(kind == "upload" ? "/t.txt" : "/echo"), at: 0, "1234567890")
      }
      file = try #require(try test.events.wait(.closed).file)
    }
    for (quota, perClient) in [(UInt64(10), UInt64?.none), (UInt64(1000), 10)] {
      try run(quota, perClient: perClient) { test in
        // The server searches for closed recordings in the background.
        try waitUntil("the recording is counted") { (try? room(test)) == 0 }
      }
    }
    try run(14) { test in
      try waitUntil("the recording is counted") { (try? room(test)) == 4 }
      unlink(directory.path + "/" + file)
      // If there is no room, the server checks at most once per second.
      try waitUntil("its removal is noticed") { (try? room(test)) == 10 }
    }
  }
}
