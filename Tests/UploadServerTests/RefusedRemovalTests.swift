// Recordings that the disk does not remove, or not soon: what clients and the log see, and what the next server finds.

import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import StreamStore
@testable import UploadServer

@Suite("Removals that the disk refuses or delays")
struct RefusedRemovalTests {
  enum Recording: String, CaseIterable, Sendable { case whole, split }
  /// What tries again to remove what the disk has refused to remove.
  enum Retry: String, CaseIterable, Sendable { case request, timer, restart }

  private static let head = StreamedHead.all[0]
  private static let limit = 48 * head.frameLength * 4
  private static let type = "Content-Type: audio/wav"

  private static func server(
    in directory: TemporaryDirectory, _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.finishAfter = .seconds(1)
      var split = RecordingSplit(duration: nil, size: UInt64(head.bytes.count + limit))
      split.leastLength = 0
      $0.split = split
      change(&$0)
    }
  }

  /// Begins an upload in one recording or in four. Returns also the name of the file that grows.
  private static func begin(_ test: TestServer, _ recording: Recording) throws -> (upload: String, growing: String) {
    let upload = try test.create("/k.wav", ["Stream-ID: a", type])
    let length = recording == .whole ? limit / 2 : 3 * limit + limit / 2
    try test.append(upload, at: 0, head.bytes + [UInt8](repeating: 1, count: length))
    guard recording == .split else { return (upload, "k-a.part") }
    try waitUntil("all but the last one are finished") { test.directory.exists("k-a~3.sidecar") }
    return (upload, "k-a~4.part")
  }

  private static func delete(_ test: TestServer, _ upload: String) throws -> RawClient.Answer {
    let client = try test.connect()
    try client.request("DELETE", upload)
    return try client.final().answer
  }

  private static func waitUntilRemoved(_ directory: TemporaryDirectory) throws {
    do {
      try waitUntil("nothing is left") {
        try allNames(in: directory.path).allSatisfy { !$0.contains("k-a") } && !directory.exists(".parts")
      }
    } catch {
      throw TestFailure("left: \(try allNames(in: directory.path))")
    }
  }

  @Test(
    "a recording that the disk does not remove is reported, and removed as soon as the disk permits it",
    arguments: Recording.allCases, Retry.allCases)
  func refused(_ recording: Recording, _ retry: Retry) async {
    await #expect(processExitsWith: .success) {
      [recording = recording.rawValue as String, retry = retry.rawValue as String] in
      let (recording, retry) = (Recording(rawValue: recording) ?? .whole, Retry(rawValue: retry) ?? .timer)
      let directory = TemporaryDirectory()
      let test = try Self.server(in: directory)
      let (upload, growing) = try Self.begin(test, recording)
      unlink_gate_fail(EIO, growing)
      let refused = try Self.delete(test, upload)
      try require(refused.status == 500 && refused["retry-after"] != nil, "\(refused)")
      let reason = try test.events.wait(.warning).reason ?? ""
      try require(reason.contains("remove \(growing): Input/output error"), reason)
      // Nobody waits for the disk.
      _ = try test.create("/other.txt", ["Stream-ID: b"])
      let found = try test.connect().head(upload)
      try require(found.status == 410, "\(found)")
      let again = try test.connect()
      try again.request("POST", "/k.wav", ["Upload-Complete: ?0", "Stream-ID: a", Self.type], body: "abc")
      let answer = try again.final().answer
      try require(answer.status == 503 && answer["retry-after"] != nil, "\(answer)")
      try require(!test.events.all.contains { $0.kind == .cancelled }, "reported as removed")
      try require(directory.exists(growing), "it is removed")
      unlink_gate_fail(0, "")
      var running = test
      switch retry {
      case .request:
        try waitUntil("DELETE succeeds") { [204, 410].contains(try Self.delete(test, upload).status) }
        _ = try test.events.wait(.cancelled)
      case .timer: _ = try test.events.wait(.cancelled)
      case .restart:
        test.stop()
        running = try Self.server(in: directory)
        let found = try running.connect().head(upload)
        try require(found.status == 410, "\(found)")
      }
      try Self.waitUntilRemoved(directory)
      _ = try running.create("/k.wav", ["Stream-ID: a", Self.type])
      running.stop()
    }
  }

  @Test(
    "if the disk also refuses the record of the removal, the next server does not forget the recording",
    .enabled(if: disk_faults_are_possible() != 0), arguments: Recording.allCases)
  func unrecorded(_ recording: Recording) async {
    await #expect(processExitsWith: .success) { [recording = recording.rawValue as String] in
      let recording = Recording(rawValue: recording) ?? .whole
      let directory = TemporaryDirectory()
      let test = try Self.server(in: directory) { $0.finishAfter = .seconds(3600) }
      let (upload, growing) = try Self.begin(test, recording)
      unlink_gate_fail(EIO, growing)
      write_gate_take_nothing(1, "/.parts/k-a")
      let refused = try Self.delete(test, upload)
      try require(refused.status == 500, "\(refused)")
      test.stop()
      unlink_gate_fail(0, "")
      write_gate_take_nothing(0, "")
      let next = try Self.server(in: directory)
      // None of it was removed: the client can try again.
      let found = try next.connect().head(upload)
      try require(found.status == 204, "\(found)")
      let answer = try Self.delete(next, upload)
      try require(answer.status == 204, "\(answer)")
      try Self.waitUntilRemoved(directory)
      next.stop()
    }
  }

  @Test(
    "while the disk removes a recording, others are served, and requests for its stream wait",
    arguments: Recording.allCases)
  func delayed(_ recording: Recording) async {
    await #expect(processExitsWith: .success) { [recording = recording.rawValue as String] in
      let test = try Self.server(in: TemporaryDirectory()) { $0.durability = .interval }
      let (upload, growing) = try Self.begin(test, Recording(rawValue: recording) ?? .whole)
      unlink_gate_close(growing)
      let client = try test.connect()
      try client.request("DELETE", upload)
      try waitUntil("the disk is at it") { unlink_gate_waiters() == 1 }
      let next = try test.connect()
      try next.request("POST", "/k.wav", ["Upload-Complete: ?0", "Stream-ID: a", Self.type], body: "abc")
      let other = try test.create("/other.txt", ["Stream-ID: b"])
      try test.append(other, at: 0, Array("abc".utf8))
      try require(test.directory.exists(growing), "it is removed")
      unlink_gate_open()
      let answer = try client.final().answer
      try require(answer.status == 204, "\(answer)")
      let created = try next.final().answer
      try require(created.status == 201, "\(created)")
      let stored = try test.directory.text("k-a.part")
      try require(stored == "abc", "\(stored.count) bytes")
      test.stop()
    }
  }

  @Test("the bytes of a recording count against the quota until the disk has removed them, and not after the 204")
  func quota() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let length = Self.head.bytes.count + Self.limit / 2
      let test = try Self.server(in: directory) { $0.uploads.quota = UInt64(length) }
      let (upload, growing) = try Self.begin(test, .whole)
      func another() throws -> Int {
        let client = try test.connect()
        try client.request(
          "POST", "/o.txt", version: nil, ["Stream-ID: b"], body: String(repeating: "o", count: length))
        return try client.final().answer.status
      }
      unlink_gate_close(growing)
      let client = try test.connect()
      try client.request("DELETE", upload)
      try waitUntil("the disk is at it") { unlink_gate_waiters() == 1 }
      let early = try another()
      try require(early == 507, "while the bytes are on the disk: \(early)")
      unlink_gate_open()
      let answer = try client.final().answer
      try require(answer.status == 204, "\(answer)")
      let late = try another()
      try require(late == 201, "after the removal: \(late)")
      test.stop()
    }
  }

  @Test("the spooled bytes of a handler's upload are removed on the worker, and by the next server after a kill")
  func spooled() async {
    await #expect(processExitsWith: .success) {
      func server(in directory: TemporaryDirectory) throws -> TestServer {
        try TestServer(in: directory) {
          $0.threads = 1
          $0.handler = { head in head.target.path == "/spooled" ? Mute() : nil }
        }
      }
      let directory = TemporaryDirectory()
      let test = try server(in: directory)
      let upload = try test.create("/spooled")
      try test.append(upload, at: 0, Array("abc".utf8))
      unlink_gate_close(".body.new")
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { unlink_gate_open() }
      let answer = try Self.delete(test, upload)
      try require(answer.status == 204, "\(answer)")
      try waitUntil("the disk is at it") { unlink_gate_waiters() == 1 }
      _ = try test.create("/other.txt", ["Stream-ID: b"])
      let left = try ScratchListing(directory.path + "/.uploads").names.filter { $0.contains(".body") }
      try require(left.count == 1, "\(left)")
      let copy = try directory.copyOfKilled()
      unlink_gate_open()
      let next = try server(in: copy)
      for directory in [directory, copy] {
        try waitUntil("nothing is left") {
          try ScratchListing(directory.path + "/.uploads").names.allSatisfy { !$0.contains(".body") }
        }
      }
      test.stop()
      next.stop()
    }
  }
}
