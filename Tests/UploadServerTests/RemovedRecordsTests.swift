// Tests that a server continues when somebody removes, moves or replaces the directory of its upload records.

import EventLoops
import Glibc
import NetworkTesting
import StreamServing
import SyncGate
import Testing
import UploadServer

@testable import ResumableServing

@Suite("A server whose .uploads is removed")
struct RemovedRecordsTests {
  /// What happens to the directory.
  enum Loss: String, CaseIterable {
    case removed, moved, remade, replaced

    private var isMove: Bool { self == .moved || self == .replaced }

    /// Returns the path that the directory has afterwards; nil if it was removed.
    @discardableResult
    func perform(in directory: TemporaryDirectory, keeping kept: TemporaryDirectory) throws -> String? {
      let path = directory.path + "/.uploads"
      let other = kept.path + "/uploads-\(kept.names.count)"
      // The server may write a record while a directory is being removed, after a sync.
      try waitUntil("it is \(rawValue)") {
        try isMove ? rename(path, other) == 0 : Command.run("rm", ["-r", path]) == 0
      }
      if self == .remade || self == .replaced { mkdir(path, 0o700) }
      return isMove ? other : nil
    }
  }

  struct Cell: CustomTestStringConvertible, Sendable {
    var loss: Loss
    var durability: Durability
    var threads: Int
    /// Whether a server has made the directory before, so that each thread has opened it.
    var isOpen: Bool
    var testDescription: String { "\(loss), \(durability), \(threads) threads, \(isOpen ? "open" : "fresh")" }

    static let all = Loss.allCases.flatMap { loss in
      Durability.allCases.flatMap { durability in
        [(1, true), (3, true), (2, false), (3, false)].map { threads, isOpen in
          Cell(loss: loss, durability: durability, threads: threads, isOpen: isOpen)
        }
      }
    }
  }

  /// The path of an upload's record in the server's directory.
  private static func record(of location: String) -> String { location.dropFirst() + ".upload" }

  /// The names of the records and bodies of uploads in a directory.
  private static func uploads(in path: String) throws -> Set<String> {
    Set(try allNames(in: path).filter { $0.hasSuffix(".upload") || $0.hasSuffix(".body") })
  }

