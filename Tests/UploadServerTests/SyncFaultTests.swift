// Tests a disk that refuses a single sync, whichever it is: a client that follows the server's answers loses no bytes,
// and no file or stream replaces another.

import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("A disk that refuses one sync", .serialized)
struct SyncFaultTests {
  struct Cell: CustomTestStringConvertible, Sendable {
    var durability: Durability
    var isSplit: Bool
    /// Whether the server is restarted after its disk has refused a sync.
    var restarts: Bool
    var testDescription: String { "\(durability)\(isSplit ? ", split" : "")\(restarts ? ", restarted" : "")" }

    static let all = [Durability.always, .interval].flatMap { durability in
      [false, true].flatMap { isSplit in
        [false, true].map { Cell(durability: durability, isSplit: isSplit, restarts: $0) }
      }
    }
  }

  @Test("for each sync, each acknowledged byte is stored at its offset", arguments: Cell.all)
  func product(_ cell: Cell) async {
    let (durability, isSplit, restarts) = (cell.durability.rawValue, cell.isSplit, cell.restarts)
    await #expect(processExitsWith: .success) {
      [
        durability = durability as String, isSplit = isSplit as Bool, restarts = restarts as Bool
      ] in
      let cell = Cell(durability: Durability(rawValue: durability) ?? .none, isSplit: isSplit, restarts: restarts)
      for number in 0..<14 { try SyncFaultTests.run(cell, number, [8, 5][number / 2 % 2]) }
    }
  }

  @Test("an offset that the disk refuses to store is not announced")
  func unsettled() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      try test.append(location, at: 0, "abc")
      let client = try test.connect()
      try client.patch(location, at: 3, ["Stream-Progress-Interval: 60"], chunked: true)
      sync_gate_close()
      try client.sendChunk("def")
      try waitUntil("the bytes have arrived") { (try? test.directory.text("t-a.part")) == "abcdef" }
      let other = try test.connect()
      let calls = sync_gate_calls()
      try other.request("HEAD", location)
      sync_gate_fail(EIO)
      try waitUntil("the disk is asked") { calls > 0 || sync_gate_calls() > calls }
      sync_gate_open()
      let answer = try other.final(withBody: false).answer
      // Either the HEAD waited for that sync, or the bytes were dropped before it.
      try require(answer["upload-offset"] == (answer.status >= 500 ? nil : "3"), "\(answer)")
      sync_gate_fail(0)
    }
  }

  @Test("a handler that received bytes before the disk refused them receives the bytes after them, before any end")
  func handlerAhead() async {
    await #expect(processExitsWith: .success) {
      let log = WrappedHandlerTests.Log()
      let test = try TestServer {
        $0.durability = .always
        $0.handler = { head in
          WrappedHandlerTests.Echo(head, log) { body in
            log.add("received \(body)")
            return nil
          }
        }
      }
      let location = try test.create("/echo")
      try test.append(location, at: 0, "ab")
      let client = try test.connect()
      try client.patch(location, at: 2, ["Stream-Progress-Interval: 60"], chunked: true)
      try client.awaitProgress(2)
      sync_gate_fail(EIO)
      try client.sendChunk("cdef")
      try waitUntil("the handler has the bytes") { log.all.contains("received abcdef") }
      // Its answer waits for the disk, unless the bytes were dropped before it.
      _ = try test.connect().head(location)
      sync_gate_fail(0)
      let answer = try test.connect().head(location)
      try require(answer.status == 204 && answer["upload-offset"] == "2", "the refused bytes do not count: \(answer)")
      let next = try test.connect()
      try next.patch(location, at: 2, chunked: true)
      try next.sendChunk("cdefgh")
      try waitUntil("the handler has the bytes after them") { log.all.contains("received abcdefgh") }
      try next.send("0\r\n\r\n")
      let appended = try next.final().answer
      try require(appended["upload-offset"] == "8", "\(appended)")
      try next.patch(location, at: 8, completes: true, body: "")
      let end = try next.final().answer
      try require(end.status == 200 && end.body == "abcdefgh", "\(end)")
      test.stop()
    }
  }

  private static func run(_ cell: Cell, _ number: Int, _ version: Int) throws {
    let head = StreamedHead.all[0]
    let stream = head.bytes + (0..<3000).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 11) }
    let directory = TemporaryDirectory()
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        $0.durability = cell.durability
        guard cell.isSplit else { return }
        $0.split = RecordingSplit(size: UInt64(head.bytes.count) + 400)
        $0.split?.leastLength = 0
      }
    }
    let client = ContinuingClient(try server(), stream, version, awaitsProgress: number % 2 == 0)
    sync_gate_fail_once(EIO, UInt(number))
    var hasRestarted = false
    for _ in 0..<200 where !client.isComplete {
      try client.attempt()
      // The restart happens immediately, or after further bytes have been acknowledged.
      if cell.restarts, !hasRestarted, sync_gate_has_failed() != 0, number % 2 == 0 || client.acknowledged > 1800 {
        hasRestarted = true
        client.test.stop()
        client.test = try server()
      }
      poll(nil, 0, 5)
    }
    sync_gate_fail_once(0, 0)
    let context = "\(cell.testDescription), sync \(number), version \(version): \(client.trace)"
    try require(client.isComplete, "it never ends: \(context)")
    client.test.stop()
    // The next server has finished its work by then.
    let last = try server()
    try waitUntil("all is finished: \(context)") {
      directory.names.filter { $0.hasPrefix("k-a") && ($0.hasSuffix(".wav") || $0.hasSuffix(".part")) }
        .allSatisfy { $0.hasSuffix(".wav") && directory.exists(String($0.dropLast(4)) + ".sidecar") }
    }
    last.stop()
    try client.requireStored(in: directory, head: head.bytes.count, context)
  }

  @Test("an upload is over if the disk refuses its end, and the server cannot drop the refused bytes")
  func undroppedEnd() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { ($0.durability, $0.threads) = (.always, 1) }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      try test.append(location, at: 0, "abc")
      truncate_gate_fail(ENOMEM, ".part")
      sync_gate_fail(EIO)
      let client = try test.connect()
      // Without a version, no progress is announced. So the first sync is that of the end.
      try client.request(
        "PATCH", location, version: nil,
        ["Upload-Complete: ?1", "Upload-Offset: 3", "Content-Type: application/partial-upload"], chunked: true)
      try client.sendChunk("def")
      try client.send("0\r\n\r\n")
      let answer = try client.final().answer
      try require(truncate_gate_failures() > 0, "the bytes were to be dropped: \(answer)")
      sync_gate_fail(0)
      truncate_gate_fail(0, "")
      try require(answer.status == 410, "\(answer)")
      let told = try test.connect().head(location)
      try require(told.status == 410, "the refused bytes do not count: \(told)")
    }
  }
}
