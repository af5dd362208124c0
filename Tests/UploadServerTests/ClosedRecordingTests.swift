// Tests live streams whose client does not return: their recording is closed and kept. A client that does return
// continues the stream.

import EventLoops
import Glibc
import NetworkTesting
import Testing
import UploadServer

extension TestServer {
  /// Sends bytes of a plain stream and disconnects once all of them are stored.
  @discardableResult
  func plain(_ path: String = "/t.txt", id: String, offset: Int? = nil, type: String = "text/plain", _ text: [UInt8])
    throws -> ServerEvent
  {
    let client = try connect()
    let before = events.all.filter { $0.kind == .interrupted }.count
    try client.send(Self.head(path, id: id, offset: offset, type: type))
    if !text.isEmpty { try client.sendChunk(text) }
    try waitUntil("all has arrived") { client.unacknowledged == 0 }
    client.disconnect()
    return try events.wait(.interrupted, count: before + 1)
  }

  /// Appends bytes to an upload in a request that ends regularly.
  func append(_ location: String, at offset: Int, completes: Bool = false, _ bytes: [UInt8]) throws {
    let client = try connect()
    try client.patch(location, at: offset, completes: completes, ["Content-Length: \(bytes.count)"])
    try client.send(bytes)
    let answer = try client.final().answer
    guard answer["upload-offset"] == "\(offset + bytes.count)" else { throw TestFailure("not appended: \(answer)") }
  }

  func append(_ location: String, at offset: Int, completes: Bool = false, _ text: String) throws {
    try append(location, at: offset, completes: completes, Array(text.utf8))
  }
}

