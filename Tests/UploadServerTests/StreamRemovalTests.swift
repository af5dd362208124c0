// Tests the removal of a stream in many files: whenever a server is killed, the next one finishes the removal.
// Meanwhile only requests for the same stream wait.

import EventLoops
import ExitTesting
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamStore
@testable import UploadServer

@Suite("Removal of streams in many files")
struct StreamRemovalTests {
  private static let head = StreamedHead.all[0]
  private static let limit = 48 * head.frameLength * 4
  /// More files than the log of a stream has lines.
  private static let count = 60

  private static func server(in directory: TemporaryDirectory, _ durability: Durability) throws -> TestServer {
    try TestServer(in: directory) {
      $0.durability = durability
      var split = RecordingSplit(duration: nil, size: UInt64(head.bytes.count + limit))
      split.leastLength = 0
      $0.split = split
    }
  }

  private static func file(_ number: Int) -> String { number == 1 ? "k-a" : "k-a~\(number)" }

  /// Begins a stream with ``count`` files. All but the last one have their sidecars.
  private static func begin(_ test: TestServer) throws -> String {
    let upload = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    try test.append(upload, at: 0, head.bytes + [UInt8](repeating: 1, count: (count - 1) * limit + limit / 2))
    try waitUntil("all but the last one are finished") {
      (1..<count).allSatisfy { test.directory.exists("\(file($0)).sidecar") }
    }
    return upload
  }

  private static func files(in directory: TemporaryDirectory) -> [String] {
    ((try? allNames(in: directory.path)) ?? []).filter { $0.contains("k-a") }
  }

  /// Checks that the next stream of that name is stored completely, and that no other file remains.
  private static func checkNext(_ test: TestServer) throws {
    let again = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    let next = head.bytes + [UInt8](repeating: 2, count: limit / 2)
    let client = try test.connect()
    try client.patch(again, at: 0, completes: true, ["Content-Length: \(next.count)"])
    try client.send(next)
    let answer = try client.final().answer
    try require((200...201).contains(answer.status), "\(answer)")
    try waitUntil("only the next one is there") {
      files(in: test.directory).sorted() == ["k-a.sidecar", "k-a.wav"]
    }
    try require(try test.directory.contents("k-a.wav").suffix(limit / 2).allSatisfy { $0 == 2 }, "other bytes")
  }

  /// What a killed server leaves of the removal: any number of recordings are gone, and some files of one.
  private static func killed(_ directory: TemporaryDirectory, _ random: inout SplitMix64) throws {
    var script = ["cd '\(directory.path)'"]
    let reached = Int.random(in: 0...count, using: &random)
    for number in 1..<count {
      let file = Self.file(number)
      let steps = number < reached ? 3 : number == reached ? Int.random(in: 0...3, using: &random) : 0
      for name in [".wav", ".gaps", ".sidecar"].prefix(steps) { script.append("rm -f \(file)\(name)") }
    }
    if reached == count, random.chance(50) { script.append("rm -f \(file(count)).part") }
    try Command.run("sh", ["-c", script.joined(separator: "\n")])
  }

