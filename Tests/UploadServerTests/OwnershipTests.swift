// Tests who owns a stream: no combination of names and types gives a token access to the bytes of another.

import EventLoops
import ExitTesting
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Ownership of streams", .serialized)
struct OwnershipTests {
  // The output of `printf %s alpha | sha256sum`, and the same for beta.
  private static let tokens = """
    8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8
    f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753

    """
  private static let alpha = "Authorization: Bearer alpha"
  private static let beta = "Authorization: Bearer beta"

  private func guarded(
    _ directory: TemporaryDirectory, _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    let path = directory.path + "/tokens"
    guard let file = fopen(path, "w") else { throw TestFailure("cannot write \(path)") }
    fputs(Self.tokens, file)
    fclose(file)
    return try TestServer(in: directory) {
      $0.tokenFile = path
      change(&$0)
    }
  }

  @Test(
    "a stream keeps its owner if a power failure destroys the content of the owner's record, or the end of it",
    .enabled(if: hasExtendedAttributes), arguments: [(0, 0), (0, 5), (0, 32), (0, 33), (20, 32), (31, 33), (32, 32)],
    [true, false])
  func destroyedRecord(_ remains: (intact: Int, count: Int), isBeginner: Bool) throws {
    let directory = TemporaryDirectory()
    let store = try FileStore(in: directory)
    let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
    let (owner, stranger) = ([UInt8](repeating: 1, count: 32), [UInt8](repeating: 2, count: 32))
    if !isBeginner { try directory.write("t-a.part", Array("abc".utf8)) }
    _ = try store.open(name, for: owner, at: 0, creating: true)
    func destroy(_ content: [UInt8]) throws {
      // The same file, with other content.
      let zeros = [UInt8](repeating: 0, count: remains.count - remains.intact)
      try directory.write(".owners/t-a", content.prefix(remains.intact) + zeros)
    }
    try destroy(owner)
    let record = try store.owners.record(of: name)
    #expect(record?.owner == owner && record?.isBeginner == isBeginner)
    #expect(try store.admits(owner, to: name))
    #expect(try !store.admits(stranger, to: name))
    // The next record of the stream replaces all of it.
    try store.owners.record(stranger, of: name, isBeginner: true)
    try destroy(stranger)
    #expect(try store.owners.record(of: name)?.owner == stranger)
  }