  @Test(
    "new uploads are recorded as before, an earlier one continues, and one warning reports it", arguments: Cell.all)
  func lost(_ cell: Cell) throws {
    let (directory, kept) = (TemporaryDirectory(), TemporaryDirectory())
    func server() throws -> TestServer {
      try TestServer(in: directory) { ($0.durability, $0.threads) = (cell.durability, cell.threads) }
    }
    /// The name of a stream that a thread serves.
    func name(_ path: String, on thread: Int) -> String {
      LoopAssignment(index: thread % cell.threads, count: cell.threads).newStreamID(path: path)
    }
    if cell.isOpen {
      let former = try server()
      _ = try former.create()
      former.stop()
    }
    let first = try server()
    let id = name("/earlier.txt", on: 0)
    let earlier = try first.create("/earlier.txt", ["Stream-ID: \(id)"])
    try first.append(earlier, at: 0, "abc")
    for round in 0..<2 {
      let before = first.events.all.count { $0.kind == .warning }
      let moved = try cell.loss.perform(in: directory, keeping: kept)
      let left = try moved.map { try Self.uploads(in: $0) }
      var locations: [String] = []
      // The first one is on a thread that has not opened the directory yet if it is fresh, and others are on the rest.
      for number in 0..<cell.threads * 2 {
        let path = "/t\(number).txt"
        let location = try first.create(path, ["Stream-ID: \(name(path, on: round + number + 1))"])
        try first.append(location, at: 0, "abc")
        locations.append(location)
      }
      let warnings = first.events.all.filter { $0.kind == .warning }
      #expect(warnings.count == before + 1 && warnings.last?.reason?.contains(".uploads was removed") == true)
      var status = stat()
      stat(directory.path + "/.uploads", &status)
      #expect(status.st_mode & 0o777 == 0o700)
      for location in locations { #expect(directory.exists(Self.record(of: location))) }
      // Nothing of an upload is added to the moved directory, or removed from it.
      if let moved { #expect(try Self.uploads(in: moved) == left) }
    }
    try first.append(earlier, at: 3, "def")
    #expect(try directory.text("earlier-\(id).part") == "abcdef")
    let last = try first.create("/last.txt", ["Stream-ID: a"])
    try first.append(last, at: 0, "abc")
    first.stop()

    let second = try server()
    let client = try second.connect()
    #expect(try client.head(last)["upload-offset"] == "3")
    try client.patch(last, at: 3, completes: true, body: "def")
    #expect((200...201).contains(try client.final().answer.status))
    #expect(try directory.text("last-a.txt") == "abcdef")
  }

  /// What an upload does when it loses its spooled bytes.
  enum Activity: String, CaseIterable { case sending, resting, parked, restarted }

  @Test(
    "an upload whose spooled bytes are gone ends with 410, and none of its bytes are acknowledged",
    arguments: Loss.allCases, Activity.allCases)
  func spooled(_ loss: Loss, _ activity: Activity) throws {
    for durability in Durability.allCases {
      for asksFirst in [false, true] { try spooled(loss, activity, durability, asksFirst: asksFirst) }
    }
  }

  /// - Parameter asksFirst: whether the next request is a HEAD, and not more bytes.
  private func spooled(_ loss: Loss, _ activity: Activity, _ durability: Durability, asksFirst: Bool) throws {
    let (directory, kept) = (TemporaryDirectory(), TemporaryDirectory())
    let context = "\(loss), \(activity), \(durability), \(asksFirst)"
    func server() throws -> TestServer {
      let log = WrappedHandlerTests.Log()
      return try TestServer(in: directory) {
        $0.durability = durability
        if activity == .parked { $0.uploads.parkDelay = .milliseconds(1) }
        $0.handler = { head in
          head.target.path == "/echo" ? WrappedHandlerTests.Echo(head, log) { _ in nil } : nil
        }
      }
    }
    var test = try server()
    let location = try test.create("/echo")
    var client = try test.connect()
    if activity == .sending {
      try client.patch(location, at: 0, chunked: true)
      try client.sendChunk("abc")
      try client.awaitProgress(3)
    } else {
      try test.append(location, at: 0, "abc")
    }
    if activity == .parked {
      let body = directory.path + location + ".body"
      try waitUntil("the file is closed: \(context)") { !ForeignChangeTests.isOpen(body) }
    }
    if activity == .restarted {
      test.stop()
      test = try server()
      // It reads the record at this request at the latest. Without a record, it would not know the upload.
      #expect(try test.connect().head(location).status == 204, "\(context)")
      client = try test.connect()
    }
    let moved = try loss.perform(in: directory, keeping: kept)
    if asksFirst {
      #expect(try test.connect().head(location).status == 410, "\(context)")
    } else {
      if activity == .sending {
        try client.sendChunk("def")
      } else {
        try client.patch(location, at: 3, body: "def")
      }
      let (answer, interim) = try client.final()
      #expect(answer.status == 410 && interim.isEmpty, "\(context): \(answer) \(interim)")
    }
    #expect(try test.connect().head(location).status == 410, "\(context)")
    // The operator still has the bytes from before the move.
    if let moved {
      let name = location.split(separator: "/").last ?? ""
      #expect(try fileContents("\(moved)/\(name).body") == Array("abc".utf8), "\(context)")
      #expect(try allNames(in: moved).contains("\(name).upload"), "\(context)")
    }
    let next = try test.connect()
    try next.patch(try test.create("/echo"), at: 0, completes: true, body: "abc")
    #expect(try next.final().answer.body == "abc", "\(context)")
    let reports = test.events.all.count { $0.reason?.contains(".uploads was removed") == true }
    #expect(reports == 1, "\(context)")
    test.stop()
    let last = try server()
    #expect(try last.connect().head(location).status == 410, "\(context)")
    last.stop()
  }

  @Test(
    "an upload that ends after the move changes nothing in the moved directory, and the next server knows its end",
    arguments: [1, 2])
  func endedAfterMove(_ threads: Int) throws {
    let kept = TemporaryDirectory()
    let test = try TestServer { $0.threads = threads }
    let location = try test.create()
    try test.append(location, at: 0, "abc")
    let moved = try #require(try Loss.moved.perform(in: test.directory, keeping: kept))
    let client = try test.connect()
    try client.request("DELETE", location)
    #expect(try client.final().answer.status == 204)
    #expect(try test.connect().head(location).status == 410)
    let record = location.split(separator: "/").last.map { "\($0).upload" } ?? ""
    #expect(try Self.uploads(in: moved) == [record])
    let directory = test.directory
    test.stop()
    let next = try TestServer(in: directory)
    #expect(try next.connect().head(location).status == 410)
    next.stop()
  }

  @Test(
    "a directory that cannot be examined leaves no descriptor open, and does not count as replaced later",
    .enabled(if: disk_faults_are_possible() != 0))
  func unexamined() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let parent = open(directory.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
      let records = RecordsDirectory(in: parent)
      disk_faults_begin(directory.path)
      disk_faults_fail(DISK_STATUS, 1, EIO)
      var code: Int32 = 0
      do throws(SystemError) { _ = try records.open(makesIt: true) } catch { code = error.code }
      try require(code == EIO, "error \(code)")
      try require(!ForeignChangeTests.isOpen(directory.path + "/.uploads"), "it is closed")
      let opened = try records.open(makesIt: true)
      try require(!opened.isReplacement, "it is the first one")
      close(opened.descriptor)
      close(parent)
    }
  }
}
