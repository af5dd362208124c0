// Tests what the next server does with uploads whose bytes the disk may not have, after the machine has stopped without
// a warning.
//
// A copy of the directory stands for the contents of the disk, and another boot identifier for the next boot.

import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Uploads after a power failure", .serialized)
struct PowerFailureTests {
  private func server(
    _ durability: Durability, in directory: TemporaryDirectory = TemporaryDirectory(), boot: String,
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.durability = durability
      $0.bootIdentifier = boot
      $0.handler = { head in head.target.path == "/spooled" ? Silent() : nil }
      change(&$0)
    }
  }

  /// The answer of a server that starts after the failure, and the reason if it has given up the upload.
  private func after(
    _ test: TestServer, _ durability: Durability, boot: String, _ location: String, version: Int = 8
  ) throws -> (answer: RawClient.Answer, reason: String?) {
    let copy = try test.directory.copyOfKilled()
    let next = try server(durability, in: copy, boot: boot)
    let client = try next.connect()
    try client.request("HEAD", location, version: version)
    return (try client.final(withBody: false).answer, next.events.all.first { $0.kind == .interrupted }?.reason)
  }

  @Test(
    "acknowledged bytes that may be lost are not announced again; the upload ends, and this is reported (draft, section Offset)",
    arguments: Durability.allCases, ["/t", "/spooled"])
  func unclean(_ durability: Durability, path: String) throws {
    let test = try server(durability, boot: "first")
    let location = try test.create(path)
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("abc")
    try client.awaitProgress(3)
    // Only the server dies, not the machine, so the kernel has all bytes.
    let restarted = try after(test, durability, boot: "first", location)
    #expect(restarted.answer.status == 204 && restarted.answer["upload-offset"] == "3" && restarted.reason == nil)
    let (answer, reason) = try after(test, durability, boot: "second", location)
    if durability == .always {
      #expect(answer.status == 204 && answer["upload-offset"] == "3" && reason == nil)
    } else {
      #expect(answer.status == 410 && answer["upload-offset"] == nil)
      #expect(reason == "the machine stopped before it had written all acknowledged bytes")
      #expect(try after(test, durability, boot: "second", location, version: 6).answer.status == 404)
      // A server that now waits for the disk does not know whether earlier promises did.
      #expect(try after(test, .always, boot: "second", location).answer.status == 410)
    }
  }

  @Test(
    "the record of another upload does not apply: after a power failure, a reused file may have its earlier contents"
  )
  func othersRecord() throws {
    let test = try server(.interval, boot: "first")
    let locations = try [test.create("/a"), test.create("/b")]
    let client = try test.connect()
    try client.patch(locations[0], at: 0, body: "abc")
    #expect(try client.final().answer["upload-offset"] == "3")
    client.disconnect()
    test.stop()
    let records = locations.map { "\(test.directory.path)\($0).upload" }
    try Command.run("cp", records)
    let next = try server(.interval, in: test.directory, boot: "first")
    let again = try next.connect()
    #expect(try again.head(locations[0])["upload-offset"] == "3")
    #expect(try again.head(locations[1]).status == 404)
  }

  @Test(
    "if another upload has sent bytes of the same stream, they may be lost for both",
    arguments: [Durability.interval, .none])
  func othersBytes(_ durability: Durability) throws {
    let directory = TemporaryDirectory()
    var test = try server(durability, in: directory, boot: "first")
    let location = try test.create("/t", ["Stream-ID: a"])
    var client = try test.connect()
    try client.patch(location, at: 0, body: "abc")
    _ = try client.final()
    client.disconnect()
    // After a regular end, the record states that the disk has all bytes.
    test.stop()
    test = try server(durability, in: directory, boot: "first")
    client = try test.connect()
    #expect(try client.head(location)["upload-offset"] == "3")
    #expect(try after(test, durability, boot: "second", location).answer["upload-offset"] == "3")
    let other = try test.create("/t", ["Stream-ID: a", "Stream-Offset: 3"])
    try client.patch(other, at: 0, body: "def")
    _ = try client.final()
    #expect(try client.head(location)["upload-offset"] == "6")
    // This is within the second after which the disk must have the bytes.
    #expect(try after(test, durability, boot: "second", location).answer.status == 410)
  }

  @Test("a complete upload is still announced", arguments: Durability.allCases)
  func complete(_ durability: Durability) throws {
    let test = try server(durability, boot: "first")
    let location = try test.create()
    let client = try test.connect()
    try client.patch(location, at: 0, completes: true, body: "abc")
    #expect(try client.final().answer["upload-offset"] == "3")
    #expect(try after(test, durability, boot: "second", location).answer["upload-complete"] == "?1")
  }

  @Test(
    "a server that stops normally leaves uploads that the server of each later boot continues",
    arguments: Durability.allCases, ["/t", "/spooled"])
  func clean(_ durability: Durability, path: String) throws {
    let directory = TemporaryDirectory()
    var location = ""
    for round in 0..<3 {
      let test = try server(durability, in: directory, boot: "boot \(round)") {
        // An idle upload has no open file.
        $0.uploads.parkDelay = .milliseconds(1)
      }
      if round == 0 { location = try test.create(path) }
      let client = try test.connect()
      #expect(try client.head(location)["upload-offset"] == "\(round * 3)")
      try client.patch(location, at: round * 3, body: "abc")
      #expect(try client.final().answer["upload-offset"] == "\(round * 3 + 3)")
      // After the first new byte, the usual rules apply again.
      let (answer, reason) = try after(test, durability, boot: "other", location)
      #expect(
        answer.status == (durability == .always ? 204 : 410) || durability == .interval && answer.status == 204,
        "round \(round): \(answer), \(reason ?? "no reason")")
      client.disconnect()
      test.stop()
    }
  }

  @Test(
    "with interval, an idle synced upload survives, and its next byte waits until the record permits it")
  func synced() async {
    await #expect(processExitsWith: .success) {
      let suite = PowerFailureTests()
      let test = try suite.server(.interval, boot: "first")
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abc")
      try require(try client.final().answer.status == 204, "acknowledged")
      let records = test.directory.path + "/.uploads"
      let name = try ScratchListing(records).names.first { $0.hasSuffix(".upload") } ?? ""
      func isClean() -> Bool {
        guard let text = try? test.directory.text(".uploads/" + name) else { return false }
        return text.hasSuffix("End: ?1\n") && !text.contains("Unsynced: ")
      }
      try waitUntil("the record states that everything is on the disk") { isClean() }
      try require(try suite.after(test, .interval, boot: "second", location).answer["upload-offset"] == "3", "kept")
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      let before = sync_gate_calls()
      try client.patch(location, at: 3, body: "def")
      try waitUntil("the server asks the disk") { sync_gate_calls() > before }
      try require(!isClean() && !client.hasAnswer, "nothing is acknowledged before the record is on the disk")
      try require(try test.directory.text(test.onlyFile) == "abc", "and nothing is stored")
      sync_gate_open()
      try require(try client.final().answer["upload-offset"] == "6", "then it is")
    }
  }

  @Test("with none, only the end of the server syncs the disk")
  func none() async {
    await #expect(processExitsWith: .success) {
      let suite = PowerFailureTests()
      let test = try suite.server(.none, boot: "first")
      let location = try test.create()
      let client = try test.connect()
      try client.patch(location, at: 0, body: "abc")
      _ = try client.final()
      try require(sync_gate_calls() == 0, "not while it serves")
      client.disconnect()
      test.stop()
      try require(sync_gate_calls() == 1, "one file")
      sync_gate_fail(EIO)
      // The server does not rely on bytes that the disk has refused.
      let other = try suite.server(.none, boot: "first")
      let lost = try other.create()
      let second = try other.connect()
      try second.patch(lost, at: 0, body: "abc")
      _ = try second.final()
      second.disconnect()
      other.stop()
      try require(try suite.after(other, .none, boot: "second", lost).answer.status == 410, "refused")
      try require(try suite.after(test, .none, boot: "second", location).answer.status == 204, "taken")
    }
  }
}

/// Receives a body and never answers.
final class Silent: RequestHandler {
  func begin(_ exchange: any Exchange) { exchange.acceptBody() }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) {}
  func serverStops() {}
}
