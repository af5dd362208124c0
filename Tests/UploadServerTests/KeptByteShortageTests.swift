// Tests that the bytes of an upload stay valid when the server lacks a resource to read or to drop them.

import Digests
import DiskFiles
import ExitTesting
import Glibc
import NetworkTesting
import SyncGate
import Testing

@testable import UploadServer

@Suite("A shortage of resources while bytes of an upload are read or dropped")
struct KeptByteShortageTests {
  /// Where the bytes of an upload are kept, and the path that selects this.
  enum Keeper: String, CaseIterable {
    case spool, store

    var path: String { self == .spool ? "/echo" : "/t.txt" }
    var file: String { self == .spool ? ".body" : ".part" }
  }

  private static func server(
    in directory: TemporaryDirectory, _ durability: Durability = .interval
  ) throws -> TestServer {
    let log = WrappedHandlerTests.Log()
    return try TestServer(in: directory) {
      ($0.threads, $0.durability) = (1, durability)
      $0.uploads.parkDelay = .milliseconds(50)
      $0.handler = { head in
        head.target.path == "/echo" ? WrappedHandlerTests.Echo(head, log) { _ in nil } : nil
      }
    }
  }

  @Test(
    "bytes that a handler receives again are read when the server can",
    arguments: [EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR])
  func readBack(_ code: Int32) async {
    await #expect(processExitsWith: .success) { [code = code as Int32] in
      let directory = TemporaryDirectory()
      let first = try KeptByteShortageTests.server(in: directory)
      let upload = try first.create("/echo")
      try first.append(upload, at: 0, Array("abc".utf8))
      first.stop()
      let test = try KeptByteShortageTests.server(in: directory)
      read_gate_fail(code, ".body")
      let client = try test.connect()
      try client.patch(upload, at: 3, completes: true, body: "def")
      try waitUntil("it is tried again") { read_gate_failures() > 2 }
      read_gate_fail(0, "")
      let answer = try client.final().answer
      try require(answer.status == 200 && answer.body == "abcdef", "\(code): \(answer)")
      test.stop()
    }
  }

  @Test(
    "bytes that the disk cannot read now are read later: until then, each attempt gets 503, and the upload stays",
    arguments: Keeper.allCases, [EIO, EROFS, EMEDIUMTYPE])
  func unreadable(_ keeper: Keeper, _ code: Int32) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String, code = code as Int32] in
      let keeper = Keeper(rawValue: name) ?? .spool
      // Few bytes are read immediately, many by the worker.
      for count in [3, 3 << 20] {
        let directory = TemporaryDirectory()
        let bytes = (0..<count).map { 97 + UInt8((($0 &* 2_654_435_761) >> 11) & 15) }
        let digest = Digest(.sha256, of: (bytes + Array("def".utf8)).span.bytes)
        let first = try KeptByteShortageTests.server(in: directory)
        let upload = try first.create(keeper.path, ["Stream-ID: a", "Repr-Digest: sha-256=:\(digest.base64):"])
        try first.append(upload, at: 0, bytes)
        first.stop()
        let test = try KeptByteShortageTests.server(in: directory)
        read_gate_fail(code, keeper.file)
        var kept = count
        for attempt in 0..<3 {
          let client = try test.connect()
          try client.patch(upload, at: kept, completes: true, body: kept == count ? "def" : "")
          let answer = try client.final().answer
          try require(answer.status == 503 && answer["retry-after"] != nil, "\(code), \(attempt): \(answer)")
          try require(answer["upload-complete"] == "?0", "\(code), \(attempt): \(answer)")
          let found = try test.connect().head(upload)
          try require(found.status == 204, "\(code), \(attempt): \(found)")
          kept = Int(found["upload-offset"] ?? "") ?? -1
          try require(kept == count || kept == count + 3, "\(code), \(attempt): \(found)")
        }
        try require(read_gate_failures() > 0, "nothing was read")
        read_gate_fail(0, "")
        let client = try test.connect()
        try client.patch(upload, at: kept, completes: true, body: kept == count ? "def" : "")
        let answer = try client.final().answer
        try require((200...201).contains(answer.status), "\(code): \(answer)")
        let stored = keeper == .spool ? Array(answer.body.utf8) : try test.directory.contents("t-a.txt")
        try require(stored == bytes + Array("def".utf8), "\(code): \(stored.count) bytes")
        test.stop()
      }
    }
  }

  @Test(
    "content with a wrong digest is dropped when the server can, and never counts",
    arguments: Keeper.allCases, [EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR])
  func drop(_ keeper: Keeper, _ code: Int32) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String, code = code as Int32] in
      let keeper = Keeper(rawValue: name) ?? .spool
      let test = try KeptByteShortageTests.server(in: TemporaryDirectory())
      let upload = try test.create(keeper.path, ["Stream-ID: a"])
      try test.append(upload, at: 0, Array("abc".utf8))
      truncate_gate_fail(code, keeper.file)
      let wrong = try test.connect()
      try wrong.patch(
        upload, at: 3, ["Content-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"], body: "xyz")
      if code == EINTR {
        try waitUntil("it is tried again at once") { truncate_gate_failures() > 2 }
        truncate_gate_fail(0, "")
        let answer = try wrong.final().answer
        try require(answer.status == 400, "\(answer)")
      } else {
        let answer = try wrong.final().answer
        try require(answer.status == 503 && answer["retry-after"] != nil, "\(code): \(answer)")
        try require(answer["upload-offset"] == "3", "\(code): \(answer)")
        for _ in 0..<2 {
          let found = try test.connect().head(upload)
          try require(found.status == 204 && found["upload-offset"] == "3", "\(code): \(found)")
          let early = try test.connect()
          try early.patch(upload, at: 3, body: "d")
          let refused = try early.final().answer
          try require(refused.status == 503 && refused["upload-offset"] == "3", "\(code): \(refused)")
          // No request of the upload is in progress for a while, and the rejected bytes still do not count.
          let count = truncate_gate_failures()
          try waitUntil("it is tried again without a request") { truncate_gate_failures() > count + 1 }
        }
        truncate_gate_fail(0, "")
      }
      let found = try test.connect().head(upload)
      try require(found.status == 204 && found["upload-offset"] == "3", "\(code): \(found)")
      let last = try test.connect()
      try last.patch(upload, at: 3, completes: true, body: "def")
      let end = try last.final().answer
      try require((200...201).contains(end.status), "\(code): \(end)")
      let stored = keeper == .spool ? end.body : try test.directory.text("t-a.txt")
      try require(stored == "abcdef", "\(code): \(stored)")
      test.stop()
    }
  }

  @Test(
    "content with a wrong digest does not count, even if the bytes before it were being written to disk",
    arguments: Keeper.allCases)
  func dropBesideSync(_ keeper: Keeper) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String] in
      let keeper = Keeper(rawValue: name) ?? .spool
      let test = try KeptByteShortageTests.server(in: TemporaryDirectory())
      let upload = try test.create(keeper.path, ["Stream-ID: a"])
      sync_gate_close()
      try test.append(upload, at: 0, Array("abc".utf8))
      // Leaves time in which the server would release the handler if the disk had the bytes.
      poll(nil, 0, 200)
      truncate_gate_fail(ENOMEM, keeper.file)
      let wrong = try test.connect()
      try wrong.patch(
        upload, at: 3, ["Content-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"], body: "xyz")
      let answer = try wrong.final().answer
      try require(answer.status == 503, "\(answer)")
      sync_gate_open()
      let count = truncate_gate_failures()
      try waitUntil("it is tried again without a request") { truncate_gate_failures() > count + 1 }
      let found = try test.connect().head(upload)
      try require(found.status == 204 && found["upload-offset"] == "3", "\(found)")
      truncate_gate_fail(0, "")
      test.stop()
    }
  }

  @Test(
    "a shortage while bytes that an earlier server has stored are synced refuses none of them",
    .enabled(if: disk_faults_are_possible() != 0), arguments: Keeper.allCases, [EMFILE, ENOMEM])
  func synced(_ keeper: Keeper, _ code: Int32) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String, code = code as Int32] in
      reportingErrors {
        let keeper = Keeper(rawValue: name) ?? .spool
        for call in 1...100 {
          let earlier = try KeptByteShortageTests.server(in: TemporaryDirectory(), .always)
          let upload = try earlier.create(keeper.path, ["Stream-ID: a"])
          try earlier.append(upload, at: 0, Array("abc".utf8))
          let directory = try earlier.directory.copyOfKilled()
          earlier.stop()
          // These were stored, and the server was killed before it had synced them.
          let file = keeper == .spool ? String(upload.dropFirst()) + ".body" : "t-a.part"
          try Command.run("sh", ["-c", "printf def >> '\(directory.path)/\(file)'"])
          let test = try KeptByteShortageTests.server(in: directory, .always)
          disk_faults_begin(directory.path)
          disk_faults_fail(DISK_OPEN, UInt(call), code)
          let asked = try test.connect().head(upload)
          let place = String(cString: disk_faults_place())
          disk_faults_begin("")
          let context = "call \(call) at \(place)"
          try require([204, 503].contains(asked.status), "\(asked): \(context)")
          let found = try test.connect().head(upload)
          try require(found.status == 204 && found["upload-offset"] == "6", "\(found): \(context)")
          let end = try test.complete(upload, at: 6)
          try require((200...201).contains(end.status), "\(end): \(context)")
          let stored = keeper == .spool ? end.body : try directory.text("t-a.txt")
          try require(stored == "abcdef", "\(stored): \(context)")
          test.stop()
          if place.isEmpty { break }
          try require(call < 100, "the calls do not end")
        }
      }
    }
  }

  @Test(
    "an announcement whose sync lacks a resource follows when the server has it, without further bytes",
    arguments: Keeper.allCases, [EMFILE, ENOMEM])
  func announced(_ keeper: Keeper, _ code: Int32) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String, code = code as Int32] in
      reportingErrors {
        let keeper = Keeper(rawValue: name) ?? .spool
        let test = try KeptByteShortageTests.server(in: TemporaryDirectory(), .always)
        func begin(_ path: String, _ id: String) throws -> (upload: String, client: RawClient) {
          let upload = try test.create(path, ["Stream-ID: \(id)"])
          try test.append(upload, at: 0, "abc")
          let client = try test.connect()
          try client.patch(upload, at: 3, chunked: true)
          try client.awaitProgress(3)
          return (upload, client)
        }
        let (upload, client) = try begin(keeper.path, "a")
        let (_, other) = try begin("/t.txt", "b")
        // The disk hangs until the file is closed.
        let calls = sync_gate_calls()
        sync_gate_close()
        try other.sendChunk("def")
        try waitUntil("the worker waits for the disk") { sync_gate_calls() > calls }
        try client.sendChunk("def")
        let file = keeper == .spool ? "\(upload).body" : "/t-a.part"
        try waitUntil("the bytes are written") {
          try test.directory.text(String(file.dropFirst())) == "abcdef"
        }
        open_gate_fail(code, file)
        try waitUntil("the file is closed") {
          test.server.shared.openFiles.closeIdle()
          return try !openPaths().contains(test.directory.path + file)
        }
        sync_gate_open()
        // One attempt opens the file to write its bytes, to mark them, and to remove its mark.
        try waitUntil("there are more attempts") { open_gate_failures() > 3 }
        open_gate_fail(0, "")
        try client.awaitProgress(6)
        test.stop()
      }
    }
  }

  @Test("a file that cannot be examined does not count as changed", arguments: [ENOMEM, EIO])
  func look(_ code: Int32) async {
    await #expect(processExitsWith: .success) { [code = code as Int32] in
      let test = try KeptByteShortageTests.server(in: TemporaryDirectory())
      let upload = try test.create("/t.txt", ["Stream-ID: a"])
      let client = try test.connect()
      try client.patch(upload, at: 0, chunked: true)
      try client.sendChunk("abc")
      try client.awaitProgress(3)
      status_gate_fail(code, "t-a.part")
      let asking = try test.connect().head(upload)
      try require(asking.status != 410 && asking.status != 404, "\(code): \(asking)")
      try require(status_gate_failures() > 0, "\(code): the server has not looked: \(asking)")
      status_gate_fail(0, "")
      let found = try test.connect().head(upload)
      try require(found.status == 204 && found["upload-offset"] == "3", "\(code): \(found)")
      test.stop()
    }
  }

  @Test(
    "content of a request that a newer one replaces is dropped when the server can, even if no request follows",
    arguments: Keeper.allCases)
  func dropReplaced(_ keeper: Keeper) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String] in
      let keeper = Keeper(rawValue: name) ?? .spool
      let test = try KeptByteShortageTests.server(in: TemporaryDirectory())
      let upload = try test.create(keeper.path, ["Stream-ID: a"])
      try test.append(upload, at: 0, Array("abc".utf8))
      let file = keeper == .spool ? String(upload.dropFirst()) + ".body" : "t-a.part"
      let replaced = try test.connect()
      try replaced.patch(
        upload, at: 3, ["Content-Digest: sha-256=:\(String(repeating: "A", count: 43))=:"], chunked: true)
      try replaced.sendChunk("xyz")
      try waitUntil("it is stored") { (try? test.directory.text(file)) == "abcxyz" }
      truncate_gate_fail(ENOMEM, keeper.file)
      let newer = try test.connect()
      try newer.patch(upload, at: 3, body: "d")
      let refused = try newer.final().answer
      try require(refused.status == 503 && refused["upload-offset"] == "3", "\(refused)")
      let count = truncate_gate_failures()
      try waitUntil("it is tried again without a request") { truncate_gate_failures() > count + 1 }
      truncate_gate_fail(0, "")
      let last = try test.connect()
      try last.patch(upload, at: 3, completes: true, body: "def")
      let end = try last.final().answer
      try require((200...201).contains(end.status), "\(end)")
      let stored = keeper == .spool ? end.body : try test.directory.text("t-a.txt")
      try require(stored == "abcdef", "\(stored)")
      test.stop()
    }
  }

  @Test(
    "after a read with ESTALE, a recording whose file is unchanged is read later, and any other bytes count as lost",
    arguments: [(Keeper.store, false), (Keeper.store, true), (Keeper.spool, false)])
  func stale(_ keeper: Keeper, _ isChanged: Bool) async {
    await #expect(processExitsWith: .success) { [name = keeper.rawValue as String, isChanged = isChanged as Bool] in
      let keeper = Keeper(rawValue: name) ?? .spool
      let directory = TemporaryDirectory()
      let digest = Digest(.sha256, of: Array("abcdef".utf8).span.bytes)
      let first = try KeptByteShortageTests.server(in: directory)
      let fields = ["Stream-ID: a", "Repr-Digest: sha-256=:\(digest.base64):"]
      let upload = try first.create(keeper.path, keeper == .store ? fields : [])
      try first.append(upload, at: 0, Array("abc".utf8))
      first.stop()
      let test = try KeptByteShortageTests.server(in: directory)
      read_gate_fail(ESTALE, keeper.file)
      let client = try test.connect()
      try client.patch(upload, at: 3, completes: true, chunked: true)
      if keeper == .store {
        try client.sendChunk("def")
        try waitUntil("it is stored") { (try? directory.text("t-a.part")) == "abcdef" }
        if isChanged { try Command.run("sh", ["-c", "printf x >> '\(directory.path)/t-a.part'"]) }
        try client.send("0\r\n\r\n")
      }
      let answer = try client.final().answer
      try require(read_gate_failures() > 0, "nothing was read")
      read_gate_fail(0, "")
      if keeper == .store && !isChanged {
        try require(answer.status == 503 && answer["retry-after"] != nil, "\(answer)")
        let end = try test.complete(upload, at: 6)
        try require((200...201).contains(end.status), "\(end)")
        try require(try directory.text("t-a.txt") == "abcdef", "it is complete")
      } else {
        try require(answer.status == 410, "\(answer)")
        try require(try test.connect().head(upload).status == 410, "its bytes are lost")
      }
      test.stop()
    }
  }

  @Test("bytes that cannot be read for a handler between two requests are reported, and read for the next request")
  func unreadableBetweenRequests() async {
    await #expect(processExitsWith: .success) {
      let received = try EventLog<String>()
      let pauses = try EventLog<WrappedHandlerTests.Resumption>()
      let test = try TestServer {
        $0.threads = 1
        $0.handler = { _ in WrappedHandlerTests.Pausing(received, pauses) }
      }
      let upload = try test.create("/echo")
      try test.append(upload, at: 0, "ab")
      let resume = try pauses.wait("the pause") { $0.first }
      try test.append(upload, at: 2, "cd")
      read_gate_fail(EIO, ".body")
      resume()
      try test.events.first("the report") { $0.reason?.contains("cannot be read now") == true }
      read_gate_fail(0, "")
      let client = try test.connect()
      try client.patch(upload, at: 4, completes: true, body: "ef")
      // The handler begins again, and pauses again.
      let resumeAgain = try pauses.wait("the second pause") { $0.dropFirst().first }
      resumeAgain()
      let answer = try client.final().answer
      try require(answer.status == 200 && answer.body == "ababcdef", "\(answer)")
      test.stop()
    }
  }
}