  @Test(
    "while the attribute of an owner's record cannot be read, nobody is admitted, whatever the content",
    .enabled(if: hasExtendedAttributes && disk_faults_are_possible() != 0))
  func unreadableAttribute() async {
    await #expect(processExitsWith: .success) {
      try reportingErrors {
        let directory = TemporaryDirectory()
        let store = try FileStore(in: directory)
        let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
        let (owner, stranger) = ([UInt8](repeating: 1, count: 32), [UInt8](repeating: 2, count: 32))
        _ = try store.open(name, for: owner, at: 0, creating: true)
        for content in [[], [UInt8](repeating: 0, count: 32), owner, stranger] {
          try directory.write(".owners/t-a", content)
          for credential in [owner, stranger] {
            disk_faults_begin(directory.path)
            disk_faults_fail(DISK_GET_ATTRIBUTE, 1, EIO)
            let isAdmitted = try? store.admits(credential, to: name)
            disk_faults_begin("")
            try require(isAdmitted == nil, "\(content) \(credential)")
            try require(try store.admits(credential, to: name) == (credential == owner), "\(content) \(credential)")
          }
        }
      }
    }
  }

  @Test(
    "a record without content, which a power failure has left, excludes nobody from a stream",
    arguments: [0, 5, 32, 33])
  func emptyRecord(count: Int) throws {
    let directory = TemporaryDirectory()
    mkdir(directory.path + "/.owners", 0o700)
    try directory.write(".owners/t-a", [UInt8](repeating: 0, count: count))
    try directory.write("t-a.part", Array("abc".utf8))
    let test = try guarded(directory)
    let client = try test.connect()
    try client.send(TestServer.head("/t.txt", id: "a", offset: 3, more: Self.alpha + "\r\n") + "0\r\n\r\n")
    #expect(try client.answer().status == 200)
    #expect(try directory.text("t-a.txt") == "abc")
  }

  @Test(
    "after a power failure, another token continues what is left of a stream only if the owner's record is destroyed",
    .enabled(if: hasExtendedAttributes), arguments: [true, false])
  func leftByPowerFailure(hasAttribute: Bool) throws {
    let directory = TemporaryDirectory()
    let test = try guarded(directory) {
      $0.durability = .interval
      $0.bootIdentifier = "first"
    }
    let client = try test.connect()
    try client.request(
      "POST", "/t.txt", ["Stream-ID: a", "Upload-Complete: ?0", "Upload-Length: 140", Self.alpha],
      body: "alpha's twenty bytes")
    let created = try client.final().answer
    #expect(created.status == 201)
    // The disk has a piece of the bytes, and the name of the record without its content.
    let copy = try directory.copyOfKilled()
    try copy.write("t-a.part", Array("alpha's twenty by".utf8))
    if !hasAttribute {
      unlink("\(copy.path)/.owners/t-a")
      try copy.removeMark("t-a.part")
    }
    try copy.write(".owners/t-a", [])
    let next = try guarded(copy) {
      $0.durability = .interval
      $0.bootIdentifier = "second"
      $0.allowsDownloads = true
    }
    let owner = try next.connect()
    try owner.request("HEAD", created["location"] ?? "", [Self.alpha])
    #expect(try owner.final(withBody: false).answer.status == 410)
    let other = try next.connect()
    try other.request(
      "POST", "/t.txt", ["Stream-ID: a", "Stream-Offset: 116", "Upload-Complete: ?1", Self.beta],
      body: "another token's bytes")
    let answer = try other.final().answer
    #expect(answer.status == (hasAttribute ? 403 : 200), "\(answer)")
    #expect((answer["stream-offset"] == nil) == hasAttribute)
    #expect(copy.exists("t-a.part") == hasAttribute)
    // It does not get the bytes that it did not send.
    let reader = try next.connect()
    try reader.request("GET", "/t-a.txt", version: nil, [Self.beta])
    #expect(try reader.answer().status == 404)
  }

  @Test(
    "while the disk does not answer, no token is admitted to the recording of another, and none becomes a guest in its own",
    .enabled(if: disk_faults_are_possible() != 0))
  func unanswered() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try directory.write("t-a.txt", Array("abc".utf8))
      let store = try FileStore(in: directory)
      let credential = [UInt8](repeating: 1, count: 32)
      disk_faults_begin(directory.path)
      let complete = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
      for call in 1...100 {
        disk_faults_fail(DISK_ACCESS, UInt(call), EIO)
        do {
          let isAdmitted = try store.admits(credential, to: complete)
          try require(!isAdmitted, "it is admitted after error \(call)")
        } catch let error as SystemError {
          try require(error.code == EIO, "\(error)")
        }
        // All calls have succeeded.
        if String(cString: disk_faults_place()).isEmpty {
          try require(call > 1, "no call has failed")
          break
        }
        try require(call < 100, "the calls do not end")
      }
      for call in 1...100 {
        let new = StreamName(path: "/n.txt", streamID: "\(call)", mediaType: "text/plain")
        disk_faults_fail(DISK_ACCESS, UInt(call), EIO)
        do {
          _ = try store.open(new, for: credential, at: 0, creating: true)
          let record = try store.owners.record(of: new)
          try require(record?.isBeginner == true, "it is a guest after error \(call)")
        } catch let error as SystemError {
          try require(error.code == EIO, "\(error)")
        }
        if String(cString: disk_faults_place()).isEmpty {
          try require(call > 1, "no call has failed")
          break
        }
        try require(call < 100, "the calls do not end")
      }
    }
  }

  @Test("a complete recording keeps its token when an older upload of the same stream expires")
  func outlivesAnOlderUpload() throws {
    // A busy machine may let the upload expire before the stream is complete.
    for age in [.milliseconds(300), .seconds(3)] as [Duration] {
      if try outlivesUpload(ofAge: age) { return }
    }
    #expect(try outlivesUpload(ofAge: .seconds(20)), "the upload expires too early each time")
  }

  /// Returns false if the older upload expires before the stream is complete.
  private func outlivesUpload(ofAge age: Duration) throws -> Bool {
    let directory = TemporaryDirectory()
    let test = try guarded(directory) {
      $0.uploads.maximumAge = age
      $0.uploads.parkDelay = .milliseconds(1)
    }
    let client = try test.connect()
    try client.request(
      "POST", "/t.txt", ["Stream-ID: a", "Upload-Complete: ?0", "Upload-Length: 100", Self.alpha], body: "abc")
    #expect(try client.final().answer.status == 201)
    try client.send(TestServer.head("/t.txt", id: "a", offset: 3, more: Self.alpha + "\r\n") + "0\r\n\r\n")
    let status = try client.answer().status
    if test.events.all.contains(where: { $0.kind == .expired }) { return false }
    #expect(status == 200)
    // Two uploads expire in succession, so the first one's time has passed as well.
    for count in 1...2 {
      let client = try test.connect()
      try client.request("POST", "/u.txt", ["Upload-Complete: ?0", "Upload-Length: 1", Self.alpha], body: "")
      #expect(try client.final().answer.status == 201)
      _ = try test.events.wait(.expired, count: count)
    }
    #expect(try directory.text("t-a.txt") == "abc")
    for (token, status) in [(Self.beta, 403), (Self.alpha, 200)] {
      let client = try test.connect()
      try client.send(TestServer.head("/t.txt", id: "a", offset: 3, more: token + "\r\n") + "0\r\n\r\n")
      #expect(try client.answer().status == status)
    }
    return true
  }

  @Test(
    "a complete recording without a token is not compared with the bytes of a token, nor counted as its recording",
    arguments: ["nobody's", "an operator's", "continued"])
  func completeOfNobody(_ origin: String) throws {
    let directory = TemporaryDirectory()
    let bytes = Array("secret words".utf8)
    if origin == "an operator's" {
      try directory.write("k-a.txt", bytes)
    } else {
      // Store a stream before tokens exist.
      let test = try TestServer(in: directory)
      let client = try test.connect()
      try client.send(
        TestServer.head("/k.txt", id: "a") + "6\r\nsecret\r\n"
          + (origin == "continued" ? "" : "6\r\n words\r\n0\r\n\r\n"))
      if origin == "continued" {
        try waitUntil("it is stored") { try directory.exists("k-a.part") && directory.text("k-a.part") == "secret" }
      } else {
        #expect(try client.answer().status == 201)
      }
      client.disconnect()
      test.stop()
    }
    let test = try guarded(directory) {
      $0.retention = RecordingRetention(largestSize: 20)
      $0.maintenancePause = .milliseconds(5)
      $0.retentionClock = RetentionState.Clock(now: { .now }, isSynchronized: { true })
    }
    func send(_ offset: Int, _ text: String, completes: Bool = false, _ token: String = Self.alpha) throws -> Int {
      let client = try test.connect()
      let chunk = text.isEmpty ? "" : "\(String(text.utf8.count, radix: 16))\r\n\(text)\r\n"
      try client.send(
        TestServer.head("/k.txt", id: "a", offset: offset, more: token + "\r\n") + chunk + "0\r\n\r\n")
      return try client.answer().status
    }
    if origin == "continued" {
      // The first client to come may continue a stream without an owner, but does not get the earlier bytes by that.
      #expect(try send(6, " words") == 200)
      #expect(try send(0, "x", Self.beta) == 403)
    }
    for text in ["", "s", "x", "secret words", "secret words and more"] { #expect(try send(0, text) == 403, "\(text)") }
    for offset in 0..<12 {
      #expect(try send(offset, String(decoding: bytes[offset...offset], as: UTF8.self)) == 403)
      #expect(try send(offset, "~") == 403)
    }
    // A new upload of alpha must not make any of the others expire.
    let own = try test.connect()
    try own.send(
      TestServer.head("/u.txt", id: "u", more: Self.alpha + "\r\n") + "12\r\n123456789012345678\r\n0\r\n\r\n")
    #expect(try own.answer().status == 201)
    try waitUntil("its digest is there") { directory.exists("u-u.sidecar") }
    let more = try test.connect()
    try more.send(TestServer.head("/v.txt", id: "v", more: Self.alpha + "\r\n") + "6\r\n123456\r\n0\r\n\r\n")
    #expect(try more.answer().status == 201)
    #expect(try test.events.wait(.removed).file == "u-u.txt", "the oldest of those that alpha began")
    #expect(try directory.text("k-a.txt") == "secret words")
  }

  @Test("without tokens, the recordings of all count together, even if they have owners", arguments: [true, false])
  func retentionWithoutTokens(_ requiresTokens: Bool) throws {
    let directory = try TemporaryDirectory()
    let first = try guarded(directory) { _ in }
    for (name, token) in [("a", Self.alpha), ("b", Self.beta)] {
      let client = try first.connect()
      try client.send(
        TestServer.head("/\(name).txt", id: name, more: token + "\r\n") + "c\r\nsecret words\r\n0\r\n\r\n")
      #expect(try client.answer().status == 201)
      client.disconnect()
      try waitUntil("its digest is there") { directory.exists("\(name)-\(name).sidecar") }
    }
    first.stop()
    let limit: (inout UploadServer.Configuration) -> Void = {
      $0.retention = RecordingRetention(largestSize: 20)
      $0.maintenancePause = .milliseconds(5)
      $0.retentionClock = RetentionState.Clock(now: { .now }, isSynchronized: { true })
    }
    let test = requiresTokens ? try guarded(directory, limit) : try TestServer(in: directory, limit)
    // Each has less than 20 bytes, and both together have more. A third one shows that the rules were applied.
    let client = try test.connect()
    try client.send(
      TestServer.head("/c.txt", id: "c", more: Self.beta + "\r\n") + "c\r\nsecret words\r\n0\r\n\r\n")
    #expect(try client.answer().status == 201)
    _ = try test.events.wait(.removed, count: requiresTokens ? 1 : 2)
    let left = ["a", "b", "c"].filter { directory.exists("\($0)-\($0).txt") }
    #expect(left.count == (requiresTokens ? 2 : 1))
    if requiresTokens { #expect(left.contains("a"), "alpha has no more than it may") }
  }

  /// A stored stream, and a foreign request.
  private struct Case: CustomStringConvertible {
    /// The path of alpha's stream.
    var ownPath: String
    var ownType: String
    var isComplete: Bool
    /// The path of beta's request, which has the same Stream-ID.
    var path: String
    var type: String
    var method: String
    var isResumable: Bool
    var isChunked: Bool
    var offset: Int
    var body: String

    var description: String {
      "\(ownPath) \(ownType) complete \(isComplete): \(method) \(path) \(type) resumable \(isResumable) "
        + "chunked \(isChunked) offset \(offset) \"\(body)\""
    }

    static let types = ["audio/wav", "text/plain", "application/json", "application/octet-stream", "x/y", ""]
    static let paths = [
      "/kitchen", "/kitchen.wav", "/kitchen.txt", "/kitchen.opus", "/a/kitchen.wav", "/kitchen.part", "/kitchen.gaps",
      "/%6bitchen.mkv",
    ]
    static let content = "secret words"

    init(_ random: inout SplitMix64) {
      ownPath = Self.paths.randomElement(using: &random) ?? ""
      ownType = Self.types.randomElement(using: &random) ?? ""
      isComplete = random.chance(60)
      path = Self.paths.randomElement(using: &random) ?? ""
      type = Self.types.randomElement(using: &random) ?? ""
      method = random.chance(70) ? "POST" : "PUT"
      isResumable = random.chance(50)
      isChunked = random.chance(50)
      offset = Int.random(in: 0...16, using: &random)
      let rest = offset <= Self.content.count ? String(Self.content.dropFirst(offset)) : ""
      // A right guess, its beginning, a wrong guess, and a longer text.
      body = [rest, String(rest.prefix(1)), "guess", rest + "more", ""].randomElement(using: &random) ?? ""
    }

    func lines(_ type: String, _ id: String, _ token: String, offset: Int = 0) -> [String] {
      var lines = ["Stream-ID: \(id)", token]
      if !type.isEmpty { lines.append("Content-Type: \(type)") }
      if offset > 0 { lines.append("Stream-Offset: \(offset)") }
      return lines
    }
  }

  /// All files of the directory with their contents.
  private func snapshot(_ directory: TemporaryDirectory) throws -> [String: [UInt8]] {
    var files: [String: [UInt8]] = [:]
    for name in directory.names where !name.hasPrefix(".") && name != "tokens" {
      files[name] = try directory.contents(name)
    }
    return files
  }

  @Test(
    "another token's request reads, changes and removes nothing, and its status reveals nothing",
    arguments: Seed.several(1))
  func foreign(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    var test = try guarded(directory)
    for number in 0..<300 {
      let one = Case(&random)
      let id = "id\(number)"
      let own = try test.connect()
      try own.request(
        "POST", one.ownPath, version: nil, one.lines(one.ownType, id, Self.alpha, offset: 2), chunked: true)
      try own.sendChunk(String(Case.content.dropFirst(2)))
      if one.isComplete {
        try own.send("0\r\n\r\n")
        let answer = try own.final().answer
        #expect(answer.status == 201, "\(seed) \(number) \(one): \(answer)")
      } else {
        let count = number
        try waitUntil("the bytes are stored") {
          test.directory.names.contains {
            $0.hasPrefix("kitchen-id\(count).") && (try? test.directory.contents($0).count) == Case.content.count
          }
        }
      }
      if random.chance(10), one.isComplete {
        own.disconnect()
        test.stop()
        test = try guarded(directory)
      }
      let before = try snapshot(directory)
      let foreign = try test.connect()
      let lines = one.lines(one.type, id, Self.beta, offset: one.offset)
      let version = one.isResumable ? 8 : nil
      let protocolLines = one.isResumable ? ["Upload-Complete: ?1"] : []
      if one.isChunked {
        try foreign.request(one.method, one.path, version: version, lines + protocolLines, chunked: true)
        // The server may answer before it has the body.
        _ = try? foreign.sendChunk(one.body.isEmpty ? "x" : one.body)
        _ = try? foreign.send("0\r\n\r\n")
      } else {
        try foreign.request(one.method, one.path, version: version, lines + protocolLines, body: one.body)
      }
      let answer = try foreign.final().answer
      #expect(answer.status == 403, "\(seed) \(number) \(one): \(answer)")
      #expect(answer["stream-offset"] == nil && answer["stream-missing"] == nil && answer["location"] == nil)
      #expect(try snapshot(directory) == before, "\(seed) \(number) \(one)")
    }
  }

  @Test("a stream has one recording: a request with another type is compared with it, and creates no other")
  func otherType() throws {
    let test = try TestServer()
    for (index, types) in [("wav", "txt"), ("opus", "wav"), ("opus", "mkv"), ("txt", "opus")].enumerated() {
      let client = try test.connect()
      func send(_ type: String, _ body: String) throws -> RawClient.Answer {
        try client.request("POST", "/mic.\(type)", version: nil, ["Stream-ID: s\(index)"], body: body)
        return try client.answer()
      }
      #expect(try send(types.0, "hello").status == 201)
      let again = try send(types.1, "hello")
      #expect(again.status == 200 && again.body.contains("\"mic-s\(index).\(types.0)\""), "\(types) \(again)")
    }
    // The same on a server that only has the directory.
    let second = test.directory
    test.stop()
    let other = try TestServer(in: second)
    let client = try other.connect()
    try client.request("POST", "/mic.json", version: nil, ["Stream-ID: s1"], body: "hello")
    #expect(try client.answer().status == 200)
    #expect(second.names == ["mic-s0.wav", "mic-s1.opus", "mic-s2.opus", "mic-s3.txt"])
  }

  @Test("a complete stream keeps its owner over restarts, even after the owner has requested it under another type")
  func restarted() throws {
    let directory = TemporaryDirectory()
    for round in 0..<3 {
      let test = try guarded(directory)
      // Each request has its own connection, because a refusal ends it.
      func status(_ path: String, _ lines: [String], version: Int? = nil, _ body: String) throws -> Int {
        let client = try test.connect()
        defer { client.disconnect() }
        try client.request("POST", path, version: version, ["Stream-ID: s"] + lines, body: body)
        return try client.final().answer.status
      }
      let own = try status("/kitchen.txt", ["Content-Type: text/plain", Self.alpha], "secret")
      #expect(own == (round == 0 ? 201 : 200))
      let more = ["Content-Type: audio/wav", "Upload-Complete: ?0", Self.alpha]
      #expect(try status("/kitchen.wav", more, version: 8, "secret and more") == 409)
      for body in ["secret", "guess"] { #expect(try status("/kitchen.txt", [Self.beta], body) == 403) }
      test.stop()
      #expect(!directory.exists(".parts/kitchen-s") && directory.exists(".owners/kitchen-s"))
    }
  }

  @Test(
    "a closed stream keeps its owner when its recordings were moved away, and continues in the next part",
    arguments: [false, true], [false, true])
  func moved(_ restarts: Bool, _ isResumable: Bool) throws {
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      let test = try guarded(directory) { $0.finishAfter = .milliseconds(200) }
      return test
    }
    var test = try server()
    func send(_ token: String, at offset: Int, _ body: String) throws -> Int {
      let client = try test.connect()
      let lines = ["Stream-ID: s", "Stream-Offset: \(offset)", token, "Content-Type: text/plain"]
      if isResumable {
        try client.request("POST", "/k.txt", ["Upload-Complete: ?0"] + lines, body: body)
      } else {
        try client.request("POST", "/k.txt", version: nil, lines, chunked: true)
        // A refusal may arrive before the body is sent.
        _ = try? client.sendChunk(body)
        if token == Self.beta { return try client.answer().status }
        try waitUntil("the bytes are stored") {
          directory.names.contains { $0.hasSuffix(".part") && (try? directory.text($0)) == body }
        }
        client.disconnect()
        return 201
      }
      return try client.final().answer.status
    }
    for part in 1...3 {
      let offset = (part - 1) * 3
      if part > 1 { #expect(try send(Self.beta, at: offset, "x") == 403) }
      #expect(try send(Self.alpha, at: offset, "abc") == 201)
      let closed = try test.events.wait(.closed, count: restarts ? 1 : part)
      let file = part == 1 ? "k-s.txt" : "k-s~\(part).txt"
      #expect(try closed.file == file && directory.text(file) == "abc")
      try Command.run("sh", ["-c", "rm \(directory.path)/k-s*"])
      if restarts {
        test.stop()
        test = try server()
      }
    }
  }

  @Test(
    "the record of a stream without files is removed: at once if it ended by itself, after a time if it was closed"
  )
  func forgotten() throws {
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try guarded(directory) {
        $0.finishAfter = .milliseconds(200)
        $0.uploads.maximumAge = .milliseconds(500)
      }
    }
    var test = try server()
    for index in 0..<20 {
      let client = try test.connect()
      try client.request("POST", "/k.txt", version: nil, ["Stream-ID: e\(index)", Self.alpha], body: "abc")
      #expect(try client.answer().status == 201)
      let live = try test.connect()
      try live.request("POST", "/k.txt", ["Upload-Complete: ?0", "Stream-ID: c\(index)", Self.alpha], body: "abc")
      #expect(try live.final().answer.status == 201)
    }
    _ = try test.events.wait(.closed, count: 20)
    func records(_ prefix: String) throws -> Int {
      guard let records = opendir(directory.path + "/.owners") else { return 0 }
      defer { closedir(records) }
      var count = 0
      while let entry = readdir(records) {
        let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
        if name.hasPrefix(prefix) { count += 1 }
      }
      return count
    }
    try Command.run("sh", ["-c", "rm \(directory.path)/k-*1.*"])
    test.stop()
    test = try server()
    // Two recordings with each prefix have names that end in 1. The files of the others still exist.
    try waitUntil("the records are gone") { try records("k-e") == 18 && records("k-c") == 18 }
  }

  @Test("a recording that another program created while its stream grew is not overwritten, and the client may retry")
  func intruder() throws {
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head("/mic.wav", type: "audio/wav") + "5\r\nhello\r\n")
    _ = try test.events.wait(.begun)
    try Command.run("sh", ["-c", "printf other > \(test.directory.path)/mic-a.flac"])
    try client.send("0\r\n\r\n")
    let answer = try client.answer()
    #expect(answer.status == 500 && answer["retry-after"] != nil, "\(answer)")
    #expect(test.directory.names == ["mic-a.flac", "mic-a.part"])
  }
}
