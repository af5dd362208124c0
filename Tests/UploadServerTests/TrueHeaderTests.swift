// Tests that finished WAV files have true sizes, and that this does not affect what a client may ask for again.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import Testing
import UploadServer

/// A WAV head from a program that cannot seek.
struct StreamedHead: Sendable, CustomTestStringConvertible {
  var testDescription: String
  var bytes: [UInt8]
  var frameLength = 4
  var hasRoom = false

  private static func little(_ number: UInt64, _ count: Int) -> [UInt8] {
    (0..<count).map { UInt8(truncatingIfNeeded: number >> (8 * $0)) }
  }

  init(
    _ name: String, riff: UInt32 = .max, data: UInt32 = .max, tag: UInt16 = 1, channels: UInt16 = 2,
    bytesPerSample: UInt16 = 2, fact: UInt32? = nil, junk: Int? = nil, isExtensible: Bool = false
  ) {
    testDescription = name
    frameLength = Int(channels * bytesPerSample)
    hasRoom = junk.map { $0 >= 28 } ?? false
    bytes = Array("RIFF".utf8) + Self.little(UInt64(riff), 4) + Array("WAVE".utf8)
    if let junk { bytes += Array("JUNK".utf8) + Self.little(UInt64(junk), 4) + [UInt8](repeating: 0, count: junk) }
    let formatLength: UInt64 = isExtensible ? 40 : tag == 3 ? 18 : 16
    bytes += Array("fmt ".utf8) + Self.little(formatLength, 4) + Self.little(isExtensible ? 0xFFFE : UInt64(tag), 2)
    bytes += Self.little(UInt64(channels), 2) + Self.little(48_000, 4)
    bytes += Self.little(48_000 * UInt64(frameLength), 4) + Self.little(UInt64(frameLength), 2)
    bytes += Self.little(UInt64(bytesPerSample) * 8, 2)
    if isExtensible {
      // The valid bits, no speaker positions, and the tag as a GUID.
      bytes += Self.little(22, 2) + Self.little(UInt64(bytesPerSample) * 8, 2) + Self.little(0, 4)
      bytes += Self.little(UInt64(tag), 2) + [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71]
    } else if tag == 3 {
      bytes += [0, 0]
    }
    if let fact { bytes += Array("fact".utf8) + Self.little(4, 4) + Self.little(UInt64(fact), 4) }
    bytes += Array("data".utf8) + Self.little(UInt64(data), 4)
  }

  static let all = [
    StreamedHead("sluice mic", junk: 28),
    StreamedHead("ffmpeg"),
    StreamedHead("sox", riff: 0x7FFF_F024, data: 0x7FFF_F000),
    StreamedHead("arecord", riff: 0x8000_0024, data: 0x8000_0000),
    StreamedHead("zeros", riff: 0, data: 0),
    StreamedHead("GStreamer", riff: 36, data: 0),
    StreamedHead("mono", channels: 1, junk: 28),
    StreamedHead("floating point", tag: 3, bytesPerSample: 4, fact: .max, junk: 28),
    StreamedHead("little room", junk: 12),
  ]

  /// `sluice mic` with 24 bits.
  static let extensible = StreamedHead("extensible", bytesPerSample: 3, junk: 28, isExtensible: true)

  /// The head that the finished file must have.
  func finished(sampleByteCount: Int) -> [UInt8] {
    let frames = sampleByteCount / frameLength
    var head = bytes
    head.replaceSubrange(4..<8, with: Self.little(UInt64(frames * frameLength + bytes.count - 8), 4))
    head.replaceSubrange((bytes.count - 4)..., with: Self.little(UInt64(frames * frameLength), 4))
    if bytes.starts(with: "fact".utf8) || testDescription == "floating point" {
      head.replaceSubrange((bytes.count - 12)..<(bytes.count - 8), with: Self.little(UInt64(frames), 4))
    }
    return head
  }
}

