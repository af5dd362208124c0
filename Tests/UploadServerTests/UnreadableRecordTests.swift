// Tests upload records that cannot be read after a restart: the server must not touch anything that may belong to them.

import EventLoops
import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import ResumableServing
@testable import StreamServing
@testable import UploadServer

/// The path of an upload's record in the server's directory.
private func record(_ location: String) -> String { location.dropFirst() + ".upload" }

@Suite("Records of uploads that cannot be read")
struct UnreadableRecordTests {
  @Test(
    "a recording stays open while a record that may belong to it is unreadable, and the record is read again automatically",
    arguments: [EIO, EACCES, EMFILE], [1, 2])
  func kept(_ code: Int32, _ threads: Int) async {
    await #expect(processExitsWith: .success) { [code = code as Int32, threads = threads as Int] in
      let directory = TemporaryDirectory()
      func server(finishAfter: Duration) throws -> TestServer {
        try TestServer(in: directory) { ($0.threads, $0.finishAfter) = (threads, finishAfter) }
      }
      let first = try server(finishAfter: .seconds(60))
      let live = try first.create("/live.txt", ["Stream-ID: a"])
      try first.append(live, at: 0, Array("abc".utf8))
      let file = try first.create("/file.txt", ["Stream-ID: a", "Upload-Length: 6"])
      try first.append(file, at: 0, Array("abc".utf8))
      first.stop()
      try directory.write("x-y.part", Array("of nobody".utf8))

      open_gate_fail(code, ".upload")
      let test = try server(finishAfter: .milliseconds(300))
      for location in [live, file] {
        let warning = try test.events.wait("a warning with the path and the remedy") { events in
          events.first { $0.reason?.contains(record(location)) == true }
        }
        try require(warning.kind == .warning && warning.reason?.contains("move the file away") == true, "\(warning)")
        for method in ["HEAD", "DELETE", "PATCH"] {
          let client = try test.connect()
          if method == "PATCH" {
            try client.patch(location, at: 3, body: "def")
          } else {
            try client.request(method, location)
          }
          let answer = try client.final(withBody: method != "HEAD").answer
          try require(answer.status == 503 && answer["retry-after"] != nil, "\(method): \(answer)")
        }
      }
      // Another client continues the stream of one of them, and then also disconnects.
      let other = try test.connect()
      try other.send(TestServer.head("/file.txt", offset: 3))
      try other.sendChunk("d")
      try waitUntil("it is stored") { try directory.text("file-a.part") == "abcd" }
      other.reset()
      try require(try test.events.wait(.closed).file == "x-y.bin", "only what is nobody's")
      let (count, start) = (open_gate_failures(), MonotonicInstant.now)
      try waitUntil("they are read again") { open_gate_failures() >= count + 4 }
      // In this time the server would close the recordings if it assumed that no upload owns them.
      poll(nil, 0, 400)
      try require(test.events.all.count { $0.kind == .closed } == 1, "\(test.events.all)")
      try require(test.events.all.count { $0.kind == .warning } == 2, "reported once for each: \(test.events.all)")
      // At most a hundred times per second, however long this takes.
      let most = 40 + UInt((MonotonicInstant.now - start).milliseconds / 10)
      try require(open_gate_failures() < count + most, "not again and again")
      try require(directory.exists(record(live)) && directory.exists(record(file)), "the records")

      open_gate_fail(0, "")
      // This needs no request: the server now knows the live upload, and closes its recording because no client
      // continued it.
      let closed = try test.events.wait(.closed, count: 2)
      try require(closed.file == "live-a.txt", "\(closed)")
      let answer = try test.connect().head(file)
      let offset = answer["upload-offset"].flatMap { Int($0) } ?? 0
      try require(answer.status == 204 && (3...4).contains(offset), "\(answer)")
      let last = try test.connect()
      try last.patch(file, at: offset, completes: true, body: String("abcdef".dropFirst(offset)))
      let end = try last.final().answer
      try require((200...201).contains(end.status), "\(end)")
      try require(try directory.text("file-a.txt") == "abcdef", "all of it")
      test.stop()
    }
  }

  @Test("a record that was moved away is dropped, and its recording is closed as one without an upload")
  func movedAway() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let first = try TestServer(in: directory)
      let upload = try first.create("/t.txt", ["Stream-ID: a"])
      try first.append(upload, at: 0, Array("abc".utf8))
      first.stop()
      open_gate_fail(EIO, record(upload))
      let test = try TestServer(in: directory) { $0.finishAfter = .milliseconds(200) }
      _ = try test.events.wait(.warning)
      unlink(directory.path + "/" + record(upload))
      open_gate_fail(0, "")
      try require(try test.events.wait(.closed).file == "t-a.bin", "\(test.events.all)")
      try require(try test.connect().head(upload).status == 404, "it is gone")
      test.stop()
    }
  }

  // MARK: Every operation, whatever is known

  /// The state of the server's list of uploads.
  private enum Listing: CaseIterable {
    case notBegun, failed, brokenOff, inProgress, unreadable, done

    /// Prepares this state before the server starts.
    ///
    /// - Parameter hidden: the record of an upload that stays unknown for a while.
    func begin(hiding hidden: String) {
      switch self {
      case .notBegun: open_gate_delay(300_000, "/.uploads/.")
      case .failed: open_gate_fail(EIO, "/.uploads/.")
      case .brokenOff: list_gate_fail(EIO, "/.uploads", 5)
      case .inProgress: open_gate_delay(30_000, ".upload")
      case .unreadable: open_gate_fail(EIO, hidden)
      case .done: break
      }
    }

    static func end() {
      open_gate_delay(0, "")
      open_gate_fail(0, "")
      list_gate_fail(0, "", 0)
    }

    /// Whether the list cannot become complete by itself.
    var isStuck: Bool { self == .failed || self == .brokenOff || self == .unreadable }
  }

  enum Operation: String, CaseIterable {
    case cancel, expire, reject, complete, continuePlainly, head
  }

  private struct Cell {
    var operation: Operation
    var listing: Listing
    /// Whether another upload has acknowledged bytes in the same recording.
    var isShared: Bool
    var threads: Int
  }

  @Test(
    "an upload's end loses no byte of another upload, and leaves no file, at any state of the list of uploads",
    arguments: Operation.allCases, [1, 2])
  func product(_ operation: Operation, _ threads: Int) async {
    await #expect(processExitsWith: .success) { [name = operation.rawValue as String, threads = threads as Int] in
      for listing in Listing.allCases {
        for isShared in [true, false] {
          let operation = Operation(rawValue: name) ?? .cancel
          try UnreadableRecordTests.run(
            Cell(operation: operation, listing: listing, isShared: isShared, threads: threads))
        }
      }
    }
  }

  private static func run(_ cell: Cell) throws {
    let directory = TemporaryDirectory()
    let first = try TestServer(in: directory) { $0.threads = cell.threads }
    // Further uploads whose records are read between those of the test.
    for number in 0..<8 { _ = try first.create("/f\(number).txt", ["Stream-ID: b"]) }
    // A digest that matches no content of the test.
    let wrong = "Repr-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"
    // The upload whose end is tested has a length, so it expires like that of a file. The other has no length.
    let lines = ["Stream-ID: a", "Upload-Length: \(cell.isShared ? 6 : 9)"]
    var sharer = ""
    if cell.isShared {
      // If two uploads of files share a recording, the last one may remove it. In the test of expiry the other upload
      // has no length, because it must live longer.
      let length = cell.operation == .expire ? [] : ["Upload-Length: 9"]
      sharer = try first.create("/t.txt", ["Stream-ID: a"] + length)
      try first.append(sharer, at: 0, Array("abc".utf8))
    }
    let start = cell.isShared ? ["Stream-Offset: 3"] : []
    let upload = try first.create("/t.txt", lines + start + (cell.operation == .reject ? [wrong] : []))
    try first.append(upload, at: 0, Array((cell.isShared ? "def" : "abcdef").utf8))
    first.stop()

    cell.listing.begin(hiding: record(cell.isShared ? sharer : upload))
    let test = try TestServer(in: directory) {
      $0.threads = cell.threads
      $0.uploads.loadPatience = .zero
      $0.finishAfter = cell.operation == .continuePlainly ? .milliseconds(200) : .seconds(60)
      if cell.operation == .expire { $0.uploads.maximumAge = .milliseconds(200) }
    }
    try perform(cell, upload, test)
    Listing.end()
    try judge(cell, upload, sharer, test)
    test.stop()
  }

  /// Performs the operation as far as possible.
  private static func perform(_ cell: Cell, _ upload: String, _ test: TestServer) throws {
    let isUnreadable = cell.listing == .unreadable && !cell.isShared
    let client = try test.connect()
    switch cell.operation {
    case .cancel:
      try client.request("DELETE", upload)
      let answer = try client.final().answer
      try require(answer.status == (cell.listing.isStuck ? 503 : 204), "\(cell): \(answer)")
      try require(answer.status == 204 || answer["retry-after"] != nil, "\(cell): \(answer)")
    case .expire:
      _ = try client.head(upload)
      // In this time the server would remove the recording if it did not know of the other upload.
      if cell.listing.isStuck { poll(nil, 0, 450) }
      try require(!cell.listing.isStuck || test.directory.exists("t-a.part"), "\(cell): \(test.directory.names)")
    case .reject, .complete:
      let offset = cell.isShared ? 3 : 6
      try client.patch(upload, at: offset, completes: true, body: "ghi")
      let answer = try client.final().answer
      let statuses = isUnreadable ? 503...503 : cell.operation == .reject ? 400...400 : 200...201
      try require(statuses.contains(answer.status), "\(cell): \(answer)")
    case .continuePlainly:
      try client.send(TestServer.head("/t.txt", offset: 6))
      try client.sendChunk("ghi")
      try waitUntil("it is stored") { try test.directory.text("t-a.part") == "abcdefghi" }
      client.reset()
      if cell.listing.isStuck { poll(nil, 0, 450) }
      try require(
        !cell.listing.isStuck || test.directory.exists("t-a.part"), "\(cell): \(test.directory.names)")
    case .head:
      let answer = try client.head(upload)
      try require(
        isUnreadable ? answer.status == 503 : answer["upload-offset"] == (cell.isShared ? "3" : "6"),
        "\(cell): \(answer)")
    }
  }

  /// Checks the files after the server knows all uploads.
  private static func judge(_ cell: Cell, _ upload: String, _ sharer: String, _ test: TestServer) throws {
    let directory = test.directory
    if cell.operation == .cancel, cell.listing.isStuck {
      try waitUntil("\(cell): it can be cancelled") {
        let client = try test.connect()
        try client.request("DELETE", upload)
        return try client.final().answer.status == 204
      }
    }
    if cell.operation == .expire {
      // After the same time again, the server removes the record.
      try waitUntil("\(cell): it expires") {
        (try? directory.text(record(upload)))?.contains("expired") ?? true
      }
    }
    if cell.isShared {
      var answer = try test.connect().head(sharer)
      try waitUntil("\(cell): the other upload is known") {
        answer = try test.connect().head(sharer)
        return answer.status != 503
      }
      try require(answer.status == 204, "\(cell): \(answer)")
      let isComplete = cell.operation == .complete
      let name = isComplete ? "t-a.txt" : "t-a.part"
      try require(try directory.text(name).hasPrefix("abcdef"), "\(cell): \(directory.names)")
      let offset = answer["upload-offset"].flatMap { Int($0) } ?? 0
      try require(offset >= 3, "\(cell): \(answer)")
      return
    }
    switch cell.operation {
    case .cancel, .expire:
      try require(!directory.names.contains { $0.hasPrefix("t-a.") }, "\(cell): \(directory.names)")
    case .complete where cell.listing != .unreadable:
      try require(try directory.text("t-a.txt") == "abcdefghi", "\(cell)")
    default: break
    }
  }
}
