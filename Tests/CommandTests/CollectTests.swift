// Tests sluice collect as a process. Whichever process dies, the collected directory must match the one that a server
// with a directory makes of the same requests.

import BrokerTesting
import Glibc
import JetStream
import NetworkTesting
import PropertyTesting
import Testing

@Suite("sluice collect")
struct CollectTests {
  /// A stream of the test. Its offset determines each of its bytes.
  private final class Stream {
    let id: String
    let path: String
    let owner: String
    let content: [UInt8]
    /// The end of the bytes that any upload has sent.
    var length = 0
    var upload: Upload?
    /// The end of the bytes that were never sent. No upload begins before this offset.
    var holesEnd = 0
    var uploadCount = 0
    /// Whether another owner has tried to continue the stream.
    var hasRival = false
    /// Whether the test has finished with the stream.
    var isOver = false

    init(_ number: Int, _ random: inout SplitMix64) {
      id = "s\(number)"
      path = ["/mic.wav", "/a/log.txt", "/raw"][number % 3]
      owner = ["alice", "bob"][number % 2]
      let pattern = OffsetPattern(seed: UInt64(number))
      let bytes = (0..<UInt64(300_000)).map { pattern[$0] }
      content = path.hasSuffix(".wav") ? CollectRig.wavHead + bytes : bytes
    }
  }

  private struct Upload {
    var locations: [CollectRig.Target: String] = [:]
    var start: Int
    var offset = 0
  }

  private static func send(
    _ rig: CollectRig, _ stream: Stream, _ method: String, _ lines: [String], _ body: [UInt8]?, _ upload: inout Upload,
    expecting statuses: Set<Int>
  ) throws {
    for target in CollectRig.Target.allCases {
      let answer = try rig.sendAgain(
        target, method, upload.locations[target] ?? stream.path, owner: stream.owner, lines, body, at: upload.offset)
      guard statuses.contains(answer.status) else {
        throw TestFailure("\(target): \(method) of \(stream.id) at \(upload) is answered with \(answer.status)")
      }
      if let location = answer.location { upload.locations[target] = location }
    }
  }

  /// Sends the next bytes of the stream in its present upload or in a new one.
  private static func bring(
    _ rig: CollectRig, _ stream: Stream, _ random: inout SplitMix64, completes: Bool = false
  ) throws {
    var upload = stream.upload ?? Upload(start: stream.length)
    var count = Int.random(in: 0...12_000, using: &random)
    if stream.upload == nil {
      // The upload overlaps stored bytes, or begins after bytes that are never sent.
      if random.chance(25) { upload.start = Int.random(in: stream.holesEnd...stream.length, using: &random) }
      if random.chance(25) { upload.start += Int.random(in: 1...5_000, using: &random) }
      if upload.start > stream.length { stream.holesEnd = upload.start }
      // A hole exists only once a byte follows it.
      count = max(1, count)
    }
    let begin = upload.start + upload.offset
    // A stream does not end before its last byte.
    if completes { count = max(count, stream.length - begin, 1) }
    let end = min(begin + count, stream.content.count)
    let body = Array(stream.content[begin..<end])
    let complete = "Upload-Complete: ?\(completes ? 1 : 0)"
    if stream.upload == nil {
      var lines = [complete, "Stream-ID: \(stream.id)", "Stream-Offset: \(upload.start)"]
      if random.chance(30) { lines.append("Stream-Description: device=\"d\(stream.id)\", rate=48000") }
      try send(rig, stream, "POST", lines, body, &upload, expecting: [200, 201])
    } else {
      let lines = [complete, "Upload-Offset: \(upload.offset)", "Content-Type: application/partial-upload"]
      try send(rig, stream, "PATCH", lines, body, &upload, expecting: [200, 201, 204])
    }
    upload.offset += body.count
    if stream.upload == nil { stream.uploadCount += 1 }
    stream.upload = upload
    stream.length = max(stream.length, upload.start + upload.offset)
  }

