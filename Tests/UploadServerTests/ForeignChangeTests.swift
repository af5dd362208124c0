// Tests changes by other programs in the directory while streams are stored there.

import Glibc
import NetworkTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("A file that another program changes while it is written", .serialized)
struct ForeignChangeTests {
  /// What happens to a `.part` of 10 bytes.
  enum Change: String, CaseIterable {
    case emptied, shortened, lengthened, replaced, removed, renamed, linked

    func perform(on path: String) throws {
      switch self {
      case .emptied: truncate(path, 0)
      case .shortened: truncate(path, 9)
      case .lengthened: truncate(path, 11)
      case .replaced:
        guard try Command.run("cp", [path, path + "~"]) == 0 else { throw TestFailure("cp \(path)") }
        rename(path + "~", path)
      case .removed: unlink(path)
      case .renamed: rename(path, path + ".old")
      case .linked:
        rename(path, path + ".old")
        symlink(path + ".old", path)
      }
    }
  }

  @Test(
    "it does not end in 201, for any change",
    arguments: Change.allCases, [Durability.none, .interval, .always])
  func plain(_ change: Change, _ durability: Durability) throws {
    for more in ["", "more"] {
      let test = try TestServer { $0.durability = durability }
      let client = try test.connect()
      try client.send(TestServer.head())
      try client.sendChunk("0123456789")
      try waitUntil("it is stored") { (try? test.directory.text("t-a.part")) == "0123456789" }
      try change.perform(on: test.directory.path + "/t-a.part")
      if !more.isEmpty { try client.sendChunk(more) }
      // The server may have refused the chunk and closed the connection.
      try? client.send("0\r\n\r\n")
      let answer = try client.answer()
      #expect(answer.status == 500 && answer["retry-after"] != nil, "\(change) \(more): \(answer)")
      #expect(try test.events.wait(.interrupted).reason?.contains("something else") == true)
      #expect(!test.directory.exists("t-a.txt"))
    }
  }

  @Test(
    "it ends its upload with 410, for any change",
    arguments: Change.allCases, [Durability.none, .interval, .always])
  func upload(_ change: Change, _ durability: Durability) throws {
    for more in ["", "more"] {
      let test = try TestServer { $0.durability = durability }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let client = try test.connect()
      try client.patch(location, at: 0, completes: true, chunked: true)
      try client.sendChunk("0123456789")
      try client.awaitProgress(10)
      try change.perform(on: test.directory.path + "/t-a.part")
      if !more.isEmpty { try client.sendChunk(more) }
      // The server may have refused the chunk and closed the connection.
      try? client.send("0\r\n\r\n")
      #expect(try client.final().answer.status == 410, "\(change) \(more)")
      let asking = try test.connect()
      #expect(try asking.head(location).status == 410)
      #expect(!test.directory.exists("t-a.txt"))
    }
  }

  @Test(
    "it receives no appends, and its offset is not announced", arguments: Change.allCases,
    [Durability.none, .interval, .always])
  func appended(_ change: Change, _ durability: Durability) throws {
    for isAtWork in [false, true] {
      let test = try TestServer { $0.durability = durability }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.sendChunk("0123456789")
      try client.awaitProgress(10)
      if !isAtWork {
        try client.send("0\r\n\r\n")
        #expect(try client.final().answer.status == 204)
      }
      try change.perform(on: test.directory.path + "/t-a.part")
      if isAtWork {
        try client.sendChunk("more")
      } else {
        try client.patch(location, at: 10, body: "more")
      }
      let (answer, interim) = try client.final()
      #expect(answer.status == 410 && interim.isEmpty, "\(change): \(answer) \(interim)")
      #expect(try test.events.wait(.warning).reason?.contains("something else has changed") == true)
      #expect(try test.connect().head(location).status == 410)
    }
  }

  @Test(
    "it is not continued after an idle time", arguments: Change.allCases.filter { $0 != .lengthened },
    [Durability.none, .interval, .always])
  func parked(_ change: Change, _ durability: Durability) throws {
    let test = try TestServer {
      $0.durability = durability
      $0.uploads.parkDelay = .milliseconds(1)
    }
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(location, at: 0, "0123456789")
    let path = test.directory.path + "/t-a.part"
    try waitUntil("the file is closed") { !Self.isOpen(path) }
    try change.perform(on: path)
    let client = try test.connect()
    try client.patch(location, at: 10, body: "more")
    #expect(try client.final().answer.status == 410, "\(change)")
    #expect(try test.connect().head(location).status == 410)
  }

  /// Whether this process has the file open.
  static func isOpen(_ path: String) -> Bool {
    (try? openPaths())?.contains(path) ?? true
  }

  @Test("a file that was closed meanwhile is not reopened if another replaced it", arguments: Change.allCases)
  func closed(_ change: Change) throws {
    let directory = TemporaryDirectory()
    let files = OpenFiles()
    let path = directory.path + "/f"
    let descriptor = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0o600)
    write(descriptor, "0123456789", 10)
    var status = stat()
    fstat(descriptor, &status)
    let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    defer { close(parent) }
    let file = OpenFile(descriptor, "f", in: parent, O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC, status, files)
    #expect(try file.acquire() == descriptor)
    #expect(files.closeIdle() == 0, "it is used")
    file.release()
    #expect(files.closeIdle() == 1 && files.closeIdle() == 0)
    try file.check(length: 10)
    // The file is opened again, and is still the same file.
    _ = try file.acquire()
    file.release()
    #expect(files.closeIdle() == 1)
    try change.perform(on: path)
    #expect(throws: (any Error).self) { try file.check(length: 10) }
    if [.replaced, .removed, .renamed, .linked].contains(change) {
      #expect(throws: (any Error).self) { try file.acquire() }
    }
  }
}
