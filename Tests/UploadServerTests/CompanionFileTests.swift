// Tests that what a server has not written at the name of a recording's `.gaps` or sidecar stays as it is, and that the
// recording waits for that name.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Files of others beside recordings")
struct CompanionFileTests {
  /// What has the name.
  enum Stranger: CaseIterable, Sendable {
    case file, otherSidecar, large, folder, fifo, link

    func make(_ path: String) throws {
      let isMade =
        switch self {
        case .file: write(Array("stranger".utf8), path)
        case .otherSidecar: write(Array(RecordingSidecar(file: "other.txt").text.utf8), path)
        case .large: write([], path) && truncate(path, off_t(RegularFile.maximumSize) + 1) == 0
        case .folder: mkdir(path, 0o700) == 0
        case .fifo: mkfifo(path, 0o600) == 0
        case .link: symlink("nowhere", path) == 0
        }
      guard isMade else { throw SystemError.last("make \(path)") }
    }

    private func write(_ bytes: [UInt8], _ path: String) -> Bool {
      let descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
      defer { close(descriptor) }
      return descriptor >= 0 && Glibc.write(descriptor, bytes, bytes.count) == bytes.count
    }

    func remove(_ path: String) -> Bool { (self == .folder ? rmdir(path) : unlink(path)) == 0 }
  }

  /// What identifies a file and its content.
  private static func state(_ path: String) -> [Int] {
    var status = stat()
    guard lstat(path, &status) == 0 else { return [] }
    let time = status.st_mtim
    return [Int(status.st_ino), Int(status.st_mode), Int(status.st_size), time.tv_sec, time.tv_nsec]
  }

  @Test(
    "what a power failure has left of a server's own files is replaced",
    arguments: [
      "", "\0\0\0", "{\"offset\":3,\"length\":4,\"cause\":\"not-received\"}\n\0\0", "{\"off\0\0",
      "\0\0\0\":4,\"cause\":\"not-received\"}\n{\"offset\":3,\"length\":4,\"cause\":\"not-received\"}\n",
      "{\"offset\":3,\0\0\0\n{\"of",
    ])
  func torn(text: String) throws {
    for file in ["t-a.gaps", "t-a.sidecar"] where file == "t-a.gaps" || text.utf8.allSatisfy({ $0 == 0 }) {
      let test = try TestServer()
      try test.directory.write(file, Array(text.utf8))
      let stored = try RawClient.sendPlain(test, id: "a", "abc")
      #expect(stored.status == 201, "\(file): \(stored)")
      #expect(try test.directory.text("t-a.txt") == "abc")
      #expect(!test.directory.exists("t-a.gaps"))
      try waitUntil("the sidecar is written") {
        (try? test.directory.text("t-a.sidecar").contains("t-a.txt")) ?? false
      }
    }
  }

  @Test(
    "a recording does not begin while something else has the name of its gaps or its sidecar, and that stays",
    arguments: Stranger.allCases, ["t-a.gaps", "t-a.sidecar"])
  func beginning(_ stranger: Stranger, _ file: String) throws {
    for isPlain in [true, false] {
      let test = try TestServer()
      let path = "\(test.directory.path)/\(file)"
      try stranger.make(path)
      let before = Self.state(path)
      func send() throws -> RawClient.Answer {
        if isPlain { return try RawClient.sendPlain(test, id: "a", "abc") }
        let client = try test.connect()
        try client.request("POST", "/t.txt", ["Upload-Complete: ?1", "Stream-ID: a"], body: "abc")
        return try client.final().answer
      }
      let refused = try send()
      #expect(refused.status == 500 && refused["retry-after"] != nil, "\(refused)")
      #expect(refused.body.contains(file), "\(refused)")
      _ = try test.events.first("the report") { $0.status == 500 && $0.reason?.contains(file) == true }
      #expect(!before.isEmpty && Self.state(path) == before)
      #expect(!test.directory.exists("t-a.part"))
      try #require(stranger.remove(path))
      let stored = try send()
      #expect(stored.status == 201, "\(stored)")
      #expect(try test.directory.text("t-a.txt") == "abc")
      try waitUntil("the sidecar is written") { test.directory.exists("t-a.sidecar") }
    }
  }

  @Test("a server without sidecars ignores what has the name of one")
  func withoutSidecars() throws {
    let test = try TestServer { $0.writesSidecars = false }
    try test.directory.write("t-a.sidecar", Array("stranger".utf8))
    #expect(try RawClient.sendPlain(test, id: "a", "abc").status == 201)
    #expect(try test.directory.text("t-a.sidecar") == "stranger")
  }

  @Test(
    "what a killed server or an operator has left beside a recording does not stop the next one",
    arguments: ["", "{\"off", "{\"offset\":0,\"length\":1,\"cause\":\"began-late\"}\n{\"offset\":5,"])
  func ownFiles(_ gaps: String) throws {
    let test = try TestServer()
    try test.directory.write("t-a.gaps", Array(gaps.utf8))
    try test.directory.write("t-a.sidecar", Array(RecordingSidecar(file: "t-a.flac").text.utf8))
    #expect(try RawClient.sendPlain(test, id: "a", "abc").status == 201)
    #expect(!test.directory.exists("t-a.gaps"))
    try waitUntil("the sidecar is replaced") {
      try RecordingSidecar(parsing: test.directory.contents("t-a.sidecar")).file == "t-a.txt"
    }
  }

