// Tests the promise of an acknowledgement at the system call that keeps it. Each test runs in a separate process
// because the gate for fdatasync applies to the whole process.

import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Durability of resumable uploads")
struct UploadDurabilityTests {
  @Test("with always, DELETE is answered once the disk has recorded it, and no later server knows the upload")
  func cancellation() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create()
      sync_gate_close()
      let before = sync_gate_calls()
      let client = try test.connect()
      try client.request("DELETE", location)
      try waitUntil("the server asks the disk") { sync_gate_calls() > before }
      try require(!client.hasAnswer, "not before")
      sync_gate_open()
      try require(try client.final().answer.status == 204, "then it is")
    }
  }

  @Test(
    "with always, the record that an upload has begun is written after its file, so no power failure leaves an empty one"
  )
  func begun() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create()
      let client = try test.connect()
      let records = test.directory.path + "/.uploads"
      func saysSo() throws -> Bool {
        try ScratchListing(records).names.contains {
          (try? test.directory.text(".uploads/" + $0))?.contains("Begun: ?1") == true
        }
      }
      try require(try !saysSo(), "not begun")
      defer { sync_gate_open() }
      sync_gate_close()
      let before = sync_gate_calls()
      try client.patch(location, at: 0, chunked: true)
      try waitUntil("the server asks the disk") { sync_gate_calls() > before }
      try require(test.directory.exists(test.onlyFile) && !saysSo(), "not before its file is on the disk")
      sync_gate_open()
      try client.awaitProgress(0)
      try require(try saysSo(), "then it has")
    }
  }

  /// The location of an upload with three bytes, whose server has stopped.
  private static func leaveUpload(in directory: TemporaryDirectory, _ durability: Durability) throws -> String {
    let server = try TestServer(in: directory) { $0.durability = durability }
    let location = try server.create("/t.txt", ["Stream-ID: a"])
    try server.append(location, at: 0, "abc")
    server.stop()
    return location
  }

  @Test("a request that completes an upload is answered if another one has extended the stream meanwhile")
  func longerThanAnnounced() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let location = try UploadDurabilityTests.leaveUpload(in: directory, .always)
      // In the next server no request has opened the stream yet.
      let test = try TestServer(in: directory) { $0.durability = .always }
      sync_gate_close()
      let before = sync_gate_calls()
      let client = try test.connect()
      try client.patch(location, at: 3, completes: true, body: "de")
      try waitUntil("its length is on its way to the disk") { sync_gate_calls() > before }
      let other = try test.connect()
      try other.send(TestServer.head("/t.txt", id: "a", offset: 3))
      try other.sendChunk("defgh")
      try waitUntil("the stream is longer") { (try? directory.text("t-a.part")) == "abcdefgh" }
      sync_gate_open()
      try require(try client.final().answer.status == 410, "the upload is not what was reported")
    }
  }

  @Test("a HEAD that waits for the record of its upload reports an end that comes meanwhile")
  func endedMeanwhile() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let location = try UploadDurabilityTests.leaveUpload(in: directory, .interval)
      let record = ".uploads/" + location.dropFirst("/.uploads/".utf8.count) + ".upload"
      func isUnsynced() throws -> Bool { try directory.text(record).contains("Unsynced: ") }
      try require(try !isUnsynced(), "all of it is on the disk")
      let test = try TestServer(in: directory) { $0.durability = .interval }
      let other = try test.connect()
      try other.send(TestServer.head("/t.txt", id: "a", offset: 3))
      try other.sendChunk("defgh")
      try waitUntil("the stream is longer") { (try? directory.text("t-a.part")) == "abcdefgh" }
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      let asking = try test.connect()
      try asking.request("HEAD", location)
      try waitUntil("its record is on its way to the disk") { try isUnsynced() }
      let deleting = try test.connect()
      try deleting.request("DELETE", location)
      try require(try deleting.final().answer.status == 204, "cancelled")
      try require(!asking.hasAnswer, "not before the disk")
      sync_gate_open()
      let answer = try asking.final(withBody: false).answer
      try require(answer.status == 410 && answer["upload-offset"] == nil, "\(answer)")
    }
  }

  @Test("with always, neither a 104 nor a 2xx nor a response to HEAD has an offset before the disk has it")
  func always() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.awaitProgress(0)
      sync_gate_close()
      let before = sync_gate_calls()
      try client.sendChunk("abc")
      try waitUntil("the server asks the disk") { sync_gate_calls() > before }
      try require(!client.hasAnswer, "no 104 while the disk is at work")
      sync_gate_open()
      try client.awaitProgress(3)

      sync_gate_close()
      try client.sendChunk("def")
      try client.send("0\r\n\r\n")
      try waitUntil("all has arrived") { client.unacknowledged == 0 }
      let asking = try test.connect()
      try asking.request("HEAD", location)
      // Another request is served meanwhile, because the loop does not wait for the disk.
      let other = try test.connect()
      try other.request("GET", "/")
      try require(try other.final().answer.status == 200, "the loop continues")
      try require(!client.hasAnswer && !asking.hasAnswer, "neither 204 nor the answer to HEAD before the disk")
      sync_gate_open()
      try require(try client.final().answer["upload-offset"] == "6", "then the append is acknowledged")
      try require(try asking.final(withBody: false).answer["upload-offset"] == "6", "and HEAD is answered")
    }
  }

  @Test(
    "with always, the response to a wrong offset waits for the disk, and the running request pauses meanwhile"
  )
  func conflict() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.awaitProgress(0)
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      try client.sendChunk("abc")
      try waitUntil("it is stored") { (try? test.directory.text(test.onlyFile)) == "abc" }
      let stray = try test.connect()
      try stray.patch(location, at: 1, body: "x")
      _ = try test.events.wait(.refused)
      try client.sendChunk("def")
      try waitUntil("all has arrived") { client.unacknowledged == 0 }
      let other = try test.connect()
      try other.request("GET", "/")
      try require(try other.final().answer.status == 200, "the loop continues")
      try require(!stray.hasAnswer, "not before the disk")
      try require(try test.directory.text(test.onlyFile) == "abc", "no byte meanwhile")
      sync_gate_open()
      let refused = try stray.final().answer
      try require(refused.status == 409 && refused["upload-offset"] == "3", "\(refused)")
      try require(refused.body.contains("\"expected-offset\":3,"), "\(refused)")
      try client.awaitProgress(6)
      try client.send("0\r\n\r\n")
      try require(try client.final().answer["upload-offset"] == "6", "and on")
    }
  }

  @Test("with always, an append waits for the response to an earlier HEAD, and continues at the reported offset")
  func appendAfterHead() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, chunked: true)
      try client.awaitProgress(0)
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      try client.sendChunk("abc")
      try waitUntil("all has arrived") { client.unacknowledged == 0 }
      let asking = try test.connect()
      try asking.request("HEAD", location)
      // The request ends the append in progress.
      try require((try? client.final()) == nil, "cut off")
      let following = try test.connect()
      try following.patch(location, at: 3, body: "def")
      let gone = try test.connect()
      try gone.patch(location, at: 3, body: "xyz")
      gone.reset()
      try require(!asking.hasAnswer && !following.hasAnswer, "neither before the disk")
      sync_gate_open()
      try require(try asking.final(withBody: false).answer["upload-offset"] == "3", "the offset of that moment")
      try require(try following.final().answer["upload-offset"] == "6", "is one that an append may follow")
      try require(try test.directory.text(test.onlyFile) == "abcdef", "once")
    }
  }

  @Test(
    "with always, a server after a killed one reports no byte before the disk has it, and none that the disk refuses")
  func restarted() async {
    await #expect(processExitsWith: .success) {
      for (path, isRefused) in [("/t", false), ("/spooled", false), ("/t", true), ("/spooled", true)] {
        func server(in directory: TemporaryDirectory = TemporaryDirectory()) throws -> TestServer {
          try TestServer(in: directory) {
            $0.durability = .always
            $0.handler = { head in head.target.path == "/spooled" ? Mute() : nil }
          }
        }
        let test = try server()
        let location = try test.create(path)
        let client = try test.connect()
        try client.patch(location, at: 0, chunked: true)
        try client.sendChunk("abc")
        try client.awaitProgress(3)
        // If an expectation fails, the server must not wait for a disk that hangs.
        defer { sync_gate_open() }
        sync_gate_close()
        try client.sendChunk("def")
        let spool = ".uploads/" + location.dropFirst("/.uploads/".utf8.count) + ".body"
        try waitUntil("it is stored") {
          (try? test.directory.text(path == "/t" ? test.onlyFile : spool)) == "abcdef"
        }
        let copy = try test.directory.copyOfKilled()
        let next = try server(in: copy)
        let before = sync_gate_calls()
        let asking = try next.connect()
        try asking.request("HEAD", location)
        try waitUntil("the server asks the disk") { sync_gate_calls() > before }
        try require(!asking.hasAnswer, "not before the disk: \(path)")
        if isRefused { sync_gate_fail(EIO) }
        sync_gate_open()
        let answer = try asking.final(withBody: false).answer
        sync_gate_fail(0)
        guard isRefused else {
          try require(answer["upload-offset"] == "6", "then all of it: \(path)")
          continue
        }
        try require(answer.status == 410, "\(path): \(answer)")
        let again = try next.connect().head(location)
        try require(again.status == 410, "later syncs succeed without its bytes: \(path): \(again)")
      }
    }
  }

  @Test("DELETE while the disk writes a complete representation: the recording stays, with all its files")
  func deletedAtTheEnd() async {
    await #expect(processExitsWith: .success) {
      for durability in [Durability.interval, .always] {
        let test = try TestServer {
          $0.durability = durability
          // One thread serves requests in the order of their arrival.
          $0.threads = 1
        }
        // If an expectation fails, the server must not wait for a disk that hangs.
        defer { sync_gate_open() }
        let location = try test.create(
          "/t.txt", ["Stream-ID: d", "Stream-Offset: 5", "Content-Type: text/plain", "Upload-Length: 3"])
        let client = try test.connect()
        try client.patch(location, at: 0, body: "abc")
        _ = try client.final()
        sync_gate_close()
        try client.patch(location, at: 3, completes: true, body: "")
        try waitUntil("all has arrived") { client.unacknowledged == 0 }
        let deleting = try test.connect()
        try deleting.request("DELETE", location)
        let other = try test.connect()
        try other.request("GET", "/")
        try require(try other.final().answer.status == 200 && !deleting.hasAnswer, "the disk is awaited")
        sync_gate_open()
        try require(try client.final().answer.status == 201, "it was complete first")
        try require(try deleting.final().answer.status == 204, "and then given up")
        try require(try deleting.head(location).status == 410, "for good")
        try require(test.directory.names == [".uploads", "t-d.gaps", "t-d.txt"], "\(test.directory.names)")
      }
    }
  }

  @Test("with always, a creation is announced only after its record is on the disk")
  func record() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.durability = .always }
      sync_gate_close()
      let client = try test.connect()
      try client.request("POST", "/t", ["Upload-Complete: ?0"], body: "")
      try waitUntil("the server asks the disk") { sync_gate_calls() > 0 }
      try require(!client.hasAnswer, "no URL for what a power failure would undo")
      sync_gate_open()
      try require(try client.final().answer.status == 201, "then it is")
    }
  }

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
        let status = (try? client.final().answer.status) ?? 410
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

/// Accepts a body, and never answers.
final class Mute: RequestHandler {
  func begin(_ exchange: any Exchange) { exchange.acceptBody() }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) {}
  func serverStops() {}
}