@Suite("Recordings of silent live streams")
struct ClosedRecordingTests {
  private func server(
    _ directory: TemporaryDirectory = TemporaryDirectory(), finishAfter: Duration = .milliseconds(300),
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.finishAfter = finishAfter
      change(&$0)
    }
  }

  private static let interruptedAtThree = "{\"offset\":3,\"length\":0,\"cause\":\"interrupted\"}\n"

  @Test("an upload without an announced length is closed under its final name, as its .gaps and the log record")
  func upload() throws {
    let test = try server { $0.uploads.maximumAge = .milliseconds(100) }
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
    _ = try test.events.wait(.expired)
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

  // MARK: Next parts

  /// A WAV header as `sluice mic` makes one: stereo of 16 bits.
  static let header: [UInt8] =
    Array("RIFF".utf8) + [255, 255, 255, 255] + Array("WAVEfmt ".utf8) + [16, 0, 0, 0, 1, 0, 2, 0]
    + [0x80, 0xBB, 0, 0, 0, 0xEE, 2, 0, 4, 0, 16, 0] + Array("data".utf8) + [255, 255, 255, 255]

  /// A header with the true sizes of whole frames.
  private static func header(dataLength: UInt8) -> [UInt8] {
    var header = header
    header.replaceSubrange(4..<8, with: [dataLength + 36, 0, 0, 0])
    header.replaceSubrange(40..<44, with: [dataLength, 0, 0, 0])
    return header
  }

  @Test(
    "a client that returns continues in a next part, with its own header and whole frames",
    arguments: [true, false])
  func nextPart(_ isResumable: Bool) throws {
    let test = try server()
    let samples = (0..<400).map { UInt8(truncatingIfNeeded: $0 * 7) }
    let stream = Self.header + samples
    func send(_ range: Range<Int>, completes: Bool = false) throws {
      if isResumable {
        let location = try test.create(
          "/kitchen.wav", ["Stream-ID: a", "Stream-Offset: \(range.lowerBound)", "Content-Type: audio/wav"])
        try test.append(location, at: 0, completes: completes, Array(stream[range]))
      } else if completes {
        let client = try test.connect()
        try client.send(TestServer.head("/kitchen.wav", id: "a", offset: range.lowerBound, type: "audio/wav"))
        try client.sendChunk(Array(stream[range]))
        try client.send("0\r\n\r\n")
        #expect(try client.answer()["stream-offset"] == "\(range.upperBound)")
      } else {
        try test.plain(
          "/kitchen.wav", id: "a", offset: range.lowerBound, type: "audio/wav", Array(stream[range]))
      }
    }
    // The first part ends in the middle of a frame.
    try send(0..<(44 + 101))
    _ = try test.events.wait(.closed)
    #expect(
      try test.directory.contents("kitchen-a.wav") == Self.header(dataLength: 100) + Array(stream[44..<145]))
    // The client knows of fewer bytes than the server has.
    try send((44 + 98)..<(44 + 206))
    _ = try test.events.wait(.closed, count: 2)
    #expect(try test.directory.contents("kitchen-a~2.wav") == Self.header(dataLength: 108) + Array(samples[96..<206]))
    #expect(
      try test.directory.text("kitchen-a~2.gaps")
        == "{\"offset\":140,\"length\":0,\"cause\":\"next-part\"}\n{\"offset\":250,\"length\":0,\"cause\":\"interrupted\"}\n"
    )
    // The client has lost some bytes meanwhile, and the first frame is only half there.
    try send((44 + 302)..<444, completes: true)
    #expect(
      try test.directory.contents("kitchen-a~3.wav")
        == Self.header(dataLength: 100) + [0, 0] + Array(samples[302...]))
    #expect(
      try test.directory.text("kitchen-a~3.gaps")
        == "{\"offset\":344,\"length\":0,\"cause\":\"next-part\"}\n{\"offset\":250,\"length\":96,\"cause\":\"not-received\"}\n"
    )
    #expect(test.directory.names.filter { $0.hasSuffix(".part") } == [])
    // The stream has ended, so a repeated request gets the same answer.
    guard !isResumable else { return }
    try send((44 + 302)..<444, completes: true)
  }

  @Test("a directory of logs that is a link to nowhere stops neither the server nor the stream")
  func missingLogs() throws {
    let test = try server()
    symlink("/nonexistent/parts", test.directory.path + "/.parts")
    try test.plain(id: "a", Array("abc".utf8))
    _ = try test.events.wait("the warning") { events in
      events.first { $0.kind == .warning && $0.reason?.contains("cannot close ") == true }
    }
    try test.plain(id: "a", offset: 3, Array("def".utf8))
    #expect(try test.directory.text("t-a.part") == "abcdef")
  }

  @Test(
    "no offset of a request behind a closed recording stops the server, and what is stored there is closed as well",
    arguments: [true, false])
  func extremeOffsets(_ isResumable: Bool) throws {
    let test = try server()
    let offsets = [
      "999999999999998", "999999999999999", "1000000000000000", "9223372036854775806", "9223372036854775807",
      "9223372036854775808", "18446744073709551614", "18446744073709551615", "18446744073709551616",
    ]
    for (number, offset) in offsets.enumerated() {
      let id = "s\(number)"
      try test.plain("/kitchen.wav", id: id, type: "audio/wav", Self.header + [1, 2, 3])
      _ = try test.events.wait("the recording is closed") { $0.first { $0.kind == .closed && $0.stream == id } }
      let client = try test.connect()
      let fields = ["Stream-ID: \(id)", "Stream-Offset: \(offset)", "Content-Type: audio/wav"]
      if isResumable {
        try client.request("POST", "/kitchen.wav", ["Upload-Complete: ?0"] + fields, body: "abcd")
        let status = try client.final().answer.status
        #expect(offset.utf8.count > 15 ? [400, 409].contains(status) : status == 201, "\(offset): \(status)")
      } else {
        try client.request("POST", "/kitchen.wav", version: nil, fields, chunked: true)
        try client.sendChunk("abcd")
        if offset.utf8.count > 15 {
          #expect([400, 409].contains(try client.final().answer.status), "\(offset)")
        } else {
          client.disconnect()
        }
      }
      guard offset.utf8.count <= 15 else { continue }
      _ = try test.events.wait("the next part is closed") { events in
        events.filter { $0.kind == .closed && $0.stream == id }.dropFirst().first
      }
    }
  }

  @Test("after a part that repeats a piece of an earlier one, only missing bytes are recorded as not received")
  func repeatingPart() throws {
    let test = try server()
    // The client of the second part knew of fewer bytes than the server had.
    for (number, range) in [0..<20, 5..<10, 20..<25, 12..<15, 30..<31].enumerated() {
      try test.plain(id: "a", offset: range.lowerBound, range.map { UInt8($0) })
      _ = try test.events.wait(.closed, count: number + 1)
    }
    for (part, gaps) in [2: [], 3: [], 4: [], 5: ["{\"offset\":25,\"length\":5,\"cause\":\"not-received\"}"]] {
      let lines = try test.directory.text("t-a~\(part).gaps").split(separator: "\n").map(String.init)
      #expect(lines.filter { $0.contains("not-received") } == gaps, "part \(part)")
    }
  }

  @Test("a next part survives the server with its offset, and text requires no header")
  func nextPartAfterRestart() throws {
    let directory = TemporaryDirectory()
    var location = ""
    do {
      let test = try server(directory)
      try test.plain(id: "a", Array("abc".utf8))
      _ = try test.events.wait(.closed)
    }
    do {
      let test = try server(directory, finishAfter: .seconds(60))
      location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
      try test.append(location, at: 0, "def")
    }
    let test = try server(directory, finishAfter: .seconds(60))
    #expect(try test.connect().head(location)["upload-offset"] == "3")
    try test.append(location, at: 3, completes: true, "ghi")
    #expect(try directory.text("t-a.txt") == "abc" && directory.text("t-a~2.txt") == "defghi")
    // The stream has ended, so nothing may follow it.
    let late = try test.connect()
    try late.send(TestServer.head(id: "a", offset: 10))
    #expect(try late.answer().status == 409)
  }

  @Test("a stream whose closed recording was moved away continues in the next part")
  func moved() throws {
    let test = try server()
    try test.plain("/k.wav", id: "a", type: "audio/wav", Self.header + [1, 2, 3, 4])
    _ = try test.events.wait(.closed)
    unlink(test.directory.path + "/k-a.wav")
    unlink(test.directory.path + "/k-a.gaps")
    try test.plain("/k.wav", id: "a", offset: 48, type: "audio/wav", [5, 6, 7, 8])
    _ = try test.events.wait(.closed, count: 2)
    #expect(try test.directory.contents("k-a~2.wav") == Self.header(dataLength: 4) + [5, 6, 7, 8])
  }

  // MARK: Owners

  @Test(
    "an older upload that expires changes neither the file of a newer one nor a complete recording"
  )
  func older() throws {
    for isPlain in [true, false] {
      let test = try server(finishAfter: .seconds(60)) {
        $0.uploads.maximumAge = .milliseconds(300)
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

  // MARK: Restarts

  @Test(
    "after a restart, a recording is closed under the name in its record, or else under a name derived from its contents"
  )
  func leftBehind() throws {
    let directory = TemporaryDirectory()
    do {
      let test = try server(directory, finishAfter: .seconds(60))
      try test.plain("/a.txt", id: "a", Array("abc".utf8))
      _ = try test.create("/b.txt", ["Stream-ID: b"])
    }
    for (name, bytes) in [("c-1.part", Self.header), ("d-1.part", [1, 2]), (".e.part", [1]), ("-f.part", [1])] {
      try directory.write(name, bytes)
    }
    let test = try server(directory)
    _ = try test.events.wait(.closed, count: 3)
    #expect(try directory.text("a-a.txt") == "abc")
    #expect(try directory.contents("c-1.wav") == Self.header(dataLength: 0) && directory.contents("d-1.bin") == [1, 2])
    #expect(directory.exists(".e.part") && directory.exists("-f.part"))
  }

  @Test("a server removes its records of a stream whose recordings another program has removed, and of no other")
  func forgotten() throws {
    let directory = TemporaryDirectory()
    do {
      let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(500) }
      for id in ["a", "b", "c"] { try test.plain("/t.txt", id: id, Array("abc".utf8)) }
      _ = try test.events.wait(.closed, count: 3)
    }
    func names() throws -> Set<String> { Set(try ScratchListing(directory.path + "/.parts").names) }
    #expect(try names() == ["t-a", "t-b", "t-c"])
    func remove(_ id: String) { for suffix in ["txt", "gaps"] { unlink("\(directory.path)/t-\(id).\(suffix)") } }
    remove("a")
    let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(500) }
    try waitUntil("t-a is forgotten") { try names() == ["t-b", "t-c"] }
    // A later search finds this one.
    remove("c")
    try waitUntil("t-c is forgotten") { try names() == ["t-b"] }
    test.stop()
    #expect(try names() == ["t-b"] && directory.text("t-b.txt") == "abc")
  }

  @Test("a recording that a newer server finds stays with its upload")
  func leftToUpload() throws {
    let directory = TemporaryDirectory()
    var location = ""
    do {
      let test = try server(directory, finishAfter: .seconds(60))
      location = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 6"])
      try test.append(location, at: 0, "abc")
    }
    let test = try server(directory)
    try test.plain(id: "b", Array("x".utf8))
    _ = try test.events.wait(.closed)
    try test.append(location, at: 3, completes: true, "def")
    #expect(try directory.text("t-a.txt") == "abcdef")
  }

  @Test(
    "uploads of an earlier server expire by the current configuration, and by the running time of servers, not the clock"
  )
  func ages() throws {
    let directory = TemporaryDirectory()
    var locations: [String] = []
    do {
      let test = try server(directory)
      for id in ["a", "b"] {
        locations.append(try test.create("/t.txt", ["Stream-ID: \(id)", "Upload-Length: 6"]))
        try test.append(locations[locations.count - 1], at: 0, "abc")
      }
    }
    // The same happens after a week without a server, or when the clock is set.
    for location in locations {
      let token = location.split(separator: "/").last ?? ""
      try Command.run("touch", ["-d", "2001-01-01", "\(directory.path)/.uploads/\(token).upload"])
    }
    do {
      let test = try server(directory)
      for location in locations { #expect(try test.connect().head(location)["upload-offset"] == "3") }
    }
    let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(300) }
    #expect(try test.events.wait(.expired, count: 2).offset == 3)
    #expect(directory.names.filter { !$0.hasPrefix(".") } == [])
  }

  @Test("the idle time of an upload adds up over restarts")
  func agesAddUp() throws {
    var age = Duration.seconds(2)
    // On a busy machine, one of the servers may run for the whole time, which then proves nothing.
    while try longestRun(untilExpiryAt: age) >= age {
      age = age * 4
      try #require(age < .seconds(60), "each server ran for longer than the maximum age")
    }
  }

  /// Restarts a server until an upload that no request uses has expired. Returns the longest time that one of the
  /// servers has run.
  private func longestRun(untilExpiryAt maximumAge: Duration) throws -> Duration {
    let directory = TemporaryDirectory()
    let start = MonotonicInstant.now
    var longest = Duration.zero
    func run(_ body: (TestServer) throws -> Void) throws {
      let start = MonotonicInstant.now
      let test = try server(directory) { $0.uploads.maximumAge = maximumAge }
      try body(test)
      test.stop()
      longest = max(longest, MonotonicInstant.now - start)
    }
    try run {
      let location = try $0.create("/t.txt", ["Stream-ID: a", "Upload-Length: 6"])
      try $0.append(location, at: 0, "abc")
    }
    // Each server runs for about 0.3 s.
    var runs = 0
    var isOver = false
    while !isOver {
      try run { test in
        runs += 1
        try test.plain(id: "r\(runs)", Array("x".utf8))
        _ = try test.events.wait(.closed)
        isOver = test.events.all.contains { $0.kind == .expired }
      }
      try #require(isOver || MonotonicInstant.now - start < maximumAge * 10, "it never expires")
    }
    #expect(MonotonicInstant.now - start >= maximumAge, "it expires too early")
    return longest
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
    let test = try server()
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
}