  /// One step of a sequence.
  private static func step(_ rig: CollectRig, _ streams: [Stream], _ random: inout SplitMix64) throws {
    let stream = streams[Int.random(in: 0..<streams.count, using: &random)]
    let index = Int.random(in: 0..<rig.directories.count, using: &random)
    switch Int.random(in: 0..<100, using: &random) {
    case 0..<12: try rig.restart(index, SIGKILL)
    case 12..<15: try rig.restart(index, SIGTERM)
    case 15..<18: try rig.restartBroker()
    case _ where stream.isOver: break
    // Another upload continues the stream.
    case 18..<28: stream.upload = nil
    case 28..<32:
      // The log immediately forgets the bytes of a cancelled upload and the owner of the stream. A directory keeps the
      // bytes of other uploads in the same recording.
      guard var upload = stream.upload, stream.uploadCount == 1, !stream.hasRival else { break }
      try send(rig, stream, "DELETE", [], nil, &upload, expecting: [204])
      stream.isOver = true
    case 32..<38:
      // Only the log accepts this upload, and none of its bytes may enter the recording.
      let other = stream.owner == "alice" ? "bob" : "alice"
      guard stream.length > 0 else { break }
      stream.hasRival = true
      let lines = ["Upload-Complete: ?1", "Stream-ID: \(stream.id)", "Stream-Offset: 0"]
      let answers = try CollectRig.Target.allCases.map { target in
        try rig.send(target, "POST", stream.path, owner: other, lines, Array("not yours".utf8)).status
      }
      #expect(answers == [403, 201])
    case 38..<45:
      try bring(rig, stream, &random, completes: true)
      stream.isOver = true
    default: try bring(rig, stream, &random)
    }
  }

  @Test(
    "the files equal those of a server with a directory, whichever process dies in between",
    arguments: Seed.several(2).flatMap { seed in [(seed, 1, "keep"), (seed, 3, "purge")] })
  func sameFiles(_ seed: Seed, _ count: Int, _ after: String) throws {
    var random = seed.generator
    let rig = try CollectRig(collectors: count, ["--after-collect", after])
    let streams = (0..<6).map { Stream($0, &random) }
    for _ in 0..<120 { try Self.step(rig, streams, &random) }
    try rig.finish()
    try rig.compare(seed)
    for line in rig.output where line.contains("\"event\":\"refused\"") {
      #expect(line.contains("belongs to another token"), "\(seed)")
    }
  }

