// Tests several requests of one stream: each upload keeps its own offset, and is complete when the stream is.

import Digests
import Glibc
import NetworkTesting
import PropertyTesting
import SyncGate
import Testing
import UploadServer

@Suite("Uploads that join a stream")
struct JoinedStreamTests {
  @Test(
    "an upload inside stored bytes keeps its offset over a restart, and accepts an append there",
    arguments: Durability.allCases, Seed.several(1))
  func ownOffset(_ durability: Durability, _ seed: Seed) throws {
    var random = seed.generator
    for begun in [BegunStream.plain, .upload, .complete] {
      for isSized in [false, true] {
        let directory = TemporaryDirectory()
        func server() throws -> TestServer { try BegunStream.server(directory, durability) }
        var test = try server()
        let bytes = Array("0123456789abcdef".utf8)
        let stored = Int.random(in: 2...12, using: &random)
        try begun.begin(test, Array(bytes[..<stored]))
        // The upload is not longer than the stored bytes, because the end of others' bytes would exceed its announced
        // length.
        let start = Int.random(in: 0..<stored, using: &random)
        let end = isSized ? Int.random(in: start..<stored, using: &random) : stored
        let length = isSized ? ["Upload-Length: \(end - start)"] : []
        let location = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: \(start)"] + length)
        var told = 0
        // An upload that reaches the end of a complete stream is complete.
        while told < end - start {
          let count = Int.random(in: 1...(end - start - told), using: &random)
          if begun == .complete, start + told + count == stored { break }
          try test.append(location, at: told, Array(bytes[(start + told)..<(start + told + count)]))
          told += count
          if random.chance(70) {
            test.stop()
            test = try server()
          }
          let answer = try test.connect().head(location)
          #expect(
            answer.status == 204 && answer["upload-offset"] == "\(told)",
            "\(begun), sized \(isSized), from \(start), \(stored) stored, told \(told): \(answer)")
        }
      }
    }
  }

  @Test(
    "an upload whose stream another request completes is complete at once",
    arguments: Durability.allCases, [false, true])
  func completedByOthers(_ durability: Durability, _ isPlain: Bool) throws {
    for restarts in [false, true] {
      let directory = TemporaryDirectory()
      func server() throws -> TestServer { try TestServer(in: directory) { $0.durability = durability } }
      var test = try server()
      let location = try test.create("/t.txt", ["Stream-ID: a"])
      try test.append(location, at: 0, "01234")
      try Self.complete(test, isPlain)
      if restarts {
        test.stop()
        test = try server()
      }
      let told = try test.connect().head(location)
      #expect(told.status == 204 && told["upload-complete"] == "?1" && told["upload-offset"] == "10", "\(told)")
      for offset in [5, 10] {
        let client = try test.connect()
        try client.patch(location, at: offset, body: "more")
        let (answer, interim) = try client.final()
        #expect(answer.status == 409 && answer["upload-offset"] == "10" && interim.isEmpty, "\(answer) \(interim)")
      }
      #expect(try test.directory.text("t-a.txt") == "0123456789")
    }
  }

  private static let right = "sha-256=:hNiYd/DUBB77a/kaFvAkjy/Vc+avBcGflr7bn4gveII=:"
  private static let wrong = "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"

  @Test(
    "an upload whose stream another request completes is compared with its Repr-Digest", arguments: [right, wrong],
    [false, true])
  func comparedWithDigest(_ digest: String, _ isPlain: Bool) throws {
    for restarts in [false, true] {
      let directory = TemporaryDirectory()
      var test = try TestServer(in: directory)
      let location = try test.create("/t.txt", ["Stream-ID: a", "Repr-Digest: \(digest)"])
      try test.append(location, at: 0, "01234")
      try Self.complete(test, isPlain)
      if restarts {
        test.stop()
        test = try TestServer(in: directory)
      }
      let told = try test.connect().head(location)
      #expect(told.status == 204 && told["upload-complete"] == "?1" && told["upload-offset"] == "10", "\(told)")
      let answer = try test.complete(location, at: 10)
      #expect(answer.status == (digest == Self.right ? 200 : 400), "\(answer)")
      #expect(try test.directory.text("t-a.txt") == "0123456789")
    }
  }

  @Test(
    "an upload whose length differs from that of the stream that others complete ends",
    arguments: [[], ["Repr-Digest: \(right)"]])
  func completedWithOtherLength(_ fields: [String]) throws {
    let test = try TestServer()
    let location = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 11"] + fields)
    try test.append(location, at: 0, "01234")
    try Self.complete(test, true)
    #expect(try test.connect().head(location).status == 410)
  }

  @Test("requests wait while a large stream is compared with a Repr-Digest, and a DELETE lets them continue")
  func comparedInBackground() throws {
    let test = try TestServer()
    let all = [UInt8](repeating: 7, count: 8 << 20)
    let location = try test.create("/t.txt", ["Stream-ID: a", "Repr-Digest: \(Self.wrong)"])
    try test.append(location, at: 0, "\u{7}")
    let client = try test.connect()
    try client.request(
      "POST", "/t.txt", version: nil, ["Stream-ID: a", "Stream-Offset: 1", "Content-Length: \(all.count - 1)"])
    try client.send(Array(all.dropFirst()))
    #expect(try client.final().answer.status == 200)
    let asking = try (0..<3).map { _ in
      let client = try test.connect()
      try client.request("HEAD", location)
      return client
    }
    let deleting = try test.connect()
    try deleting.request("DELETE", location)
    #expect(try deleting.final().answer.status == 204)
    for client in asking {
      let answer = try client.final(withBody: false).answer
      #expect([204, 404, 410].contains(answer.status), "\(answer)")
    }
    #expect(try test.directory.contents("t-a.txt") == all)
  }

  @Test("an upload whose stream others completed is compared later if the disk cannot read it now")
  func comparedLater() async {
    // The gate applies to the whole process.
    await #expect(processExitsWith: .success) {
      let test = try TestServer { $0.threads = 1 }
      let location = try test.create("/t.txt", ["Stream-ID: a", "Repr-Digest: \(JoinedStreamTests.right)"])
      try test.append(location, at: 0, "01234")
      try JoinedStreamTests.complete(test, true)
      try waitUntil("its own digests are computed") { test.directory.exists("t-a.sidecar") }
      read_gate_fail(EIO, ".txt")
      let told = try test.connect().head(location)
      try require(read_gate_failures() > 0, "nothing was read")
      try require(told.status == 204 && told["upload-offset"] == "10", "\(told)")
      try require(told["upload-complete"] == "?0", "it is not compared yet: \(told)")
      try waitUntil("the file is closed") { !ForeignChangeTests.isOpen(test.directory.path + "/t-a.txt") }
      read_gate_fail(0, "")
      let answer = try test.complete(location, at: 10)
      try require((200...201).contains(answer.status), "\(answer)")
      try require(try test.directory.text("t-a.txt") == "0123456789", "unchanged")
    }
  }

  @Test("an upload that is being compared when another request takes over its stream can be completed again")
  func takenOverDuringComparison() async {
    // The gate applies to the whole process.
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      // The worker reads as many bytes as this.
      let all = [UInt8](repeating: 7, count: 3 << 20)
      let digest = Digest(.sha256, of: all.span.bytes)
      let first = try TestServer(in: directory)
      let location = try first.create(
        "/t", ["Stream-ID: a", "Content-Type: text/plain", "Repr-Digest: sha-256=:\(digest.base64):"])
      try first.append(location, at: 0, all)
      first.stop()
      let test = try TestServer(in: directory) { ($0.threads, $0.durability) = (1, .interval) }
      // If an expectation fails, the server must not wait for a disk that hangs.
      defer { sync_gate_open() }
      sync_gate_close()
      let before = sync_gate_calls()
      _ = try test.create("/u")
      try waitUntil("the worker is busy") { sync_gate_calls() > before }
      let client = try test.connect()
      try client.patch(location, at: all.count, completes: true, body: "")
      try client.awaitProgress(all.count)
      let other = try RawClient.plain(test, id: "a", offset: all.count)
      let answer = try client.final().answer
      try require(answer.status == 503 && answer["upload-offset"] == "\(all.count)", "\(answer)")
      other.disconnect()
      sync_gate_open()
      let end = try test.complete(location, at: all.count)
      try require((200...201).contains(end.status), "\(end)")
      try require(try directory.contents("t-a.txt") == all, "it is complete")
    }
  }

  @Test("an append is answered when another request takes over its stream", arguments: Durability.allCases)
  func answered(_ durability: Durability) throws {
    let test = try TestServer { $0.durability = durability }
    let location = try test.create("/t.txt", ["Stream-ID: a"])
    let client = try test.connect()
    try client.patch(location, at: 0, chunked: true)
    try client.sendChunk("01234")
    try client.awaitProgress(5)
    try Self.complete(test, true)
    let answer = try client.final().answer
    #expect(answer.status == 503 && answer["upload-offset"] == "5" && answer["retry-after"] != nil, "\(answer)")
    let told = try test.connect().head(location)
    #expect(told["upload-complete"] == "?1" && told["upload-offset"] == "10", "\(told)")
  }

  /// Sends the stream from offset 5 to its end at 10.
  private static func complete(_ test: TestServer, _ isPlain: Bool) throws {
    let client = try test.connect()
    let fields = ["Content-Type: text/plain", "Stream-ID: a", "Stream-Offset: 5"]
    try client.request(
      "POST", "/t.txt", version: isPlain ? nil : 8, fields + (isPlain ? [] : ["Upload-Complete: ?1"]), body: "56789")
    let answer = try client.final().answer
    #expect(answer.status == 200 || answer.status == 201, "\(answer)")
  }
}
