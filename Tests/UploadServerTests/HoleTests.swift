// Tests uploads of one stream, some of which begin after bytes that never arrived. No response may report those as
// stored.

import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Holes between the uploads of a stream")
struct HoleTests {
  private static let settings = [false, true].flatMap { discards in
    Durability.allCases.map { (discards: discards, durability: $0) }
  }

  @Test(
    "an announced offset counts only received bytes, and accepts an append", arguments: settings.indices,
    Seed.several(5))
  func offsets(_ setting: Int, _ seed: Seed) throws {
    let (discards, durability) = Self.settings[setting]
    try HoleSequence(seed.generator, discards: discards, durability: durability).run()
  }

  @Test("an upload ends if others have left a gap after it, and its recording stays", arguments: [false, true])
  func overtaken(_ restarts: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    let one = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(one, at: 0, "01234")
    let two = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 10"])
    try test.append(two, at: 0, "abcde")
    if restarts {
      test.stop()
      test = try TestServer(in: directory)
    }
    #expect(try test.connect().head(one).status == 410)
    let client = try test.connect()
    try client.request("DELETE", two)
    #expect(try client.final().answer.status == 204)
    // The second client must not remove bytes that were acknowledged to the first.
    #expect(try test.directory.text("t-a.part") == "01234\0\0\0\0\0abcde")
  }

  @Test("an upload that is cancelled in a request with droppable bytes leaves a recording of others")
  func overtakenWhileHeld() throws {
    let test = try TestServer()
    let one = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(one, at: 0, "01234")
    let two = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 10"])
    // The digest is compared at the end. Until then the hole before the bytes may disappear again.
    let writer = try test.connect()
    try writer.patch(
      two, at: 0, ["Content-Length: 9", "Content-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"])
    try writer.send("abcde")
    try waitUntil("the bytes are stored") { try test.directory.text("t-a.part").hasSuffix("abcde") }
    let client = try test.connect()
    try client.request("DELETE", two)
    #expect(try client.final().answer.status == 204)
    try test.events.wait(.cancelled)
    // Cancelling lets the first upload continue, and the recording keeps its name.
    #expect(try test.directory.text("t-a.part").hasPrefix("01234"))
  }