  @Test("a plain stream of several requests becomes the files of a server with a directory, whichever process dies")
  func plainStreams() throws {
    let seed = Seed.several(1)[0]
    var random = seed.generator
    let rig = try CollectRig(collectors: 1)
    let pattern = OffsetPattern(seed: 7)
    for (id, isComplete) in [("a", true), ("b", false), ("c", true)] {
      // The last stream begins late.
      var length = id == "c" ? 1000 : 0
      for round in 0..<6 {
        // Repeats stored bytes, or leaves some out.
        var begin = length
        if round > 0 {
          begin = random.chance(50) ? length - Int.random(in: 0...300, using: &random) : length
          if round == 2 || round == 4 { begin = length + Int.random(in: 1...5000, using: &random) }
        }
        let end = length + 1000 + Int.random(in: 5000...20_000, using: &random)
        let body = (UInt64(begin)..<UInt64(end)).map { pattern[$0] }
        for target in CollectRig.Target.allCases {
          let status = try rig.sendPlain(
            target, "/x.txt", id: id, owner: "alice", at: begin, body, completes: isComplete && round == 5)
          #expect(status == (isComplete && round == 5 ? 200 : nil))
        }
        length = end
        if random.chance(40) { try rig.restart(0, SIGKILL) }
      }
      for target in CollectRig.Target.allCases {
        // Another token, and bytes that are not the stream's.
        let bytes = [~pattern[UInt64(length - 1)]]
        #expect(
          try rig.sendPlain(target, "/x.txt", id: id, owner: "bob", at: length, bytes, completes: true) == 403)
        #expect(
          try rig.sendPlain(target, "/x.txt", id: id, owner: "alice", at: length - 1, bytes, completes: true) == 409)
      }
    }
    try rig.finish()
    try rig.compare(seed)
    #expect(!rig.output.contains { $0.contains("\"event\":\"refused\"") })
  }

  @Test("purge removes the messages of a complete recording, and no others")
  func purge() throws {
    let rig = try CollectRig(collectors: 1, ["--after-collect", "purge"])
    func create(_ id: String, _ completes: Bool) throws -> String {
      let lines = ["Upload-Complete: ?0", "Stream-ID: \(id)"]
      let location = try #require(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("one ".utf8)).location)
      let more = [
        "Upload-Complete: ?\(completes ? 1 : 0)", "Upload-Offset: 4", "Content-Type: application/partial-upload",
      ]
      _ = try rig.send(.log, "PATCH", location, owner: "alice", more, Array("two".utf8))
      return String(location.dropFirst("/.uploads/".count))
    }
    let (complete, unfinished) = (try create("a", true), try create("b", false))
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    try waitUntil("the messages of a complete recording are removed") { try stream.messages(of: complete).count == 1 }
    #expect(try stream.messages(of: unfinished).map(\.content.payload).joined().elementsEqual("one two".utf8))
    #expect(try rig.directories[0].contents("x-a.bin") == Array("one two".utf8))
    #expect(try rig.directories[0].contents("x-b.part") == Array("one two".utf8))
  }

  @Test(
    "a collector reports the rest of an upload that it has not purged, unless another partition's may have purged it",
    arguments: ["1/1", "1/2"], ["purge", "keep"])
  func rest(_ partition: String, _ after: String) throws {
    let rig = try CollectRig(collectors: 1, ["--after-collect", "purge"])
    func send(_ id: String) throws -> String {
      let lines = ["Upload-Complete: ?0", "Stream-ID: \(id)"]
      let location = try #require(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("one ".utf8)).location)
      let more = ["Upload-Complete: ?1", "Upload-Offset: 4", "Content-Type: application/partial-upload"]
      #expect(try rig.send(.log, "PATCH", location, owner: "alice", more, Array("two".utf8)).status == 201)
      return String(location.dropFirst("/.uploads/".count))
    }
    let token = try send("a")
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    try waitUntil("the other messages are removed") { try stream.messages(of: token).count == 1 }
    try rig.finish()
    // It reads the log from its beginning.
    let output = try Self.collect(rig, partition, after, into: TemporaryDirectory())
    // Collectors that keep messages have purged none.
    let isReported = output.contains { $0.contains("whose beginning is no longer in the log") }
    #expect(isReported == (partition == "1/1" || after == "keep"), "\(output)")
  }

  /// Lets a new collector collect the present log. Returns all that it has printed.
  ///
  /// - Parameter check: called before its end.
  private static func collect(
    _ rig: CollectRig, _ partition: String, _ after: String, into directory: TemporaryDirectory,
    beforeEnd check: () throws -> Void = {}
  ) throws -> [String] {
    let options = ["--directory", directory.path, "--partition", partition, "--after-collect", after]
    let collector = try sluice(["collect", rig.broker.url] + options)
    try collector.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    let last = try stream.lastMessage(of: "*")?.sequence ?? 0
    try waitUntil("message \(last) is collected") {
      let text = String(decoding: try directory.contents(".collected"), as: UTF8.self)
      return text.firstMatch(of: /sequence=([0-9]+)/).flatMap { UInt64($0.1) } ?? 0 >= last
    }
    try check()
    collector.signal(SIGTERM)
    #expect(try collector.wait() == 0, "\(collector.errors)")
    return collector.output + collector.errors
  }

  @Test(
    "a collector prints nothing about the streams of another partition, whose collector has completed them",
    arguments: ["purge", "keep"])
  func otherPartition(_ after: String) throws {
    // The test starts the collectors.
    let rig = try CollectRig(collectors: 0)
    var tokens: [String: String] = [:]
    for number in 10..<22 {
      let id = "stream-\(number)"
      let lines = ["Upload-Complete: ?0", "Stream-ID: \(id)"]
      let location = try #require(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("one ".utf8)).location)
      let more = ["Upload-Complete: ?1", "Upload-Offset: 4", "Content-Type: application/partial-upload"]
      #expect(try rig.send(.log, "PATCH", location, owner: "alice", more, Array("two".utf8)).status == 201)
      tokens[id] = String(location.dropFirst("/.uploads/".count))
    }
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    var owned: [[String]] = []
    var printed: [[String]] = []
    for partition in ["1/2", "2/2"] {
      let directory = try TemporaryDirectory()
      let output = try Self.collect(rig, partition, after, into: directory) {
        guard after == "purge" else { return }
        for (id, token) in tokens where directory.names.contains("x-\(id).bin") {
          try waitUntil("the other messages of \(id) are removed") { try stream.messages(of: token).count == 1 }
        }
      }
      owned.append(tokens.keys.filter { directory.names.contains("x-\($0).bin") })
      printed.append(output)
    }
    #expect(owned.allSatisfy { !$0.isEmpty } && owned.joined().sorted() == tokens.keys.sorted(), "\(owned)")
    for (index, output) in printed.enumerated() {
      for id in owned[index] { #expect(output.contains { $0.contains(id) }, "\(id) in \(output)") }
      let others = owned[1 - index]
      #expect(!output.contains { line in others.contains { line.contains($0) } }, "\(output)")
      #expect(!output.contains { $0.contains("whose beginning is no longer in the log") }, "\(output)")
    }
  }

  @Test("purge ends an upload whose recording another one has completed, so that its messages do not seem lost")
  func purgeOfOpen() throws {
    let rig = try CollectRig(collectors: 1, ["--after-collect", "purge"])
    func create(_ content: String, _ completes: Bool) throws -> String {
      let lines = ["Upload-Complete: ?\(completes ? 1 : 0)", "Stream-ID: a"]
      let answer = try rig.send(.log, "POST", "/x", owner: "alice", lines, Array(content.utf8))
      return answer.location ?? ""
    }
    let open = try create("one ", false)
    let more = ["Upload-Complete: ?0", "Upload-Offset: 4", "Content-Type: application/partial-upload"]
    _ = try rig.send(.log, "PATCH", open, owner: "alice", more, Array("t".utf8))
    _ = try create("one two", true)
    let stream = try BrokerLoop(.init(servers: [rig.broker.url])).open("sluice")
    try waitUntil("the messages of the open upload are removed") {
      let messages = try stream.messages(of: String(open.dropFirst("/.uploads/".count)))
      return messages.map { $0.content["Sluice-Ended"] } == ["misplaced"]
    }
    #expect(try rig.send(.log, "HEAD", open, owner: "alice", []).status == 410)
    #expect(try rig.directories[0].contents("x-a.bin") == Array("one two".utf8))
  }

  @Test("a silent live recording is closed, and continues in a next part after the collector was killed")
  func silence() throws {
    let rig = try CollectRig(collectors: 1, ["--finish-after", "1s"])
    let lines = ["Upload-Complete: ?0", "Stream-ID: a"]
    let location = try #require(try rig.send(.log, "POST", "/x", owner: "alice", lines, Array("one ".utf8)).location)
    try rig.collectors[0].lines.first("the end") { $0.text.contains("\"event\":\"closed\"") }
    try rig.restart(0, SIGKILL)
    let more = ["Upload-Complete: ?1", "Upload-Offset: 4", "Content-Type: application/partial-upload"]
    #expect(try rig.send(.log, "PATCH", location, owner: "alice", more, Array("two".utf8)).status == 201)
    try rig.finish()
    #expect(rig.directories[0].names == ["x", "x-a.bin", "x-a.gaps", "x-a~2.bin", "x-a~2.gaps"])
    #expect(try rig.directories[0].contents("x-a.bin") == Array("one ".utf8))
    #expect(try rig.directories[0].contents("x-a~2.bin") == Array("two".utf8))
  }

  @Test("each failure that prevents a collection has an exit code and a remedy")
  func exitCodes() throws {
    let (broker, guarded) = (try TestBroker(), try TestBroker("authorization { token: \"right\" }"))
    let gone = try TestBroker()
    try gone.kill()
    _ = try BrokerLoop(.init(servers: [broker.url])).open("sluice")
    let (scratch, used) = (try TemporaryDirectory(), try TemporaryDirectory())
    let (wrong, empty) = (try scratch.write("wrong", "wrong\n"), try scratch.write("empty", "\n"))
    let running = try sluice(["collect", broker.url, "--directory", used.path, "--partition", "1/3"])
    try running.lines.first("the collector to begin") { $0.text.hasPrefix("collecting ") }
    func check(_ arguments: [String], _ code: Int32, _ text: String) throws {
      let process = try sluice(["collect"] + arguments)
      #expect(try process.wait() == code, "\(arguments): \(process.errors)")
      #expect(process.errors.joined().contains(text), "\(process.errors)")
    }
    let file = try scratch.write("file", "")
    try check([gone.url, "--directory", scratch.path], 69, "Start a broker there")
    let without = try TestBroker("", jetStream: false)
    for broker in [without, try TestBroker(TestBroker.accountWithoutJetStream)] {
      try check([broker.url, "--directory", scratch.path], 69, "Enable JetStream")
    }
    try check([guarded.url, "--directory", scratch.path, "--store-token-file", wrong], 77, "Correct the token")
    try check([broker.url, "--directory", scratch.path, "--store-token-file", empty], 65, "first line is empty")
    try check(
      [broker.url, "--directory", scratch.path, "--store-stream", "other"], 66, "no JetStream stream \"other\"")
    try check([broker.url, "--directory", file], 74, "Create it")
    try check([broker.url, "--directory", used.path, "--partition", "1/3"], 74, "another collector")
    running.signal(SIGTERM)
    #expect(try running.wait() == 0)
    try check([broker.url, "--directory", used.path, "--partition", "2/3"], 65, "Choose an empty directory")
    _ = try used.write(".collected", "nonsense\n")
    try check([broker.url, "--directory", used.path, "--partition", "1/3"], 65, "is not a checkpoint")
  }
}
