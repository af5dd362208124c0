// Tests that bytes which the disk has refused stay refused after a restart, because the kernel reports the error once.

import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Recordings with bytes that the disk has refused", .serialized)
struct DistrustTests {
  @Test("a retry after a restart does not receive a 2xx for bytes that the disk refused, from any client")
  func restarted() async {
    await #expect(processExitsWith: .success) {
      for durability in [Durability.always, .interval] {
        for isUpload in [false, true] {
          let directory = TemporaryDirectory()
          var test = try TestServer(in: directory) { $0.durability = durability }
          sync_gate_fail(EIO)
          let refused = try test.send("abcdef", asUpload: false)
          try require(refused.status == 500, "refused: \(refused)")
          sync_gate_fail(0)
          test.stop()
          test = try TestServer(in: directory) { $0.durability = durability }
          let again = try test.send("abcdef", asUpload: isUpload)
          try require(again.status == 201, "\(durability), upload \(isUpload): \(again)")
          try require(try directory.text("t-a~2.txt") == "abcdef", "a file of its own")
          try require(try directory.text("t-a.txt") == "abcdef", "what may be there stays")
          let gaps = try directory.text("t-a.gaps")
          try require(gaps == "{\"offset\":0,\"length\":0,\"cause\":\"not-synced\"}\n", "noted once: \(gaps)")
          test.stop()
        }
      }
    }
  }

  @Test(
    "an upload that others have joined receives no offset for bytes that the disk refused", arguments: [false, true])
  func joined(_ restarts: Bool) async {
    await (restarts ? joinedAcrossRestart() : joinedInOneServer())
  }

  private func joinedInOneServer() async {
    await #expect(processExitsWith: .success) { try DistrustTests.join(restarts: false) }
  }

  private func joinedAcrossRestart() async {
    await #expect(processExitsWith: .success) { try DistrustTests.join(restarts: true) }
  }

  private static func join(restarts: Bool) throws {
    let directory = TemporaryDirectory()
    func server() throws -> TestServer { try TestServer(in: directory) { $0.durability = .interval } }
    var test = try server()
    let one = try test.create("/t.txt", ["Stream-ID: a"])
    try test.append(one, at: 0, "abc")
    let record = ".uploads/" + (one.split(separator: "/").last ?? "") + ".upload"
    try waitUntil("the round of the second") { try !directory.text(record).contains("Unsynced") }
    sync_gate_fail(EIO)
    let two = try test.create("/t.txt", ["Stream-ID: a", "Stream-Offset: 3"])
    try test.append(two, at: 0, "def")
    _ = try test.events.wait(.interrupted)
    sync_gate_fail(0)
    if restarts {
      test.stop()
      test = try server()
    }
    for upload in [two, one] {
      let answer = try test.connect().head(upload)
      try require(answer.status == 410, "\(answer)")
    }
    let rest = try test.send("ghi", at: 6, asUpload: false)
    try require(rest.status == 201 && rest["stream-missing"] == "6", "\(rest)")
    test.stop()
  }

  @Test("an upload that begins far beyond such a recording has no hole before it: it begins the next part")
  func nextPart() async {
    await #expect(processExitsWith: .success) {
      for restarts in [false, true] {
        let directory = TemporaryDirectory()
        func server() throws -> TestServer {
          try TestServer(in: directory) { ($0.durability, $0.maximumHoleLength) = (.always, 10) }
        }
        var test = try server()
        sync_gate_fail(EIO)
        try require(try test.send("abcdef", asUpload: false).status == 500, "refused")
        sync_gate_fail(0)
        if restarts {
          test.stop()
          test = try server()
        }
        let answer = try test.send("ghi", at: 1000, asUpload: true)
        try require(answer.status == 201, "restarts \(restarts): \(answer)")
        try require(try directory.text("t-a~2.txt") == "ghi", "a file of its own")
        test.stop()
      }
    }
  }

  @Test(
    "whichever sync of the close of a silent recording fails, its end is true, whenever its client returns",
    arguments: [false, true])
  func refusedClose(returnsAtOnce: Bool) async {
    await #expect(processExitsWith: .success) { [returnsAtOnce = returnsAtOnce as Bool] in
      var refused: Set<String> = []
      for number: UInt in 0... {
        let directory = TemporaryDirectory()
        let test = try TestServer(in: directory) {
          ($0.durability, $0.finishAfter) = (.interval, .milliseconds(200))
        }
        let client = try test.connect()
        try client.send(TestServer.head("/t.txt"))
        try client.sendChunk("abcdef")
        try waitUntil("the bytes are stored") { (try? directory.text("t-a.part")) == "abcdef" }
        sync_gate_fail_once(EIO, number)
        client.disconnect()
        let first = try test.events.first("the close, or its failure") {
          $0.kind == .closed || $0.reason?.contains("cannot close ") == true
        }
        guard first.kind != .closed else {
          sync_gate_fail(0)
          try require(refused.count == 4, "\(refused)")
          return
        }
        let reason = first.reason ?? ""
        let files = ["t-a.part", "t-a.gaps", ".parts/", ".parts:"]
        let isNew = refused.insert(files.first { reason.contains("fdatasync \($0)") } ?? reason).inserted
        // The sync of the sidecar comes after that of the bytes, and is reported with the same words.
        let lacksBytes = isNew && reason.contains("fdatasync t-a.part")
        if !returnsAtOnce { try test.events.wait(.closed) }
        let rest = try test.send("ghi", at: 6, asUpload: false)
        try require([200, 201].contains(rest.status), "\(number): \(rest)")
        try require((rest["stream-missing"] ?? "0") == (lacksBytes ? "6" : "0"), "\(number): \(rest)")
        let gaps = (try? directory.text("t-a.gaps")) ?? ""
        try require(gaps.contains("not-synced") == lacksBytes, "\(number): \(gaps)")
        test.stop()
      }
    }
  }

  @Test("a server that cannot record refused bytes reports this, and records them when it stops")
  func unrecorded() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let test = try TestServer(in: directory) { $0.durability = .always }
      let client = try test.connect()
      try client.send(TestServer.head("/t.txt"))
      try client.sendChunk("abc")
      try waitUntil("the bytes are stored") { (try? directory.text("t-a.part")) == "abc" }
      open_gate_fail(EIO, "t-a.gaps")
      sync_gate_fail(EIO)
      try client.send("0\r\n\r\n")
      let refused = try client.final().answer
      try require(refused.status == 500, "\(refused)")
      let report = try test.events.first("the report") {
        $0.reason?.contains("cannot record refused bytes of t-a.part") == true
      }
      try require(report.kind == .warning, "\(report)")
      open_gate_fail(0, "")
      sync_gate_fail(0)
      test.stop()
      let gaps = try directory.text("t-a.gaps")
      try require(gaps.contains("not-synced"), gaps)
    }
  }

  @Test("an idle recording is closed as one with refused bytes, even after a restart")
  func closed() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let test = try TestServer(in: directory) { $0.durability = .interval }
      sync_gate_fail(EIO)
      try require(try test.send("abcdef", asUpload: false).status == 500, "refused")
      sync_gate_fail(0)
      test.stop()
      let next = try TestServer(in: directory) {
        $0.durability = .interval
        $0.finishAfter = .milliseconds(200)
      }
      let event = try next.events.wait(.closed)
      try require(event.reason?.contains("refused") == true, "\(event)")
      let gaps = try directory.text("t-a.gaps")
      try require(gaps == "{\"offset\":0,\"length\":0,\"cause\":\"not-synced\"}\n", "noted once: \(gaps)")
      next.stop()
    }
  }
}

extension TestServer {
  /// Sends a part of the stream that reaches its end.
  fileprivate func send(_ body: String, at offset: Int = 0, asUpload: Bool) throws -> RawClient.Answer {
    let client = try connect()
    defer { client.disconnect() }
    let lines = ["Stream-ID: a", "Stream-Offset: \(offset)", "Content-Type: text/plain"]
    try client.request(
      "POST", "/t.txt", version: asUpload ? 8 : nil, lines + (asUpload ? ["Upload-Complete: ?1"] : []), body: body)
    return try client.final().answer
  }
}