  @Test("a creation before a hole is refused with 409", arguments: [false, true])
  func refused(_ discards: Bool) throws {
    let test = try TestServer { if discards { $0.storage = .discarding } }
    let one = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 10"])
    try test.append(one, at: 0, "abcde")
    for offset in [0, 9] {
      let client = try test.connect()
      try client.request(
        "POST", "/t.txt", ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: \(offset)"], body: "")
      #expect(try client.final().answer.status == 409)
    }
    _ = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 10"])
    try test.append(one, at: 5, completes: true, "fg")
  }

  /// The files that a killed server may leave after it made a hole of ten bytes or closed the recording.
  private static let remains = [
    "{\"offset\":10,\"length\":10,\"cause\":\"not-received\"}\n",
    "{\"offset\":10,\"length\":10,\"cause\":\"not-received\"}\n{\"offset\":10,\"length\":10,\"cause\":\"not-received\"}\n",
    "{\"offset\":10,\"length\":10,\"cause\":\"not-received\"}\n{\"offset\":10,\"len",
    "{\"offset\":10,\"length\":0,\"cause\":\"interrupted\"}\n",
    "",
  ]

  @Test(
    "after SIGKILL during the creation of a hole or the end of a recording, the upload continues without a gap",
    arguments: remains, [false, true])
  func killed(_ lines: String, hasHole: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(location, at: 0, "0123456789")
    test.stop()
    try Command.run("sh", ["-c", "printf '%s' '\(lines)' > \(directory.path)/t-a.gaps"])
    if hasHole, lines.contains("received") { try Command.run("truncate", ["-s", "20", directory.path + "/t-a.part"]) }
    for restarts in 0..<2 {
      test = try TestServer(in: directory)
      #expect(try test.connect().head(location)["upload-offset"] == "\(10 + 5 * restarts)")
      try test.append(location, at: 10 + 5 * restarts, "abcde")
      test.stop()
    }
    test = try TestServer(in: directory)
    try test.append(location, at: 20, completes: true, "Z")
    #expect(try directory.text("t-a.txt") == "0123456789abcdeabcdeZ")
    #expect(!directory.exists("t-a.gaps"))
  }

  @Test(
    "a record of gaps without its recording removes no byte of the next one", arguments: [false, true])
  func removedRecording(_ isUpload: Bool) throws {
    let directory = TemporaryDirectory()
    try Command.run("sh", ["-c", "printf '%s' '\(Self.remains[0])' > \(directory.path)/t-a.gaps"])
    var test = try TestServer(in: directory)
    var location: String?
    if isUpload {
      location = try test.create("/t.txt", ["Stream-ID: a"])
      try test.append(location ?? "", at: 0, "0123456789abcde")
    } else {
      try test.plain(id: "a", Array("0123456789abcde".utf8))
    }
    test.stop()
    test = try TestServer(in: directory)
    if let location { #expect(try test.connect().head(location)["upload-offset"] == "15") }
    let client = try test.connect()
    try client.request("POST", "/t.txt", version: nil, ["Stream-ID: a", "Stream-Offset: 15"], body: "fg")
    #expect(try client.final().answer["stream-missing"] == "0")
    #expect(try directory.text("t-a.txt") == "0123456789abcdefg")
    #expect(!directory.exists("t-a.gaps"))
  }

  @Test(
    "a recording that a full disk prevents from closing has no empty record of gaps",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func notClosed() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let disk = try SmallDisk(at: directory.path)
      // The time that a busy machine may need to fill the disk.
      let test = try TestServer(in: directory) { $0.finishAfter = .seconds(5) }
      try test.plain("/t.txt", id: "a", offset: 0, Array("0123456789".utf8))
      try Command.run("sh", ["-c", "cat /dev/zero > \(directory.path)/filler"])
      let warning = try test.events.wait(.warning)
      try require(warning.reason?.contains("cannot close t-a.part") == true, "\(warning)")
      try require(!directory.exists("t-a.gaps"), "no empty file is left")
      try disk.resize("2m")
      _ = try test.events.wait(.closed)
      try require(directory.exists("t-a.gaps"), "the end is noted")
    }
  }

  @Test(
    "a recording with the largest number of gaps is closed before the next one, and its stream continues in a part",
    arguments: [999, 1000], [false, true])
  func mostGaps(_ count: Int, isResumable: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    try test.plain("/t.txt", id: "a", Array("x".utf8))
    test.stop()
    // A byte follows each gap.
    let stored = String(repeating: "x\0", count: count) + "x"
    let gaps = (0..<count).map { "{\"offset\":\(2 * $0 + 1),\"length\":1,\"cause\":\"not-received\"}\n" }
    try directory.write("t-a.part", Array(stored.utf8))
    try directory.write("t-a.gaps", Array(gaps.joined().utf8))
    test = try TestServer(in: directory)
    // A request without a gap continues the recording in any case.
    let end = stored.utf8.count + 1
    try test.plain("/t.txt", id: "a", offset: end - 1, Array("y".utf8))
    var location: String?
    if isResumable {
      let created = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: \(end + 10)"])
      try test.append(created, at: 0, "zz")
      location = created
    } else {
      try test.plain("/t.txt", id: "a", offset: end + 10, Array("zz".utf8))
    }
    if count < 1000 {
      #expect(try directory.text("t-a.part") == stored + "y" + String(repeating: "\0", count: 10) + "zz")
      #expect(!directory.exists("t-a~2.part"))
    } else {
      let closed = try test.events.wait(.closed)
      #expect(closed.file == "t-a.txt" && closed.offset == UInt64(end) && closed.reason?.contains("gaps") == true)
      #expect(try directory.text("t-a.txt") == stored + "y")
      #expect(try directory.text("t-a~2.part") == "zz")
      let beginning = "{\"offset\":\(end + 10),\"length\":0,\"cause\":\"next-part\"}\n"
      let gap = "{\"offset\":\(end),\"length\":10,\"cause\":\"not-received\"}\n"
      #expect(try directory.text("t-a~2.gaps") == beginning + gap)
    }
    test.stop()
    test = try TestServer(in: directory)
    if let location { #expect(try test.connect().head(location)["upload-offset"] == "2") }
  }

  private static let refusals: [(body: String, status: Int?)] = [
    ("Content-Length: 3\r\n\r\n", nil),
    ("Content-Length: 3\r\nExpect: 100-continue\r\n\r\n", nil),
    ("Content-Length: 0\r\n\r\n", 409),
    ("Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ("Content-Digest: sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:\r\nContent-Length: 3\r\n\r\nabc", 400),
  ]

  @Test(
    "a refused or empty request leaves no hole, and the upload before it continues",
    arguments: refusals.indices, ["", "Upload-Draft-Interop-Version: 8\r\nUpload-Complete: ?1\r\n"])
  func refusedBehindEnd(_ index: Int, fields: String) throws {
    for discards in [false, true] {
      let test = try TestServer { if discards { $0.storage = .discarding } }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      try test.append(location, at: 0, "0123456789")
      let (body, status) = Self.refusals[index]
      let client = try test.connect()
      try client.send("POST /t.txt HTTP/1.1\r\nHost: h\r\nStream-ID: a\r\nStream-Offset: 27\r\n\(fields)\(body)")
      if let status {
        // An upload can be completed later.
        let status = status == 409 && !fields.isEmpty ? 503 : status
        #expect(try client.final().answer.status == status)
      } else {
        client.disconnect()
      }
      #expect(try test.connect().head(location)["upload-offset"] == "10")
      try test.append(location, at: 10, "abcde")
      guard !discards else { continue }
      #expect(try test.directory.text("t-a.part") == "0123456789abcde")
      #expect(!test.directory.exists("t-a.gaps"))
    }
  }
}

/// Random requests of up to three uploads of one stream, and a model of what the server may announce.
private final class HoleSequence {
  private final class Upload {
    let location: String
    let base: Int
    /// The largest offset that was announced to its client.
    var announced = 0
    /// A request that has not ended yet.
    var open: RawClient?

    init(_ location: String, base: Int) { (self.location, self.base) = (location, base) }
  }

  private var random: SplitMix64
  private let discards: Bool
  private let durability: Durability
  private let directory = TemporaryDirectory()
  private var test: TestServer
  private var uploads: [Upload] = []
  /// The end of the stream, and the ranges that never arrived.
  private var length = 0
  private var holes: [Range<Int>] = []
  private var steps: [String] = []

  private var holesEnd: Int { holes.map(\.upperBound).max() ?? 0 }
  /// No byte is zero, because holes contain zeros.
  private func content(_ range: Range<Int>) -> [UInt8] { range.map { UInt8($0 * 31 % 251 + 1) } }

  init(_ random: SplitMix64, discards: Bool, durability: Durability) throws {
    self.random = random
    (self.discards, self.durability) = (discards, durability)
    test = try Self.server(directory, discards, durability)
  }

  private static func server(
    _ directory: TemporaryDirectory, _ discards: Bool, _ durability: Durability
  ) throws -> TestServer {
    try TestServer(in: directory) {
      if discards { $0.storage = .discarding }
      $0.durability = durability
    }
  }

  func run() throws {
    for _ in 0..<24 {
      let upload = uploads.randomElement(using: &random)
      switch (Int.random(in: 0..<12, using: &random), upload) {
      case (0, _) where !discards: try restart()
      case (1, _): try plain()
      case (2...3, let upload?): try hang(upload)
      case (4...8, let upload?): try append(upload)
      default: if uploads.count < 3 { try create() } else { uploads.removeFirst() }
      }
      // A client that does not ask knows an older offset, which must be valid too.
      for upload in uploads where random.chance(60) { try ask(upload) }
    }
    guard !discards else { return }
    uploads = []
    test.stop()
    var expected = content(0..<length)
    for hole in holes { for index in hole { expected[index] = 0 } }
    let stored = length > 0 ? try directory.contents("t-a.part") : []
    #expect(stored == expected, "\(steps)")
  }

  /// A random offset: at the end of the stream, after a hole, or before stored bytes.
  private func place() -> Int {
    switch Int.random(in: 0..<4, using: &random) {
    case 0: length + Int.random(in: 1...9, using: &random)
    case 1: Int.random(in: 0...length, using: &random)
    default: length
    }
  }

  private func reached(_ offset: Int, count: Int) {
    if offset > length {
      holes.append(length..<offset)
      length = offset
    }
    length = max(length, offset + count)
  }

  private func create() throws {
    let (offset, count) = (place(), [0, Int.random(in: 1...20, using: &random)].randomElement(using: &random) ?? 0)
    steps.append("create at \(offset) with \(count)")
    let client = try test.connect()
    try client.request(
      "POST", "/t.txt",
      ["Upload-Complete: ?0", "Stream-ID: a", "Stream-Offset: \(offset)", "Content-Length: \(count)"])
    try client.send(content(offset..<(offset + count)))
    let answer = try client.final().answer
    #expect(answer.status == (offset < holesEnd ? 409 : 201), "\(steps): \(answer)")
    guard let location = answer["location"], answer.status == 201 else { return }
    // A creation without content does not begin a recording.
    if count > 0 { reached(offset, count: count) }
    let upload = Upload(location, base: offset)
    upload.announced = count
    uploads.append(upload)
  }

  private func plain() throws {
    let (offset, count) = (max(place(), holesEnd), Int.random(in: 1...20, using: &random))
    steps.append("plain request at \(offset) with \(count)")
    try test.plain("/t.txt", id: "a", offset: offset, content(offset..<(offset + count)))
    reached(offset, count: count)
  }

  private func isOvertaken(_ upload: Upload) -> Bool { upload.base < holesEnd }

  private func ask(_ upload: Upload) throws {
    let answer = try test.connect().head(upload.location)
    upload.open = nil
    guard !isOvertaken(upload) else {
      #expect(answer.status == 410, "\(steps): \(answer)")
      return
    }
    // The offset may include bytes that others have sent, or require the client to repeat them.
    let offset = answer["upload-offset"].flatMap { Int($0) } ?? -1
    let possible = upload.announced...max(upload.announced, length - upload.base)
    #expect(answer.status == 204 && possible.contains(offset), "\(steps): \(answer), and not in \(possible)")
    upload.announced = max(upload.announced, offset)
  }

  /// An append at the announced offset succeeds, whatever others have sent since.
  private func append(_ upload: Upload) throws {
    let (start, count) = (upload.base + upload.announced, Int.random(in: 1...20, using: &random))
    steps.append("append at \(start) with \(count)")
    let client = try test.connect()
    try client.patch(upload.location, at: upload.announced, ["Content-Length: \(count)"])
    try client.send(content(start..<(start + count)))
    let answer = try client.final().answer
    #expect(answer.status == (isOvertaken(upload) ? 410 : 204), "\(steps): \(answer)")
    if isOvertaken(upload) { return }
    reached(start, count: count)
    (upload.announced, upload.open) = (upload.announced + count, nil)
  }

  /// Begins an append that has not ended when the next request arrives.
  private func hang(_ upload: Upload) throws {
    if isOvertaken(upload) { return }
    let (start, count) = (upload.base + upload.announced, Int.random(in: 1...20, using: &random))
    steps.append("open append at \(start) with \(count)")
    let client = try test.connect()
    try client.patch(upload.location, at: upload.announced, chunked: true)
    try client.sendChunk(content(start..<(start + count)))
    try client.awaitProgress(upload.announced + count)
    (upload.announced, upload.open) = (upload.announced + count, client)
    reached(start, count: count)
  }

  private func restart() throws {
    // A server without requests passes on exactly what it knew.
    for _ in 0..<Int.random(in: 1...3, using: &random) {
      steps.append("restart")
      test.stop()
      test = try Self.server(directory, discards, durability)
    }
  }
}