  @Test(
    "if a server is killed while it removes a stream of 60 files, the next one removes the rest without a request",
    arguments: [Durability.none, .interval], Seed.several(4))
  func killed(_ durability: Durability, _ seed: Seed) async {
    await #expect(processExitsWith: .success) {
      [durability = durability.rawValue as String, value = seed.value as UInt64] in
      let durability = Durability(rawValue: durability) ?? .none
      var random = Seed(value).generator
      let test = try Self.server(in: TemporaryDirectory(), durability)
      let upload = try Self.begin(test)
      // The worker comes to a stop when it looks at the first recording. The stream is marked as discarded by then.
      open_gate_close("k-a.sidecar")
      let client = try test.connect()
      try client.request("DELETE", upload)
      try waitUntil("the stream is discarded") { try test.directory.text(".parts/k-a").contains("discarded") }
      let left = try test.directory.copyOfKilled()
      try require(left.exists("k-a.wav"), "too late: \(Seed(value))")
      open_gate_open()
      for round in 0..<4 {
        let directory = TemporaryDirectory()
        try Command.run("sh", ["-c", "cp -r '\(left.path)/.' '\(directory.path)'"])
        try Self.killed(directory, &random)
        let next = try Self.server(in: directory, durability)
        if random.chance(30) {
          let found = try next.connect().head(upload)
          try require(found.status == 410, "\(found), round \(round) \(Seed(value))")
        }
        do {
          try waitUntil("nothing is left") {
            Self.files(in: directory).isEmpty && !directory.exists(".parts")
          }
        } catch {
          throw TestFailure("left: \(Self.files(in: directory)), round \(round) \(Seed(value))")
        }
        try Self.checkNext(next)
        next.stop()
      }
      try require(try client.final().answer.status == 204, "not cancelled")
      try Self.checkNext(test)
      test.stop()
    }
  }

  @Test("while a stream of 60 files is removed, others are served, and a request that begins it again waits")
  func meanwhile() async {
    await #expect(processExitsWith: .success) {
      let test = try Self.server(in: TemporaryDirectory(), .interval)
      let upload = try Self.begin(test)
      open_gate_close("k-a~3.sidecar")
      let client = try test.connect()
      try client.request("DELETE", upload)
      try waitUntil("the removal has begun") { open_gate_waiters() == 1 }
      try require(!test.directory.exists("k-a.wav"), "the first recording is there")
      let other = try test.create("/other.txt", ["Stream-ID: b", "Content-Type: text/plain"])
      try test.append(other, at: 0, Array("abc".utf8))
      for _ in 0..<3 {
        let found = try test.connect().head(upload)
        try require(found.status == 410, "\(found)")
      }
      let log = try test.directory.text(".parts/k-a")
      try require(log.split(separator: "\n").count { $0.contains("discarded") } == 1, "the line is there again: \(log)")
      try require(test.directory.exists("k-a~3.wav"), "others have waited for the removal")
      let next = try test.connect()
      try next.request(
        "POST", "/k.wav", ["Upload-Complete: ?0", "Stream-ID: a", "Content-Type: audio/wav"], body: "RI")
      open_gate_open()
      // Both are answered when the removal is over.
      try require(try client.final().answer.status == 204, "not cancelled")
      let created = try next.final().answer
      try require(created.status == 201, "\(created)")
      try Self.checkNext(test)
      test.stop()
    }
  }

  @Test("a file of a removed stream whose sidecar cannot be read for a moment is removed before the 204")
  func unreadable() async {
    await #expect(processExitsWith: .success) {
      reportingErrors {
        let test = try Self.server(in: TemporaryDirectory(), .none)
        let upload = try Self.begin(test)
        open_gate_fail(EIO, "/k-a~3.sidecar")
        func delete() throws -> RawClient.Answer {
          let client = try test.connect()
          try client.request("DELETE", upload)
          return try client.final().answer
        }
        let refused = try delete()
        try require(refused.status == 500 && refused["retry-after"] != nil, "\(refused)")
        try require(test.directory.exists("k-a~3.wav"), "it is removed")
        open_gate_fail(0, "")
        try waitUntil("DELETE succeeds") { [204, 410].contains(try delete().status) }
        try Self.checkNext(test)
        test.stop()
      }
    }
  }

  @Test("a large file is removed in slices, and an operator's copy that is a hard link keeps all of its bytes")
  func linked() throws {
    let directory = TemporaryDirectory()
    let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
    defer { close(descriptor) }
    let slice: Int64 = 1 << 20
    // Two slices and a half, which take blocks.
    let bytes = [UInt8](repeating: 7, count: 5 << 19)
    try directory.write("k.part", bytes)
    #expect(FileRemoval.isLong("k.part", in: descriptor, slice: slice))
    #expect(try !FileRemoval.remove("k.part", in: descriptor, slice: slice))
    #expect(try directory.contents("k.part") == Array(bytes.dropLast(1 << 20)))
    while try !FileRemoval.remove("k.part", in: descriptor, slice: slice) {}
    #expect(!directory.exists("k.part"))
    try directory.write("k.part", bytes)
    try #require(link("\(directory.path)/k.part", "\(directory.path)/copy") == 0)
    #expect(!FileRemoval.isLong("k.part", in: descriptor, slice: slice))
    #expect(try FileRemoval.remove("k.part", in: descriptor, slice: slice))
    #expect(!directory.exists("k.part"))
    #expect(try directory.contents("copy") == bytes)
  }

  @Test("a large file that somebody links while it is being removed loses its name, and the copy no byte")
  func linkedMeanwhile() async {
    // The gate applies to the whole process.
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
      let bytes = [UInt8](repeating: 7, count: 5 << 19)
      try directory.write("k.part", bytes)
      let isRemoved = Lock<Bool?>(nil)
      open_gate_close("/k.part")
      let thread = try NamedThread("removal") {
        let result = try? FileRemoval.remove("k.part", in: descriptor, slice: 1 << 20)
        isRemoved.withLock { $0 = result }
      }
      try waitUntil("it is about to be shortened") { open_gate_waiters() == 1 }
      try require(link("\(directory.path)/k.part", "\(directory.path)/copy") == 0, "link")
      open_gate_open()
      thread.join()
      let result = isRemoved.withLock { $0 }
      try require(result == true && !directory.exists("k.part"), "\(String(describing: result))")
      try require(try directory.contents("copy") == bytes, "the copy has all bytes")
      close(descriptor)
    }
  }
}
