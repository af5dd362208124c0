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
      let answer = try client.final().answer
      try require(answer.status == 200 && answer["stream-offset"] == "8", "all of its bytes are stored: \(answer)")
      // The end has taken the stream over. The other client continues it in its next request.
      let next = try test.connect()
      try next.send(TestServer.head("/t.txt", id: "a", offset: 8) + "0\r\n\r\n")
      try require(try (200...201).contains(next.answer().status), "the stream did not end before")
      try require(try directory.text("t-a.txt") == "abcdefgh", "no byte is lost")
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
      try require(client.isCutOff(), "cut off")
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
        // The server also syncs what the killed one has left, whoever asks.
        let before = sync_gate_calls()
        let next = try server(in: copy)
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
    "spooled bytes that another program changes while an append waits for the disk count as they are found",
    arguments: ["abcde", "ab"])
  func changedMeanwhile(_ found: String) async {
    await #expect(processExitsWith: .success) { [found = found as String] in
      let directory = TemporaryDirectory()
      func server() throws -> TestServer {
        try TestServer(in: directory) {
          $0.durability = .always
          $0.handler = { _ in Mute() }
        }
      }
      let first = try server()
      let location = try first.create("/spooled")
      try first.append(location, at: 0, "abc")
      first.stop()
      let test = try server()
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      let before = sync_gate_calls()
      let client = try test.connect()
      try client.patch(location, at: 3, completes: true, body: "de")
      try waitUntil("its length is on its way to the disk") { sync_gate_calls() > before }
      let body = String(location.dropFirst()) + ".body"
      try Command.run("sh", ["-c", "printf \(found) > '\(directory.path)/\(body)'"])
      sync_gate_open()
      let answer = try client.final().answer
      let told = try test.connect().head(location)
      if found == "ab" {
        try require(answer.status == 410 && told.status == 410, "acknowledged bytes are lost: \(answer) \(told)")
        try test.events.wait(.interrupted)
        try waitUntil("the others are removed") { !directory.exists(body) }
      } else {
        try require(answer.status == 409 && answer["upload-offset"] == "5", "the client continues: \(answer)")
        try require(told.status == 204 && told["upload-offset"] == "5", "\(told)")
      }
      test.stop()
    }
  }

  @Test("a HEAD whose record the disk refuses reports no offset, and the next one writes the record first")
  func refusedRecord() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let location = try UploadDurabilityTests.leaveUpload(in: directory, .interval)
      let record = String(location.dropFirst()) + ".upload"
      func isUnsynced() throws -> Bool { try directory.text(record).contains("Unsynced: ") }
      let test = try TestServer(in: directory) { ($0.durability, $0.threads) = (.interval, 1) }
      let other = try test.connect()
      try other.send(TestServer.head("/t.txt", id: "a", offset: 3))
      try other.sendChunk("defgh")
      try waitUntil("the stream is longer") { (try? directory.text("t-a.part")) == "abcdefgh" }
      // The background sync must not change the record between the two requests.
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      open_gate_fail(EIO, "record-0.new")
      let refused = try test.connect().head(location)
      try require(refused.status >= 500 && refused["upload-offset"] == nil, "\(refused)")
      try require(try open_gate_failures() > 0 && !isUnsynced(), "the record is the former one")
      open_gate_fail(0, "")
      let asking = try test.connect()
      try asking.request("HEAD", location)
      try waitUntil("its record is on its way to the disk") { try isUnsynced() }
      sync_gate_open()
      let answer = try asking.final(withBody: false).answer
      try require(answer.status == 204 && answer["upload-offset"] == "8", "\(answer)")
    }
  }

  @Test("an offset inside a stream that the disk refuses to record in the background is recorded by a later sync")
  func refusedOwnOffset() async {
    await #expect(processExitsWith: .success) {
      let test = try TestServer { ($0.durability, $0.threads) = (.interval, 1) }
      try test.plain(id: "a", Array("0123456789".utf8))
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      let record = String(location.dropFirst()) + ".upload"
      let client = try test.connect()
      try client.patch(location, at: 0, ["Stream-Progress-Interval: 60"], chunked: true)
      try client.awaitProgress(0)
      open_gate_fail(EIO, "record-0.new")
      try client.sendChunk("01")
      // The first failure is that of the announcement, which is not made then.
      try waitUntil("the background sync has failed, too") { open_gate_failures() > 1 }
      open_gate_fail(0, "")
      try waitUntil("the record has it") { try test.directory.text(record).contains("\nOffset: 2") }
      try client.send("0\r\n\r\n")
      try require(try client.final().answer["upload-offset"] == "2", "the append continues")
    }
  }
}
