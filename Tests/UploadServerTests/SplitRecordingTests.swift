// Tests a live WAV stream in several files: together they are the stream, whatever happens to server and client.

import Digests
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import ResumableUploads
import SyncGate
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Recordings that are split")
struct SplitRecordingTests {
  /// A stored file of the stream.
  private struct Piece {
    var sidecar: RecordingSidecar
    var bytes: [UInt8]
  }

  /// All finished files of the stream, in order.
  private static func pieces(_ directory: TemporaryDirectory) throws -> [Piece] {
    try directory.names.filter { $0.hasPrefix("k-a") && $0.hasSuffix(".wav") }.map { name in
      let sidecar = String(name.dropLast(4)) + ".sidecar"
      try waitUntil("\(sidecar) is written") { directory.exists(sidecar) }
      return Piece(
        sidecar: try RecordingSidecar(parsing: try directory.contents(sidecar)), bytes: try directory.contents(name))
    }.sorted { $0.sidecar.part < $1.sidecar.part }
  }

  /// Checks that the files form the stream: each is a WAV file with true sizes, begins where the previous one ends, and
  /// contains whole frames.
  ///
  /// - Parameter limit: the most bytes of samples in a file; nil if gaps or digests make some files longer.
  /// - Returns: the number of cuts.
  @discardableResult
  private static func check(
    _ directory: TemporaryDirectory, _ stream: [UInt8], _ head: StreamedHead, limit: Int?, least: Int = 2,
    _ comment: Comment
  ) throws -> Int {
    let pieces = try pieces(directory)
    #expect(pieces.count >= least, comment)
    var position = 0
    for (index, piece) in pieces.enumerated() {
      let start = index == 0 ? head.bytes.count : Int(piece.sidecar.offset)
      #expect(start == (index == 0 ? head.bytes.count : position), "\(comment) part \(piece.sidecar.part)")
      let samples = piece.bytes.count - head.bytes.count
      guard start + samples <= stream.count, samples >= 0 else {
        Issue.record("\(comment): part \(piece.sidecar.part) has \(samples) bytes of samples at \(start)")
        return 0
      }
      let expected = head.finished(sampleByteCount: samples) + stream[start..<(start + samples)]
      #expect(piece.bytes == expected, "\(comment) part \(piece.sidecar.part)")
      let isLast = index == pieces.count - 1
      #expect(isLast || samples % head.frameLength == 0, comment)
      if let limit { #expect(isLast ? samples <= limit : samples == limit, "\(comment): \(samples)") }
      #expect(piece.sidecar.state == (isLast ? .complete : .split), comment)
      #expect(piece.sidecar.part == index + 1 && piece.sidecar.stream == "a" && piece.sidecar.isLive, comment)
      position = start + samples
    }
    #expect(position == stream.count, comment)
    var findings: [RecordingVerification.Finding] = []
    let summary = try RecordingVerification(directory: directory.path).run { findings.append($0) }
    #expect(summary.problems == 0 && summary.verified == pieces.count, "\(comment): \(findings)")
    let left = directory.names.filter { $0.hasSuffix(".part") }
    #expect(left.isEmpty, "\(comment): \(left)")
    return pieces.count - 1
  }

  /// Splits even into files of a few bytes.
  private static func split(duration: Duration? = nil, size: UInt64? = nil) -> RecordingSplit {
    var split = RecordingSplit(duration: duration, size: size)
    split.leastLength = 0
    return split
  }

  private static func samples(_ count: Int) -> [UInt8] {
    (0..<count).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 11) }
  }

  private static func server(
    _ directory: TemporaryDirectory, _ split: RecordingSplit?, _ durability: Durability,
    finishAfter: Duration = .seconds(60)
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.split = split
      $0.durability = durability
      $0.finishAfter = finishAfter
    }
  }

  @Test("a head beyond 4 GiB states in its fact chunk that the sizes are elsewhere")
  func largeFact() throws {
    func little(_ number: Int, _ count: Int) -> [UInt8] {
      (0..<count).map { UInt8(truncatingIfNeeded: number >> (8 * $0)) }
    }
    var bytes = Array("RIFF".utf8) + little(0, 4) + Array("WAVEJUNK".utf8) + little(28, 4) + little(0, 28)
    bytes += Array("fmt ".utf8) + little(16, 4) + little(1, 2) + little(1, 2) + little(48_000, 4) + little(96_000, 4)
    bytes += little(2, 2) + little(16, 2) + Array("fact".utf8) + little(4, 4) + little(0, 4)
    bytes += Array("data".utf8) + little(0, 4)
    let head = try #require(WAVHead(bytes))
    let finished = try #require(head.finished(fileLength: UInt64(bytes.count) + (6 << 30)))
    let fact = bytes.count - 12
    #expect(finished[fact..<(fact + 4)].allSatisfy { $0 == 255 })
    #expect(finished.starts(with: Array("RF64".utf8)) && Array(finished[36..<44]) == little(3 << 30, 8))
    let small = try #require(head.finished(fileLength: UInt64(bytes.count) + 2000))
    #expect(Array(small[fact..<(fact + 4)]) == little(1000, 4))
  }

  @Test(
    "a split leaves room for whole frames up to the limit, and for the rest of a frame beyond it",
    arguments: Seed.several(3))
  func room(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<2000 {
      let channels = UInt16.random(in: 1...9, using: &random)
      let bytes = try #require([1, 2, 3, 4].randomElement(using: &random))
      let streamed = StreamedHead("any", channels: channels, bytesPerSample: UInt16(bytes))
      let head = try #require(WAVHead(streamed.bytes))
      let size = random.chance(60) ? UInt64.random(in: 0...(random.chance(50) ? 300 : .max), using: &random) : nil
      let time = random.chance(60) ? Duration.microseconds(Int64.random(in: 0...1_000_000, using: &random)) : nil
      let split = Self.split(duration: time, size: size)
      let frame = UInt64(streamed.frameLength)
      var limits: [UInt64] = []
      if let size { limits.append(size < 44 ? 0 : (size - 44) / frame * frame) }
      if let time { limits.append(UInt64(time.components.attoseconds / 1_000_000_000_000_000) * 48 * frame) }
      if let time, time.components.seconds > 0 { limits[limits.count - 1] = 48_000 * frame }
      let limit = limits.min().map { max(frame, $0) }
      #expect(split.dataLength(head) == limit, "\(streamed.frameLength) \(split)")
      guard let limit, limit < 1 << 62 else { continue }
      let data = UInt64.random(in: 0...(limit + 3 * frame), using: &random)
      let room = try #require(split.room(head, fileLength: 44 + data))
      #expect((data + room) % frame == 0 && (data < limit ? data + room == limit : room < frame))
    }
    // One frame per second, according to the head.
    var slow = StreamedHead("slow").bytes
    slow.replaceSubrange(24..<28, with: [1, 0, 0, 0])
    #expect(RecordingSplit(duration: .seconds(10)).dataLength(try #require(WAVHead(slow))) == 65_536)
    let done = try #require(WAVHead(StreamedHead("true", riff: 136, data: 100).bytes))
    #expect(Self.split(size: 50).room(done, fileLength: 60) == nil)
  }

  /// How the stream is sent.
  enum Sender: CaseIterable, Sendable { case plain, upload }

  /// The least number of cuts in each of the six cases of `product`; 0 for a few seeds. `make cuts` sets the sum.
  private static let leastCuts = ((getenv("SLUICE_CUTS").flatMap { Int(String(cString: $0)) } ?? 0) + 5) / 6

  @Test(
    "the files of a stream are the stream: by size or time, with restarts, repeated bytes and gaps",
    arguments: Sender.allCases, [Durability.always, .interval, .none])
  func product(_ sender: Sender, _ durability: Durability) throws {
    let seeds = Seed.several(max(6, Self.leastCuts))
    var cuts = 0
    for (index, seed) in seeds.enumerated() where index < 6 || cuts < Self.leastCuts {
      var random = seed.generator
      let head = try #require(StreamedHead.all.filter { $0.frameLength > 1 }.randomElement(using: &random))
      // A file must not be shorter than the bytes that are searched for a head.
      let limit = Int.random(in: 2...60, using: &random) * 48 * head.frameLength
      let split =
        random.chance(50)
        ? Self.split(size: UInt64(head.bytes.count + limit + Int.random(in: 0..<head.frameLength, using: &random)))
        : Self.split(duration: .milliseconds(limit / 48 / head.frameLength))
      var stream =
        head.bytes
        + Self.samples(limit * Int.random(in: 2...7, using: &random) + Int.random(in: 1..<limit, using: &random))
      let directory = TemporaryDirectory()
      var test = try Self.server(directory, split, durability)
      var location = ""
      if sender == .upload {
        location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
      }
      var (position, hasGap, missing) = (0, false, 0)
      while position < stream.count {
        if random.chance(25) {
          test.stop()
          test = try Self.server(directory, split, durability)
        }
        var start = position
        // A plain client that does not know what has arrived repeats some bytes.
        if sender == .plain, random.chance(40), position > 0 {
          start = Int.random(in: (hasGap ? max(0, position - 10) : 0)...position, using: &random)
        } else if sender == .plain, random.chance(15), position > head.bytes.count, position + 1 < stream.count {
          let length = Int.random(in: 1...min(stream.count - position - 1, 3 * limit), using: &random)
          for index in position..<(position + length) { stream[index] = 0 }
          (start, hasGap) = (position + length, true)
          missing += length
        }
        let end = min(stream.count, start + max(1, Int.random(in: 0...(2 * limit), using: &random)))
        let isLast = end == stream.count
        let bytes = Array(stream[start..<end])
        switch sender {
        case .upload: try test.append(location, at: start, completes: isLast, bytes)
        case .plain where isLast:
          let client = try test.connect()
          try client.send(TestServer.head("/k.wav", offset: start, type: "audio/wav"))
          try client.sendChunk(bytes)
          try client.send("0\r\n\r\n")
          let answer = try client.answer()
          #expect(
            [200, 201].contains(answer.status) && answer["stream-offset"] == "\(stream.count)", "\(answer) \(seed)")
          #expect(answer["stream-missing"] == "\(missing)", "\(answer) \(seed)")
        case .plain:
          let event = try test.plain("/k.wav", id: "a", offset: start, type: "audio/wav", bytes)
          #expect(event.status == nil, "refused: \(event) \(seed)")
        }
        position = max(position, end)
      }
      cuts += try Self.check(directory, stream, head, limit: hasGap ? nil : limit, least: hasGap ? 1 : 2, "\(seed)")
    }
    // A seed from the environment is the only one.
    #expect(cuts >= Self.leastCuts || seeds.count == 1, "\(cuts) cuts")
  }

  /// What an upload states about its digest, and what happens to the files before its end.
  enum Compared: CaseIterable, Sendable { case right, wrong, wanted, movedAway, sidecarMovedAway }

  @Test(
    "an upload in several files is compared with its Repr-Digest, even by the next server",
    arguments: Compared.allCases, Seed.several(3))
  func digests(_ compared: Compared, _ seed: Seed) throws {
    var random = seed.generator
    for round in 0..<4 {
      let head = try #require(StreamedHead.all.filter { $0.frameLength > 1 }.randomElement(using: &random))
      // The worker reads everything beyond 1 MiB.
      let limit =
        round == 0 ? 400_000 * head.frameLength : Int.random(in: 2...60, using: &random) * 48 * head.frameLength
      let split = Self.split(size: UInt64(head.bytes.count + limit))
      let stream = head.bytes + Self.samples(limit * Int.random(in: 2...4, using: &random) + limit / 2)
      let digest = Digest(.sha256, of: stream.span.bytes).base64
      let field =
        switch compared {
        case .right, .movedAway, .sidecarMovedAway: "Repr-Digest: sha-256=:\(digest):"
        case .wrong: "Repr-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"
        case .wanted: "Want-Repr-Digest: sha-256=1"
        }
      let directory = TemporaryDirectory()
      var test = try Self.server(directory, split, .none)
      let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav", field])
      var position = 0
      let last = stream.count - Int.random(in: 1..<(limit / 2), using: &random)
      while position < last {
        let end = min(last, position + Int.random(in: 1...limit, using: &random))
        try test.append(location, at: position, Array(stream[position..<end]))
        position = end
        guard position == last || random.chance(30) else { continue }
        if position == last, compared == .sidecarMovedAway {
          try waitUntil("the first file has its sidecar") { directory.exists("k-a.sidecar") }
        }
        test.stop()
        if position == last, compared == .movedAway { unlink(directory.path + "/k-a.wav") }
        if position == last, compared == .sidecarMovedAway { unlink(directory.path + "/k-a.sidecar") }
        test = try Self.server(directory, split, .none)
      }
      let client = try test.connect()
      try client.patch(location, at: position, completes: true, ["Content-Length: \(stream.count - position)"])
      try client.send(Array(stream[position...]))
      let answer = try client.final().answer
      let comment: Comment = "\(compared), round \(round), \(seed): \(answer)"
      switch compared {
      case .right, .wanted:
        #expect((200...201).contains(answer.status), comment)
        #expect(compared == .right || answer["repr-digest"] == "sha-256=:\(digest):", comment)
        try Self.check(directory, stream, head, limit: limit, comment)
      case .wrong: #expect(answer.status == 400, comment)
      case .movedAway, .sidecarMovedAway:
        #expect((200...201).contains(answer.status) && answer["repr-digest"] == nil, comment)
        #expect(test.events.all.contains { $0.kind == .warning && $0.reason?.contains("Repr-Digest") == true }, comment)
      }
    }
  }

  @Test("a digest waits until a server that lacks descriptors can read the head of the first file")
  func digestInShortage() async {
    await #expect(processExitsWith: .success) {
      let (head, directory) = (StreamedHead.all[0], TemporaryDirectory())
      let limit = 48 * head.frameLength
      var split = RecordingSplit(duration: nil, size: UInt64(head.bytes.count + limit))
      split.leastLength = 0
      let chosen = split
      func server() throws -> TestServer {
        try TestServer(in: directory) { $0.split = chosen }
      }
      let stream = head.bytes + (0..<(limit * 3)).map { UInt8(truncatingIfNeeded: $0) }
      let digest = Digest(.sha256, of: stream.span.bytes).base64
      let first = try server()
      let location = try first.create(
        "/k.wav", ["Stream-ID: a", "Content-Type: audio/wav", "Repr-Digest: sha-256=:\(digest):"])
      try first.append(location, at: 0, Array(stream.dropLast(9)))
      try waitUntil("the first file has its sidecar") { directory.exists("k-a.sidecar") }
      first.stop()
      let test = try server()
      open_gate_fail(EMFILE, "/k-a.sidecar")
      var answer = try test.connect().head(location)
      for _ in 0..<3 {
        let offset = Int(answer["upload-offset"] ?? "") ?? -1
        let client = try test.connect()
        try client.patch(location, at: offset, completes: true, ["Content-Length: \(stream.count - offset)"])
        try client.send(Array(stream[offset...]))
        answer = try client.final().answer
        try require(answer.status == 503 && answer["retry-after"] != nil, "\(answer)")
        answer = try test.connect().head(location)
        try require(answer.status == 204, "\(answer)")
      }
      open_gate_fail(0, "")
      let client = try test.connect()
      try client.patch(location, at: stream.count, completes: true, ["Content-Length: 0"])
      answer = try client.final().answer
      try require((200...201).contains(answer.status), "\(answer)")
      test.stop()
    }
  }

  @Test(
    "a frame is recorded at the time that its clock shows, even after steps of the clock", arguments: Seed.several(5))
  func clock(_ seed: Seed) throws {
    var random = seed.generator
    let head = try #require(WAVHead(StreamedHead.all[0].bytes))
    for _ in 0..<100 {
      var clock = try #require(StreamClock(started: 0, first: 80, head))
      let frames = 300
      clock.started = Int64.random(in: 0...5000, using: &random)
      clock.rate = UInt64.random(in: 1...3000, using: &random)
      clock.frameLength = UInt64.random(in: 1...8, using: &random)
      clock.steps = (0..<Int.random(in: 0...3, using: &random)).map { _ in
        .init(
          offset: UInt64.random(in: 81...(80 + 8 * UInt64(frames)), using: &random),
          milliseconds: Int64.random(in: -3000...3000, using: &random))
      }.sorted { $0.offset < $1.offset }
      let offsets = (0..<UInt64(frames)).map { 80 + $0 * clock.frameLength }
      let times = offsets.enumerated().map { number, offset in
        clock.started + Int64(number) * 1000 / Int64(clock.rate)
          + clock.steps.filter { $0.offset <= offset }.reduce(0) { $0 + $1.milliseconds }
      }
      #expect(offsets.map { clock.time(at: $0) } == times, "\(seed) \(clock)")
      for time in [times.randomElement(using: &random)!, Int64.random(in: -10...9000, using: &random)] {  // not empty
        let expected = time > clock.started ? zip(offsets, times).first { $0.1 >= time }?.0 : nil
        let found = clock.offset(of: time)
        if let expected { #expect(found == expected, "\(seed) \(clock) \(time)") }
        if let found { #expect(time > clock.started && (expected != nil || found > offsets[frames - 1]), "\(seed)") }
      }
    }
    // The time of the first frame includes the steps before it.
    let stepped = try #require(
      StreamClock(
        started: 0, first: 80, head,
        steps: [
          .init(offset: 160, milliseconds: 4), .init(offset: 80, milliseconds: 2), .init(offset: 120, milliseconds: 3),
        ]))
    #expect(stepped.time(at: 80) == 0)
    #expect(stepped.steps == [.init(offset: 120, milliseconds: 3), .init(offset: 160, milliseconds: 4)])
    // The largest values that a header and a sender can state.
    var extreme = try #require(StreamClock(started: .max, first: .max, head))
    _ = (extreme.time(at: .max), extreme.offset(of: .max), extreme.offset(of: .min))
    (extreme.started, extreme.first, extreme.rate) = (0, 80, UInt64(UInt32.max))
    extreme.steps = [.init(offset: .max, milliseconds: .min), .init(offset: .max, milliseconds: .max)]
    _ = (extreme.time(at: .max), extreme.offset(of: .max))
  }

  @Test("files end at times of day, either the sender's or the server's, and each states when it began")
  func timesOfDay() throws {
    for seed in Seed.several(6) {
      var random = seed.generator
      let head = try #require(StreamedHead.all.filter { $0.frameLength > 1 }.randomElement(using: &random))
      let isServers = random.chance(50)
      // A sender cannot request files that are shorter than 64 KiB.
      let unit: Int64 = isServers ? 1 : 700
      // For the server's time, one cut lies within the stream, at the time of day.
      let noon = try #require(LocalTime.next(.seconds(12 * 3600), after: WallClock.now.sinceEpoch))
      let started = noon - unit * Int64.random(in: 1...3, using: &random)
      var cuts = [Int(noon - started)]
      if !isServers {
        cuts.append(cuts[0] + Int(unit) + Int.random(in: 0...9, using: &random))
        cuts.append(cuts[1] + Int(unit))
      }
      let stream = head.bytes + Self.samples(48 * head.frameLength * (cuts.last! + 5))  // not empty
      let directory = TemporaryDirectory()
      var split = Self.split(size: 10_000_000)
      if isServers { split.timeOfDay = .seconds(12 * 3600) }
      var test = try Self.server(directory, split, .none)
      let times = cuts.shuffled(using: &random).map { "\(started + Int64($0))" }.joined(separator: " ")
      let description =
        "Stream-Description: started=\(started)" + (isServers ? "" : ", split-times=(\(times) \(started - 5))")
      let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav", description])
      var position = 0
      while position < stream.count {
        if random.chance(25) {
          test.stop()
          test = try Self.server(directory, split, .none)
        }
        let end = min(stream.count, position + Int.random(in: 1...(2000 * Int(unit / 10 + 1)), using: &random))
        let client = try test.connect()
        // After a restart the server learns the sender's times from the next request that contains them.
        try client.patch(
          location, at: position, completes: end == stream.count, ["Content-Length: \(end - position)", description])
        try client.send(Array(stream[position..<end]))
        #expect(try client.final().answer["upload-offset"] == "\(end)")
        position = end
      }
      try Self.check(directory, stream, head, limit: nil, least: cuts.count + 1, "\(seed)")
      let pieces = try Self.pieces(directory)
      let expected = ([0] + cuts).map {
        WallClock(seconds: (started + Int64($0)) / 1000, milliseconds: Int((started + Int64($0)) % 1000)).iso8601
      }
      #expect(pieces.map(\.sidecar.started) == expected, "\(seed)")
    }
  }

  @Test("720 files, a month of hours: the log of the stream stays short, and is enough to continue")
  func month() throws {
    let (head, directory) = (StreamedHead.all[0], TemporaryDirectory())
    let limit = 4 * 48
    let stream = head.bytes + Self.samples(limit * 720)
    let split = Self.split(duration: .milliseconds(1))
    var test = try Self.server(directory, split, .none)
    let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    var position = 0
    while position < stream.count {
      let end = min(stream.count, position + limit * 12 + 7)
      try test.append(location, at: position, completes: end == stream.count, Array(stream[position..<end]))
      position = end
      if position % 5 == 0, position < stream.count {
        test.stop()
        test = try Self.server(directory, split, .none)
      }
    }
    let log = try directory.text(".parts/k-a")
    #expect(log.split(separator: "\n").count < 60)
    #expect(try test.events.wait(.ended).bytes == UInt64(stream.count))
    try Self.check(directory, stream, head, limit: limit, least: 720, "a month")
  }

  @Test("a sender requests it, and each file states when it began")
  func requested() throws {
    let test = try TestServer()
    let head = StreamedHead.all[6]
    let stream = head.bytes + Self.samples(2 * 48_000 * 25)
    let client = try test.connect()
    try client.send(
      TestServer.head(
        "/k.wav", type: "audio/wav",
        more: "Stream-Description: started=1763762567123, device=\"hw:1\", split-after=10000\r\n"))
    for start in stride(from: 0, to: stream.count, by: 500_000) {
      try client.sendChunk(Array(stream[start..<min(stream.count, start + 500_000)]))
    }
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 201)
    try Self.check(test.directory, stream, head, limit: 960_000, least: 3, "requested")
    let pieces = try Self.pieces(test.directory)
    #expect(pieces.allSatisfy { $0.sidecar.device == "hw:1" })
    #expect(
      pieces.map(\.sidecar.started) == [
        "2025-11-21T22:02:47.123Z", "2025-11-21T22:02:57.123Z", "2025-11-21T22:03:07.123Z",
      ])
    #expect(pieces.allSatisfy { $0.sidecar.startedBySender })
    let splits = test.events.all.filter { $0.kind == .split }
    #expect(splits.map(\.file) == ["k-a.wav", "k-a~2.wav"])
    let start = UInt64(head.bytes.count)
    #expect(splits.map(\.offset) == [start + 960_000, start + 1_920_000], "where the next recording begins")
    #expect(splits.map(\.bytes) == [start + 960_000, 960_000])
  }

  @Test("a stream that could not be split is split later, within the same request", arguments: Seed.several(2))
  func splitAfterFailure(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let test = try Self.server(directory, Self.split(size: 4_000), .none)
    let head = try #require(StreamedHead.all.filter { $0.frameLength > 1 }.randomElement(using: &random))
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", id: "a", type: "audio/wav"))
    try client.sendChunk(head.bytes)
    // If the stream were opened after the next step, it would be refused because its log cannot be read.
    try waitUntil("the stream is open") { test.directory.exists("k-a.part") }
    // A file has the name of the log of the parts.
    try Command.run("sh", ["-c", "rm -rf \"$0\" && touch \"$0\"", directory.path + "/.parts"])
    // A recording for each look at the events, so that a slow server does not fall far behind.
    let frames = Self.samples(4_000 / head.frameLength * head.frameLength)
    var stream = head.bytes
    func sendUntil(_ claim: String, _ isTrue: (ServerEvent) -> Bool) throws {
      try waitUntil(claim) {
        try client.sendChunk(frames)
        stream += frames
        return test.events.all.contains(where: isTrue)
      }
    }
    try sendUntil("a warning") { $0.reason?.contains("cannot split ") == true }
    try Command.run("rm", [directory.path + "/.parts"])
    try sendUntil("a split") { $0.kind == .split }
    try client.send("0\r\n\r\n")
    #expect(try client.answer()["stream-offset"] == "\(stream.count)")
    try Self.check(directory, stream, head, limit: nil, "\(seed)")
  }

  @Test("a stream that is not a live WAV stream stays in one file")
  func others() throws {
    let test = try Self.server(TemporaryDirectory(), Self.split(size: 1000), .none)
    let client = try test.connect()
    let wav = StreamedHead.all[0].bytes + Self.samples(5000)
    for (id, type, framing) in [
      ("a", "text/plain", "Transfer-Encoding: chunked"), ("b", "audio/wav", "Content-Length: \(wav.count)"),
      ("c", "audio/L16", "Transfer-Encoding: chunked"),
    ] {
      try client.send(TestServer.head("/k", id: id, type: type, framing: framing))
      if framing.hasPrefix("T") {
        try client.sendChunk(wav)
        try client.send("0\r\n\r\n")
      } else {
        try client.send(wav)
      }
      #expect(try client.answer().status == 201)
    }
    #expect(test.directory.names == ["k-a.txt", "k-b.wav", "k-c.raw"])
  }

  @Test("a stream that falls silent after a split is closed, and its next part begins a new series")
  func closed() throws {
    let directory = TemporaryDirectory()
    let head = StreamedHead.all[0]
    let stream = head.bytes + Self.samples(4 * 1000)
    let split = Self.split(size: 80 + 400)
    let test = try Self.server(directory, split, .interval, finishAfter: .milliseconds(200))
    try test.plain("/k.wav", id: "a", type: "audio/wav", Array(stream[..<1500]))
    let closed = try test.events.wait(.closed)
    #expect(closed.file == "k-a~4.wav" && closed.offset == 1500)
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", offset: 1400, type: "audio/wav"))
    try client.sendChunk(Array(stream[1400...]))
    try client.send("0\r\n\r\n")
    #expect([200, 201].contains(try client.answer().status))
    let pieces = try Self.pieces(directory)
    #expect(pieces.prefix(5).map(\.sidecar.state) == [.split, .split, .split, .interrupted, .split])
    #expect(pieces[4].sidecar.offset == 1400 - (1400 - 80) % 4)
    #expect(pieces.dropFirst(4).flatMap { $0.bytes.dropFirst(80) } == Array(stream[Int(pieces[4].sidecar.offset)...]))
  }
}
