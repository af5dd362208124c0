// Tests what counts as stored if the disk refuses a sync. Each test runs in a separate process because the refusal of
// fdatasync applies to the whole process.

import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Syncs that the disk refuses")
struct RefusedSyncTests {
  @Test(
    "bytes that the disk refuses do not count: with always, the upload returns to the synced offset, and reports it")
  func refusedByTheDisk() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abc")
      try require(try client.final().answer["upload-offset"] == "3", "safe")
      sync_gate_fail(EIO)
      try client.patch(location, at: 3, body: "def")
      let refused = try client.final().answer
      try require(refused.status == 500 && refused["upload-offset"] == "3", "refused: \(refused)")
      sync_gate_fail(0)
      let again = try test.connect()
      try require(try again.head(location)["upload-offset"] == "3", "as told")
      try again.patch(location, at: 3, completes: true, body: "DEF")
      try require(try again.final().answer.status == 201, "and on")
      try require(try test.directory.text(test.onlyFile) == "abcDEF", "what was refused is not there twice")
    }
  }

  @Test("a server that ends counts the uploads whose acknowledged bytes the disk refuses")
  func refusedAtTheServersEnd() async {
    await #expect(processExitsWith: .success) {
      for durability in Durability.allCases {
        for error in [0, EIO, ENOSPC, EROFS] {
          let test = try TestServer { $0.durability = durability }
          for name in ["a", "b"] {
            let location = try test.create("/t.txt", ["Stream-ID: \(name)"])
            try test.append(location, at: 0, "abc")
          }
          try require(test.server.unsyncedUploadCount == 0, "nothing has ended")
          sync_gate_fail(error)
          test.stop()
          sync_gate_fail(0)
          let count = test.server.unsyncedUploadCount
          switch durability {
          case .none: try require(count == (error == 0 ? 0 : 2), "\(error): \(count)")
          // The round of each second may have synced or ended an upload before.
          case .interval: try require(count <= (error == 0 ? 0 : 2), "\(error): \(count)")
          case .always: try require(count == 0, "\(error): \(count)")
          }
        }
      }
    }
  }

  @Test("a server that ends does not count an upload whose record is refused if the disk has the acknowledged bytes")
  func refusedRecordAtTheServersEnd() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer {
        $0.durability = .none
        $0.threads = 1
      }
      // The upload ends inside these bytes, so only its record has its offset.
      try test.plain(id: "a", Array("0123456789".utf8))
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      try test.append(location, at: 0, "012")
      let client = try test.connect()
      try client.patch(location, at: 3, chunked: true)
      try client.awaitProgress(3)
      // No inode is left for another record.
      open_gate_fail(ENOSPC, "/.uploads/record-0.new")
      try client.sendChunk("34")
      try waitUntil("the record with the next offset is refused") { open_gate_failures() > 0 }
      test.stop()
      open_gate_fail(0, "")
      let count = test.server.unsyncedUploadCount
      try require(count == 0, "\(count) uploads")
      let next = try TestServer(in: test.directory)
      let answer = try next.connect().head(location)
      try require(answer["upload-offset"] == "3", "\(answer)")
    }
  }

  @Test("an end that the disk refuses completes nothing, and the refused bytes are sent again or discarded")
  func refusedAtTheEnd() async {
    await #expect(processExitsWith: .success) {
      for (durability, error) in [(Durability.always, EIO), (.always, ENOSPC), (.interval, EIO), (.interval, ENOSPC)] {
        let test = try TestServer { $0.durability = durability }
        let location = try test.create("/t.txt", ["Upload-Length: 6"])
        let client = try test.connect()
        try client.patch(location, at: 0, body: "abc")
        try require(try client.final().answer["upload-offset"] == "3", "acknowledged")
        sync_gate_fail(error)
        try client.patch(location, at: 3, completes: true, body: "def")
        let refused = try client.final().answer
        sync_gate_fail(0)
        let again = try test.connect()
        if durability == .always {
          let status = error == EIO ? 500 : 507
          try require(refused.status == status && refused["upload-offset"] == "3", "\(error): \(refused)")
          try require(refused["upload-complete"] == "?0", "\(refused)")
          try require(try again.head(location)["upload-offset"] == "3", "as told")
          try again.patch(location, at: 3, completes: true, body: "DEF")
          try require(try again.final().answer.status == 201, "and on")
          try require(try test.directory.text(test.onlyFile) == "abcDEF", "what was refused is not there")
        } else {
          // The sync that runs each second may already have ended the upload.
          try require(refused.status == 410, "\(error): \(refused)")
          try require(try again.head(location).status == 410, "a loss is not papered over")
          try require(!test.directory.names.contains { $0.hasSuffix(".txt") }, "and nothing passes for whole")
        }
      }
    }
  }

  @Test("an end that waits for the disk behind a refused sync of a progress report completes nothing")
  func refusedBeforeTheEnd() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create("/t.txt", ["Upload-Length: 9"])
      let first = try test.connect()
      try first.patch(location, at: 0, body: "abc")
      try require(try first.final().answer["upload-offset"] == "3", "acknowledged")
      let unrelated = try test.create("/other.txt")
      sync_gate_close()
      let before = sync_gate_calls()
      let client = try test.connect()
      try client.request(
        "PATCH", location, ["Content-Type: application/partial-upload", "Upload-Offset: 3", "Upload-Complete: ?1"],
        chunked: true)
      try client.sendChunk("def")
      try waitUntil("the sync for a progress report") { sync_gate_calls() > before }
      try client.sendChunk("ghi")
      try client.send("0\r\n\r\n")
      // The end gets its own sync, which succeeds. A HEAD is answered when each loop has served what arrived before it.
      try waitUntil("the end arrives") { client.unacknowledged == 0 }
      try require(try test.connect().head(unrelated).status == 204, "no answer to HEAD")
      sync_gate_fail_once(EIO, 0)
      sync_gate_open()
      let refused = try client.final().answer
      try require(refused.status == 500 && refused["upload-offset"] == "3", "\(refused)")
      let again = try test.connect()
      try require(try again.head(location)["upload-offset"] == "3", "as told")
      try again.patch(location, at: 3, completes: true, body: "DEFGHI")
      try require(try again.final().answer.status == 201, "and on")
      try require(try test.directory.text(test.onlyFile) == "abcDEFGHI", "what was refused is not there")
    }
  }

  @Test(
    "bytes of an interrupted plain stream that the disk refuses do not count for the upload that continues it",
    .enabled(if: disk_faults_are_possible() != 0))
  func refusedBeforeTheBeginning() async {
    await #expect(processExitsWith: .success) {
      var lostCount = 0
      for number in 1...8 {
        let test = try TestServer { $0.durability = .always }
        disk_faults_begin(test.directory.path)
        defer { disk_faults_begin("") }
        let plain = try test.connect()
        try plain.send(TestServer.head("/t.txt", id: "a"))
        try plain.sendChunk("abc")
        try waitUntil("it is stored") { test.directory.exists("t-a.part") && plain.unacknowledged == 0 }
        plain.disconnect()
        _ = try test.events.wait(.interrupted)
        let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
        disk_faults_fail(DISK_SYNC, UInt(number), EIO)
        let client = try test.connect()
        try client.patch(location, at: 0, completes: true, body: "def")
        // A server that gives up an upload closes the connection of its active request.
        let status = try client.finalUnlessCutOff()?.status ?? 410
        guard status >= 400 else { continue }
        let again = try test.connect().head(location)
        let rest = try test.connect()
        if again.status == 410 {
          lostCount += 1
          try rest.send(TestServer.head("/t.txt", id: "a", offset: 3) + "3\r\ndef\r\n0\r\n\r\n")
          let end = try rest.final().answer
          try require(end.status == 201 && end["stream-missing"] == "3", "\(number): \(end)")
          try require(try test.directory.text("t-a.gaps").contains("not-synced"), "and is not called complete")
        } else {
          if again["upload-complete"] != "?1" {
            let offset = again["upload-offset"].flatMap { Int($0) } ?? 0
            try rest.patch(location, at: offset, completes: true, body: String("def".dropFirst(offset)))
            let end = try rest.final().answer
            try require((200...201).contains(end.status), "\(number): \(status), \(again), then \(end)")
          }
          try require(try test.directory.text("t-a.txt") == "abcdef", "\(number): all of it")
          let count = disk_faults_unsynced(test.directory.path + "/t-a.txt")
          try require(count == 0, "\(number): the disk lacks \(count) bytes of a complete recording")
        }
      }
      try require(lostCount > 0, "no bytes of the plain stream were lost")
    }
  }

  @Test(
    "a plain stream whose end the disk refuses is not complete: bytes that are not sent again into a next part are missing"
  )
  func refusedPlainEnd() async {
    await #expect(processExitsWith: .success) {
      for (durability, error) in [(Durability.always, EIO), (.always, ENOSPC), (.interval, EIO), (.interval, ENOSPC)] {
        let test = try TestServer { $0.durability = durability }
        func send(_ id: String, at offset: Int, _ body: String) throws -> RawClient.Answer {
          let client = try test.connect()
          defer { client.disconnect() }
          try client.request(
            "POST", "/t.txt", version: nil,
            ["Stream-ID: \(id)", "Stream-Offset: \(offset)", "Content-Type: text/plain"], body: body)
          return try client.answer()
        }
        let status = error == EIO ? 500 : 507
        sync_gate_fail(error)
        for id in ["a", "b"] {
          for _ in 0..<3 {
            let refused = try send(id, at: 0, "abcdef")
            try require(refused.status == status && refused["retry-after"] != nil, "\(error): \(refused)")
          }
        }
        sync_gate_fail(0)
        // A client that has all bytes sends all of them.
        let again = try send("a", at: 0, "abcdef")
        try require(again.status == 201 && again["stream-missing"] == "0", "\(error): \(again)")
        try require(try test.directory.text("t-a~2.txt") == "abcdef", "a file of its own")
        // A client without all bytes learns which ones are missing.
        let rest = try send("b", at: 6, "ghi")
        try require(rest.status == 201 && rest["stream-missing"] == "6", "\(error): \(rest)")
        try require(try test.directory.text("t-b~2.txt") == "ghi", "and so is this")
        for id in ["a", "b"] {
          try require(try test.directory.text("t-\(id).txt") == "abcdef", "what may be there stays")
          try require(try test.directory.text("t-\(id).gaps").contains("not-synced"), "and is not called complete")
        }
        test.stop()
      }
    }
  }

  @Test("after an upload whose acknowledged bytes the disk refused, its stream continues in a next part")
  func refusedUpload() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .interval }
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let client = try test.connect()
      sync_gate_fail(EIO)
      try client.patch(location, at: 0, body: "abc")
      try require(try client.final().answer["upload-offset"] == "3", "acknowledged")
      try waitUntil("the round of the second") { (try? client.head(location).status) == 410 }
      sync_gate_fail(0)
      let plain = try test.connect()
      try plain.send(TestServer.head("/t.txt", id: "a", offset: 3) + "3\r\ndef\r\n0\r\n\r\n")
      let answer = try plain.answer()
      try require(answer.status == 201 && answer["stream-missing"] == "3", "\(answer)")
      try require(try test.directory.text("t-a~2.txt") == "def", "what came after")
      try require(try test.directory.text("t-a.txt") == "abc", "and before")
    }
  }

  @Test(
    "with interval, the server ends an upload whose acknowledged bytes the disk refuses, and reports it (draft, section Offset)"
  )
  func lostInTheBackground() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .interval }
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abc")
      try require(try client.final().answer.status == 204, "acknowledged")
      sync_gate_fail(EIO)
      _ = try test.events.wait(.interrupted)
      sync_gate_fail(0)
      try require(try client.head(location).status == 410, "a loss is not papered over")
    }
  }
}