  @Test("a growing recording does not continue with another program's file as its gaps, which stays")
  func growing() throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    try test.plain(id: "a", Array("abc".utf8))
    test.stop()
    try directory.write("t-a.gaps", Array("stranger".utf8))
    test = try TestServer(in: directory)
    let refused = try RawClient.sendPlain(test, id: "a", offset: 3, "def")
    #expect(refused.status == 500 && refused.body.contains("t-a.gaps"), "\(refused)")
    #expect(try directory.text("t-a.gaps") == "stranger")
    #expect(unlink("\(directory.path)/t-a.gaps") == 0)
    #expect(try RawClient.sendPlain(test, id: "a", offset: 3, "def").status == 200)
    #expect(try directory.text("t-a.txt") == "abcdef")
  }

  @Test(
    "the removal of a cancelled upload leaves another program's file with the name of its gaps",
    arguments: [Stranger.file, .otherSidecar])
  func cancelled(_ stranger: Stranger) throws {
    let test = try TestServer()
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(location, at: 0, "abc")
    let path = "\(test.directory.path)/t-a.gaps"
    try stranger.make(path)
    let before = Self.state(path)
    let client = try test.connect()
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 204)
    #expect(!test.directory.exists("t-a.part"))
    #expect(!before.isEmpty && Self.state(path) == before)
  }

  @Test("a hole is not recorded in another program's file, and its bytes wait until that is gone")
  func appended() throws {
    let test = try TestServer()
    try test.plain(id: "a", Array("abc".utf8))
    try test.directory.write("t-a.gaps", Array("stranger".utf8))
    let refused = try RawClient.sendPlain(test, id: "a", offset: 9, "def")
    #expect(refused.status == 500 && refused.body.contains("t-a.gaps"), "\(refused)")
    #expect(try test.directory.text("t-a.gaps") == "stranger")
    try #require(unlink(test.directory.path + "/t-a.gaps") == 0)
    let stored = try RawClient.sendPlain(test, id: "a", offset: 9, "def")
    #expect(stored.status == 200 && stored["stream-missing"] == "6", "\(stored)")
    #expect(try test.directory.text("t-a.gaps").contains("\"offset\":3,\"length\":6"))
  }

  @Test(
    "a sidecar replaces nothing that got its name while its digests were computed, and follows later",
    arguments: Stranger.allCases)
  func digests(_ stranger: Stranger) throws {
    let directory = TemporaryDirectory()
    let name = StreamName(path: "/t.txt", streamID: "a", mediaType: "text/plain")
    try directory.write(name.final, Array("abc".utf8))
    var sidecar = RecordingSidecar(file: name.final)
    sidecar.stored = RecordingSidecar.Content(bytes: 3)
    sidecar.received = sidecar.stored
    try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    let path = "\(directory.path)/\(name.sidecar)"
    try stranger.make(path)
    let before = Self.state(path)
    let store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
      UploadUsage(.init()))
    let events = try EventLog<ServerEvent>()
    store.reportUnfinished { events.append($0) }
    store.completeSidecar(name)
    try waitUntil("it is reported") {
      store.finishUnfinished()
      return !events.all.isEmpty
    }
    let reason = try #require(events.all.first?.reason)
    #expect(reason.contains("open \(name.sidecar)") && reason.contains("another directory"), "\(reason)")
    #expect(!before.isEmpty && Self.state(path) == before)
    try #require(stranger.remove(path))
    try waitUntil("the sidecar follows") {
      store.finishUnfinished()
      return directory.exists(name.sidecar)
    }
    #expect(try RecordingSidecar(parsing: directory.contents(name.sidecar)).stored?.sha256 != nil)
  }

  @Test(
    "the next recording of a stream begins without gaps left for its name, and skips a name that another program's file has",
    arguments: [nil] + Stranger.allCases)
  func next(_ stranger: Stranger?) throws {
    let head = StreamedHead.all[0].bytes
    let test = try TestServer {
      $0.split = RecordingSplit(size: UInt64(head.count) + 400)
      $0.split?.leastLength = 0
    }
    let path = test.directory.path + "/t-a~2.gaps"
    if let stranger {
      try stranger.make(path)
    } else {
      try test.directory.write("t-a~2.gaps", Array("{\"offset\":450,\"length\":9,\"cause\":\"not-received\"}\n".utf8))
    }
    let before = Self.state(path)
    let samples = (0..<1000).map { UInt8(truncatingIfNeeded: $0 / 4) }
    let client = try test.connect()
    try client.send(TestServer.head("/t.wav", id: "a", type: "audio/wav"))
    try client.sendChunk(head + samples)
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 201)
    let parts = stranger == nil ? ["t-a", "t-a~2", "t-a~3"] : ["t-a", "t-a~3", "t-a~4"]
    var stored: [UInt8] = []
    for part in parts {
      try waitUntil("\(part).sidecar is written") { test.directory.exists(part + ".sidecar") }
      let sidecar = try RecordingSidecar(parsing: test.directory.contents(part + ".sidecar"))
      #expect(sidecar.missing == 0, "\(part)")
      stored += try test.directory.contents(part + ".wav").dropFirst(head.count)
    }
    #expect(stored == samples)
    if stranger == nil { #expect(before != Self.state(path)) } else { #expect(before == Self.state(path)) }
  }
}
