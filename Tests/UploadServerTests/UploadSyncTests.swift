// Tests when a server syncs uploads and closed recordings, by its durability. Each test runs in a separate process
// because the gate for fdatasync applies to the whole process.

import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Syncs by durability")
struct UploadSyncTests {
  @Test(
    "with none, nothing is ever synced; with interval, a busy upload is, in the background, at most once per second")
  func noneAndInterval() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .none }
      let location = try test.create()
      let client = try test.connect()
      for offset in 0..<20 {
        try client.patch(location, at: offset, completes: offset == 19, body: "x")
        _ = try client.final()
      }
      try require(sync_gate_calls() == 0, "none")

      let busy = try TestServer { $0.durability = .interval }
      let upload = try busy.create()
      let appending = try busy.connect()
      // The record is synced in the background.
      try waitUntil("the record is synced") { sync_gate_calls() > 0 }
      try appending.patch(upload, at: 0, chunked: true)
      try appending.awaitProgress(0)
      var time = timespec()
      clock_gettime(CLOCK_MONOTONIC, &time)
      let start = time.tv_sec
      var pieces = 0
      while time.tv_sec < start + 4 {
        try appending.sendChunk("x")
        pieces += 1
        // Pauses between pieces of a live stream.
        poll(nil, 0, 10)
        clock_gettime(CLOCK_MONOTONIC, &time)
      }
      let calls = sync_gate_calls()
      try require(calls >= 3 && calls <= 9, "\(calls) syncs for \(pieces) pieces in about 4 seconds")
    }
  }

  @Test("with interval, bytes after a sync are synced in the next one, repeatedly")
  func rounds() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .interval }
      let uploads = try (0..<2).map { _ in try test.create() }
      let clients = try uploads.map { upload in
        let client = try test.connect()
        try client.patch(upload, at: 0, chunked: true)
        try client.awaitProgress(0)
        return client
      }
      // Two records each: one for the existence of the upload, one for its beginning.
      try waitUntil("the records are synced") { sync_gate_calls() >= 4 }
      for round in 1...3 {
        let before = sync_gate_calls()
        for client in clients { try client.sendChunk("x") }
        try waitUntil("round \(round) has come") { sync_gate_calls() >= before + 2 }
      }
    }
  }

  @Test(
    "a closed recording has its final name when the disk has it, like an ended stream",
    arguments: Durability.allCases)
  func closed(_ durability: Durability) async {
    await #expect(processExitsWith: .success) { [durability = durability.rawValue as String] in
      let durability = Durability(rawValue: durability) ?? .none
      let test = try TestServer {
        $0.durability = durability
        $0.finishAfter = .milliseconds(100)
      }
      let plain = try test.connect()
      try plain.send(TestServer.head(id: "a"))
      try plain.sendChunk("abc")
      _ = try test.events.wait(.begun)
      try waitUntil("all has arrived") { plain.unacknowledged == 0 }
      sync_gate_close()
      let before = sync_gate_calls()
      plain.disconnect()
      if durability != .none {
        try waitUntil("the server asks the disk") { sync_gate_calls() > before }
        try require(test.directory.exists("t-a.part"), "no final name before the bytes are on the disk")
        // The end of the recording is recorded before.
        try require(try test.directory.text("t-a.gaps").contains("interrupted"), "noted")
        sync_gate_open()
      }
      _ = try test.events.wait(.closed)
      try require(try test.directory.text("t-a.txt") == "abc", "named")
      try require(durability != .none || sync_gate_calls() == before, "none is never synced")
    }
  }
}
