// Tests downloads of recordings that the disk does not read, or whose sidecar is not there yet, and what a client
// receives if the server stops before it has found a recording.

import Digests
import EventLoops
import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Downloads that the disk refuses or delays")
struct RefusedDownloadTests {
  private static let content = Array("abc".utf8)
  private static let digest = Digest(.sha256, of: Array("abc".utf8).span.bytes)

  /// Writes a complete recording, and its sidecar under that name.
  private static func leave(sidecar name: String = "t-a.sidecar", in directory: TemporaryDirectory) throws {
    try directory.write("t-a.txt", content)
    var sidecar = RecordingSidecar(file: "t-a.txt")
    sidecar.stored = .init(bytes: 3, sha256: digest.hexadecimal)
    try directory.write(name, Array(sidecar.text.utf8))
  }

  private static func store(in directory: TemporaryDirectory) throws -> FileStore {
    try FileStore(in: directory)
  }

  private static func download(_ test: TestServer) throws -> RawClient {
    let client = try test.connect()
    try client.send("GET /t-a.txt HTTP/1.1\r\nHost: h\r\n\r\n")
    return client
  }

  @Test("while the owner of a recording cannot be read, nobody receives it, and the client is told to retry")
  func unknownOwner() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try Self.leave(in: directory)
      let test = try TestServer(in: directory) { $0.allowsDownloads = true }
      open_gate_fail(EIO, "/.owners/t-a")
      let refused = try Self.download(test).answer()
      try require(refused.status == 503 && refused["retry-after"] == "2", "\(refused)")
      try require(!refused.body.contains("abc"), "\(refused)")
      let warning = try test.events.wait(.warning)
      try require(
        warning.status == 503 && warning.reason?.hasPrefix("cannot search for a recording: ") == true, "\(warning)")
      open_gate_fail(0, "")
      let answer = try Self.download(test).answer()
      try require(answer.status == 200 && answer.body == "abc", "\(answer)")
      test.stop()
    }
  }

  @Test("a server that stops answers a client whose recording it has not found yet")
  func stops() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try Self.leave(in: directory)
      let test = try TestServer(in: directory) { $0.allowsDownloads = true }
      open_gate_close("/.owners/t-a")
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { open_gate_open() }
      let client = try Self.download(test)
      try waitUntil("the server looks for the owner") { open_gate_waiters() == 1 }
      test.server.drain(within: .seconds(1))
      let answer = try client.answer()
      try require(answer.status == 503 && answer["retry-after"] == "2", "\(answer)")
      try require(answer.body == "the server stops\n", "\(answer)")
      open_gate_open()
      test.server.waitUntilEnded()
    }
  }

  @Test("a client that is gone before its recording is found has begun no download")
  func gone() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try Self.leave(in: directory)
      let test = try TestServer(in: directory) { ($0.allowsDownloads, $0.threads) = (true, 1) }
      open_gate_close("/.owners/t-a")
      defer { open_gate_open() }
      let client = try Self.download(test)
      try waitUntil("the server looks for the owner") { open_gate_waiters() == 1 }
      client.reset()
      try waitUntil("the server notices it") { try figure("sluice_server_connections_open", of: test.server) == 0 }
      open_gate_open()
      // The server looks for recordings one after another.
      let answer = try Self.download(test).answer()
      try require(answer.status == 200 && answer.body == "abc", "\(answer)")
      _ = try test.events.wait(.downloaded)
      try require(!test.events.all.contains { $0.kind == .downloadInterrupted }, "\(test.events.all)")
      test.stop()
    }
  }

  @Test(
    "a read that is interrupted is repeated, and one that fails gives no bytes",
    .enabled(if: disk_faults_are_possible() != 0), arguments: [EINTR, EIO])
  func reads(_ code: Int32) async {
    await #expect(processExitsWith: .success) { [code = code as Int32] in
      let directory = TemporaryDirectory()
      try Self.leave(in: directory)
      let store = try Self.store(in: directory)
      guard let found = try store.findRecording("/t-a.txt", for: nil) else { throw TestFailure("not found") }
      disk_faults_begin(directory.path)
      disk_faults_fail(DISK_READ, 1, code)
      var result: Result<[UInt8], SystemError>
      do throws(SystemError) {
        result = .success(try found.read(3, at: 0))
      } catch {
        result = .failure(error)
      }
      try require(!String(cString: disk_faults_place()).isEmpty, "no read has failed")
      switch result {
      case .success(let bytes): try require(code == EINTR && bytes == Self.content, "\(bytes)")
      case .failure(let error): try require(code == EIO && error.code == EIO, "\(error)")
      }
      // The next attempt succeeds in any case.
      try require(try found.read(3, at: 0) == Self.content, "other bytes")
    }
  }

  @Test("a digest is stated only if the recording has its final sidecar", arguments: ["t-a.sidecar", ".t-a.sidecar"])
  func hiddenSidecar(_ name: String) throws {
    let directory = TemporaryDirectory()
    try Self.leave(sidecar: name, in: directory)
    let found = try #require(try Self.store(in: directory).findRecording("/t-a.txt", for: nil))
    #expect(found.length == 3 && found.sha256 == (name == "t-a.sidecar" ? Self.digest.bytes : nil))
  }
}
