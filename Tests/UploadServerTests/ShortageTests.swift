// Tests that a server which temporarily lacks descriptors or memory loses no byte and does not claim that it did.

import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import ResumableServing
@testable import StreamServing
@testable import UploadServer

@Suite("A server that lacks something for a while")
struct ShortageTests {
  private enum Place: CaseIterable {
    /// Reading the list of a stream's recordings.
    case parts
    /// Opening the growing recording.
    case file
    /// The sync itself.
    case sync
    /// Writing the record of an upload.
    case record

    func fail(_ code: Int32) {
      switch self {
      case .parts: open_gate_fail(code, "-a")
      case .file: open_gate_fail(code, ".part")
      case .sync: sync_gate_fail(code)
      case .record: open_gate_fail(code, "/record-0.new")
      }
    }

    static func recover() {
      open_gate_fail(0, "")
      sync_gate_fail(0)
    }
  }

  private struct Cell {
    var place: Place
    var code: Int32
    var durability: Durability
    var restarts: Bool

    /// Whether the failure may lose acknowledged bytes.
    var isRefusal: Bool { place == .sync && (code == EIO || code == ENOSPC) }
  }

  @Test(
    "bytes that no sync has refused stay acknowledged, whatever fails and wherever the upload is",
    arguments: [Durability.always, .interval], [false, true])
  func product(_ durability: Durability, restarts: Bool) async {
    let name = durability.rawValue
    await #expect(processExitsWith: .success) { [name = name as String, restarts = restarts as Bool] in
      for place in Place.allCases {
        for code in [EMFILE, ENFILE, ENOMEM, EIO, ENOSPC] {
          try ShortageTests.run(
            Cell(place: place, code: code, durability: Durability(rawValue: name) ?? .none, restarts: restarts))
        }
      }
    }
  }

  private static func run(_ cell: Cell) throws {
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        $0.threads = 1
        $0.durability = cell.durability
        $0.uploads.parkDelay = .milliseconds(200)
      }
    }
    func record(_ location: String) -> String { ".uploads/\(location.split(separator: "/").last ?? "").upload" }
    var test = try server()
    let left = try test.create("/left.bin", ["Stream-ID: a"])
    try test.append(left, at: 0, "abc")
    // Imitates a kill of that server.
    let note = try directory.contents(record(left))
    test.stop()
    try directory.write(record(left), note)
    test = try server()
    let parked = try test.create("/parked.bin", ["Stream-ID: a"])
    try test.append(parked, at: 0, "abc")
    let taken = try test.create("/taken.bin", ["Stream-ID: a"])
    try test.append(taken, at: 0, "abc")
    let taker = try test.create("/taken.bin", ["Stream-ID: a", "Stream-Offset: 3"])
    try test.append(taker, at: 0, "abc")
    let open = try test.create("/open.bin", ["Stream-ID: a"])
    let client = try test.connect()
    try client.patch(open, at: 0, chunked: true)
    try client.sendChunk("abc")
    try client.awaitProgress(3)

    cell.place.fail(cell.code)
    try client.sendChunk("def")
    for location in [left, parked, taken, taker] {
      let answer = try test.connect().head(location)
      try require(cell.isRefusal || (answer.status != 410 && answer.status != 404), "\(cell): \(answer)")
    }
    if cell.restarts {
      test.stop()
      Place.recover()
      test = try server()
    } else if cell.durability == .interval {
      // The server retries after a failure. A file that it cannot open is synced and not marked.
      if cell.place != .sync {
        try waitUntil("the next round") { open_gate_failures() > 2 }
        Place.recover()
      }
      try waitUntil("\(cell): the disk has it, or it is lost") {
        try [parked, taken].allSatisfy {
          let text = try directory.text(record($0))
          return !text.contains("Unsynced") || text.contains("Deactivated")
        } || test.events.all.contains { $0.kind == .interrupted }
      }
    }
    Place.recover()
    if !cell.isRefusal {
      for location in [left, parked, taken, taker, open] {
        let answer = try test.connect().head(location)
        let offset = answer["upload-offset"].flatMap { Int($0) } ?? 0
        // Also accepts the other half of the stream, or bytes that arrived during the shortage.
        let mayBeMore = location == taken || location == open
        try require(answer.status < 300 && (offset == 3 || mayBeMore && offset == 6), "\(cell): \(answer)")
      }
      for (location, file) in [(left, "left-a.bin"), (parked, "parked-a.bin")] {
        let last = try test.connect()
        try last.patch(location, at: 3, completes: true, body: "xyz")
        let answer = try last.final().answer
        try require(answer.status == 201, "\(cell): \(answer)")
        try require(try directory.text(file) == "abcxyz", "\(cell): \(file)")
      }
    }
    test.stop()
  }

  @Test("the record marks bytes as not synced before they are acknowledged, even after it could not be written")
  func noted() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let test = try TestServer(in: directory) { ($0.durability, $0.threads) = (.interval, 1) }
      let upload = try test.create("/t.bin", ["Stream-ID: a"])
      try test.append(upload, at: 0, "abc")
      let record = ".uploads/\(upload.split(separator: "/").last ?? "").upload"
      try waitUntil("the round of the second") { try !directory.text(record).contains("Unsynced") }
      open_gate_fail(EMFILE, "/record-0.new")
      let refused = try test.connect()
      try refused.patch(upload, at: 3, body: "def")
      let answer = try refused.final().answer
      try require(answer.status == 503, "\(answer)")
      open_gate_fail(0, "")
      let client = try test.connect()
      try client.patch(upload, at: 3, chunked: true)
      try client.sendChunk("def")
      try client.awaitProgress(6)
      try require(try directory.text(record).contains("Unsynced"), "noted")
      test.stop()
    }
  }
}