/// How a stream ends.
enum StreamEnd: CaseIterable, Sendable {
  case plain, upload, plainClosed, uploadClosed, continuedAfterRestart
}

@Suite("Correct headers of finished WAV files")
struct TrueHeaderTests {
  private static func server(
    _ directory: TemporaryDirectory, _ durability: Durability = .interval, finishAfter: Duration = .seconds(60)
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.durability = durability
      $0.finishAfter = finishAfter
    }
  }

  private static func sidecar(_ directory: TemporaryDirectory, _ name: String = "k-a.sidecar") throws
    -> RecordingSidecar
  {
    try waitUntil("\(name) is written") { directory.exists(name) }
    return try RecordingSidecar(parsing: try directory.contents(name))
  }

  /// Sends a stream, ends it, and returns the server.
  private static func send(
    _ stream: [UInt8], ending end: StreamEnd, _ directory: TemporaryDirectory, _ durability: Durability
  ) throws {
    let path = "/k.wav"
    // The cut is within the head.
    let cut = 41
    switch end {
    case .plain:
      let test = try server(directory, durability)
      let client = try test.connect()
      try client.send(TestServer.head(path, type: "audio/wav"))
      try client.sendChunk(stream)
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
      // A client that lost the answer repeats its request, and the server compares the head with the one sent before.
      let again = try test.connect()
      try again.send(TestServer.head(path, type: "audio/wav"))
      try again.sendChunk(stream)
      try again.send("0\r\n\r\n")
      #expect(try again.answer().status == 200)
      var other = stream
      other[4] ^= 1
      let different = try test.connect()
      try different.send(TestServer.head(path, type: "audio/wav"))
      try different.sendChunk(other)
      #expect(try different.answer().status == 409)
      _ = try sidecar(directory)
    case .upload:
      let test = try server(directory, durability)
      let location = try test.create(path, ["Stream-ID: a", "Content-Type: audio/wav"])
      try test.append(location, at: 0, Array(stream[..<cut]))
      try test.append(location, at: cut, completes: true, Array(stream[cut...]))
      _ = try sidecar(directory)
    case .plainClosed:
      let test = try server(directory, durability, finishAfter: .milliseconds(100))
      try test.plain(path, id: "a", type: "audio/wav", stream)
      _ = try test.events.wait(.closed)
      _ = try sidecar(directory)
    case .uploadClosed:
      let test = try server(directory, durability, finishAfter: .milliseconds(100))
      let location = try test.create(path, ["Stream-ID: a", "Content-Type: audio/wav"])
      try test.append(location, at: 0, stream)
      _ = try test.events.wait(.closed)
      _ = try sidecar(directory)
    case .continuedAfterRestart:
      var location = ""
      do {
        let test = try server(directory, durability)
        location = try test.create(path, ["Stream-ID: a", "Content-Type: audio/wav"])
        try test.append(location, at: 0, Array(stream[..<cut]))
      }
      let test = try server(directory, durability)
      try test.append(location, at: cut, completes: true, Array(stream[cut...]))
      _ = try sidecar(directory)
    }
  }

  @Test(
    "a live WAV stream has its correct sizes when it is finished, for every kind of header and every end",
    arguments: StreamedHead.all + [StreamedHead.extensible], StreamEnd.allCases)
  func sizes(_ head: StreamedHead, _ end: StreamEnd) throws {
    for (count, durability) in [(400, Durability.interval), (0, .always), (4 * 1001 + 3, .none)] {
      let directory = TemporaryDirectory()
      let samples = (0..<count).map { UInt8(truncatingIfNeeded: $0 &* 31) }
      let stream = head.bytes + samples + (count == 0 ? [1] : [])
      let sampleByteCount = stream.count - head.bytes.count
      let begun = WallClock(seconds: WallClock.now.seconds - 1).iso8601
      try Self.send(stream, ending: end, directory, durability)
      let finished = head.finished(sampleByteCount: sampleByteCount)
      #expect(try directory.contents("k-a.wav") == finished + stream[head.bytes.count...], "\(count) \(durability)")
      let sidecar = try Self.sidecar(directory)
      #expect(sidecar.receivedHead == (finished == head.bytes ? [] : head.bytes))
      #expect(sidecar.received?.bytes == UInt64(stream.count) && sidecar.stored?.bytes == UInt64(stream.count))
      #expect(try sha256(stream) == sidecar.received?.sha256)
      #expect(try sha256(finished + stream[head.bytes.count...]) == sidecar.stored?.sha256)
      #expect(sidecar.state == ([.plainClosed, .uploadClosed].contains(end) ? .interrupted : .complete))
      #expect(sidecar.isLive && sidecar.file == "k-a.wav" && sidecar.ended != nil)
      let started = try #require(sidecar.started)
      #expect(started >= begun && started <= sidecar.ended ?? "", "\(started)")
    }
  }

  @Test("ffprobe, sox and Python find every frame", arguments: StreamedHead.all + [StreamedHead.extensible])
  func judged(_ head: StreamedHead) throws {
    let directory = TemporaryDirectory()
    // The last frame is incomplete.
    let stream = head.bytes + [UInt8](repeating: 0, count: head.frameLength * 4800 + 1)
    try Self.send(stream, ending: .plainClosed, directory, .interval)
    let judgement = try WAVJudgement(directory.path + "/k-a.wav")
    #expect(judgement.ffprobe == 4800 && judgement.sox == 4800, "\(judgement)")
    // Python's wave module reads only plain PCM.
    if !["floating point", "extensible"].contains(head.testDescription) {
      #expect(judgement.python == 4800, "\(judgement)")
    }
  }

  @Test("Chromium finds the duration of a finished recording with 16 bits, floating point or an extensible header")
  func chromium() throws {
    let directory = TemporaryDirectory()
    let test = try Self.server(directory)
    let floatingPoint = try #require(StreamedHead.all.first { $0.testDescription == "floating point" })
    let heads = [StreamedHead.all[0], floatingPoint, StreamedHead.extensible]
    for (id, head) in zip(["a", "b", "c"], heads) {
      let client = try test.connect()
      try client.send(TestServer.head("/k.wav", id: id, type: "audio/wav"))
      try client.sendChunk(head.bytes + [UInt8](repeating: 0, count: head.frameLength * 24_000))
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
    }
    let durations = try chromiumDurations(["a", "b", "c"].map { "\(directory.path)/k-\($0).wav" })
    #expect(durations == [0.5, 0.5, 0.5])
    // A control: Chromium rejects a file that is not a WAV file.
    try directory.write("control.wav", [UInt8](repeating: 7, count: 1000))
    #expect(try chromiumDurations([directory.path + "/control.wav"]).first?.isNaN == true)
  }

  @Test("a file of announced length, and a stream with correct sizes, are stored unchanged")
  func untouched() throws {
    for head in StreamedHead.all {
      let stream = head.bytes + [UInt8](repeating: 7, count: 200)
      let trueStream = head.finished(sampleByteCount: 200) + [UInt8](repeating: 7, count: 200)
      let test = try TestServer()
      let client = try test.connect()
      // A plain request with a length.
      try client.send(
        TestServer.head("/k.wav", id: "a", type: "audio/wav", framing: "Content-Length: \(stream.count)"))
      try client.send(stream)
      #expect(try client.answer().status == 201)
      // An upload with a length.
      let location = try test.create(
        "/k.wav", ["Stream-ID: b", "Content-Type: audio/wav", "Upload-Length: \(stream.count)"])
      try test.append(location, at: 0, completes: true, stream)
      // A live stream with true sizes.
      try client.send(TestServer.head("/k.wav", id: "c", type: "audio/wav"))
      try client.sendChunk(trueStream)
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
      // A live stream whose type is not WAV.
      try client.send(TestServer.head("/k.bin", id: "d", type: "application/octet-stream"))
      try client.sendChunk(stream)
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
      for (name, content, isLive) in [
        ("k-a.wav", stream, false), ("k-b.wav", stream, false), ("k-c.wav", trueStream, true),
        ("k-d.bin", stream, true),
      ] {
        let sidecar = try Self.sidecar(test.directory, String(name.dropLast(4)) + ".sidecar")
        #expect(try test.directory.contents(name) == content, "\(head.testDescription) \(name)")
        #expect(sidecar.isLive == isLive && sidecar.receivedHead.isEmpty && sidecar.file == name)
        #expect(try sha256(content) == sidecar.stored?.sha256)
      }
    }
  }

  @Test("a header of more than 2 GiB whose sizes are correct stays, with the chunks after the samples")
  func largeUntouched() throws {
    let directory = TemporaryDirectory()
    let test = try Self.server(directory, .interval)
    let samples: UInt32 = 0x8000_0004
    for (id, size, isCorrect) in [("a", 26, true), ("b", 27, true), ("c", 26, false)] {
      let list = Array("LIST".utf8) + [UInt8(size), 0, 0, 0] + [UInt8](repeating: 5, count: size)
      let head =
        isCorrect
        ? StreamedHead("correct", riff: 36 + samples + UInt32(list.count), data: samples) : StreamedHead("open")
      // The samples are a hole, which takes no disk space.
      try test.plain("/k.wav", id: id, type: "audio/wav", head.bytes)
      let client = try test.connect()
      try client.send(TestServer.head("/k.wav", id: id, offset: head.bytes.count + Int(samples), type: "audio/wav"))
      try client.sendChunk(list + (size % 2 == 0 ? [] : [0]))
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 200)
      let descriptor = open(directory.path + "/k-\(id).wav", O_RDONLY)
      defer { close(descriptor) }
      var start = [UInt8](repeating: 0, count: 44)
      read(descriptor, &start, 44)
      #expect(
        start == (isCorrect ? head.bytes : head.finished(sampleByteCount: Int(samples) + list.count)), "\(id)")
    }
  }

  /// The files of a server that dies between two steps of completing a recording.
  enum Death: CaseIterable, Sendable {
    case described, corrected, named, halfNewSidecar, halfPendingSidecar
  }

  @Test(
    "if a server dies while it finishes a recording, the next server completes it, and the result is the same",
    arguments: Death.allCases, [Durability.always, .interval, .none])
  func death(_ death: Death, _ durability: Durability) throws {
    let head = StreamedHead.all[0]
    let samples = (0..<999).map { UInt8(truncatingIfNeeded: $0 &* 31) }
    let stream = head.bytes + samples
    let directory = TemporaryDirectory()
    try Self.send(stream, ending: .plain, directory, durability)
    let (finished, finishedSidecar) = (try directory.contents("k-a.wav"), try directory.contents("k-a.sidecar"))
    var sidecar = try RecordingSidecar(parsing: finishedSidecar)
    sidecar.received?.sha256 = nil
    sidecar.stored?.sha256 = nil
    func write(_ bytes: [UInt8], _ name: String) throws {
      let descriptor = open("\(directory.path)/\(name)", O_WRONLY | O_CREAT | O_TRUNC, 0o644)
      guard descriptor >= 0, Glibc.write(descriptor, bytes, bytes.count) == bytes.count else {
        throw TestFailure("write \(name)")
      }
      close(descriptor)
    }
    for name in ["k-a.wav", "k-a.sidecar"] { unlink("\(directory.path)/\(name)") }
    let pending = Array(sidecar.text.utf8)
    switch death {
    case .described:
      try write(stream, "k-a.part")
      try write(pending, ".k-a.sidecar")
    case .corrected:
      try write(finished, "k-a.part")
      try write(pending, ".k-a.sidecar")
    case .named:
      try write(finished, "k-a.wav")
      try write(pending, ".k-a.sidecar")
    case .halfNewSidecar:
      try write(finished, "k-a.wav")
      try write(pending, ".k-a.sidecar")
      try write(Array(pending.dropLast(9)), ".k-a.sidecar~")
    case .halfPendingSidecar:
      try write(stream, "k-a.part")
      try write(Array(pending.dropLast(9)), ".k-a.sidecar~")
    }
    let test = try Self.server(directory, durability)
    if death == .named || death == .halfNewSidecar {
      // No request is needed.
      _ = try Self.sidecar(directory)
    }
    // The client has no answer. It sends everything again, and the server compares it with the stored bytes.
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", type: "audio/wav"))
    try client.sendChunk(stream)
    try client.send("0\r\n\r\n")
    #expect([200, 201].contains(try client.answer().status))
    let last = try Self.sidecar(directory)
    #expect(try directory.contents("k-a.wav") == finished)
    #expect(try sha256(finished) == last.stored?.sha256)
    #expect(try sha256(stream) == last.received?.sha256)
    try waitUntil("no hidden file is left") { !directory.exists(".k-a.sidecar") }
  }

  @Test("a recording whose final name is refused continues with the received header")
  func refusedName() throws {
    let head = StreamedHead.all[0]
    let stream = head.bytes + [UInt8](repeating: 9, count: 100)
    let test = try TestServer()
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", type: "audio/wav"))
    try client.sendChunk(stream)
    _ = try test.events.wait(.begun)
    // Another program puts a recording there.
    let foreign = test.directory.path + "/k-a.wav"
    close(open(foreign, O_WRONLY | O_CREAT, 0o644))
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 500)
    #expect(try test.directory.contents("k-a.part") == stream)
    unlink(foreign)
    let again = try test.connect()
    try again.send(TestServer.head("/k.wav", type: "audio/wav"))
    try again.sendChunk(stream)
    try again.send("0\r\n\r\n")
    #expect(try again.answer().status == 200)
    try waitUntil("it is finished") { test.directory.exists("k-a.sidecar") }
    #expect(try test.directory.contents("k-a.wav") == head.finished(sampleByteCount: 100) + stream[head.bytes.count...])
  }

  @Test(
    "beyond 4 GiB, a header with space becomes an RF64 header for ffprobe, sox and Chromium, and one without stays"
  )
  func large() throws {
    let directory = TemporaryDirectory()
    let test = try Self.server(directory, .interval)
    let frames = UInt64(5) << 28
    for (id, head) in [("a", StreamedHead.all[0]), ("b", StreamedHead.all[1])] {
      try test.plain("/k.wav", id: id, type: "audio/wav", head.bytes)
      let client = try test.connect()
      // All frames except the last are missing. They form a hole, which takes no disk space.
      let last = head.bytes.count + Int(frames - 1) * 4
      try client.send(TestServer.head("/k.wav", id: id, offset: last, type: "audio/wav"))
      try client.sendChunk([1, 2, 3, 4])
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 200)
    }
    let judgement = try WAVJudgement(directory.path + "/k-a.wav", readsAll: false)
    #expect(judgement.ffprobe == Int(frames) && judgement.sox == Int(frames), "\(judgement)")
    let durations = try chromiumDurations([directory.path + "/k-a.wav"])
    #expect(durations.count == 1 && abs(durations[0] - Double(frames) / 48_000) < 0.001, "\(durations)")
    let descriptor = open(directory.path + "/k-b.wav", O_RDONLY)
    defer { close(descriptor) }
    var start = [UInt8](repeating: 0, count: 44)
    read(descriptor, &start, 44)
    #expect(start == StreamedHead.all[1].bytes)
  }

  private func sha256(_ bytes: [UInt8]) throws -> String {
    let scratch = TemporaryDirectory()
    let descriptor = open(scratch.path + "/f", O_WRONLY | O_CREAT, 0o644)
    _ = Glibc.write(descriptor, bytes, bytes.count)
    close(descriptor)
    try Command.run("sha256sum", [scratch.path + "/f"], output: scratch.path + "/s")
    return String(try scratch.text("s").prefix(64))
  }
}
