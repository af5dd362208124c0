// Tests the end of a stream that cannot get its final name, or that differs from its sender's announcement.

import Glibc
import NetworkTesting
import SyncGate
import Testing
import UploadServer

@Suite("Ends of streams that are refused")
struct StreamEndTests {
  /// A digest that matches none of the contents.
  private static let wrong = "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"
  /// `printf hello | openssl dgst -sha256 -binary | base64`
  private static let right = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:"

  @Test("after a restart, an upload whose stream others have completed ends without an event")
  func silentAfterCompletion() throws {
    let directory = TemporaryDirectory()
    let first = try TestServer(in: directory)
    let client = try first.connect()
    for (complete, body) in [("?0", "abc"), ("?1", "abcdef")] {
      try client.request("POST", "/x.txt", ["Upload-Complete: \(complete)", "Stream-ID: a"], body: body)
      #expect(try [200, 201].contains(client.final().answer.status))
    }
    _ = try first.events.wait(.ended)
    first.stop()
    let test = try TestServer(in: directory) { $0.finishAfter = .milliseconds(50) }
    // Another stream, which is silent from a later moment on, is closed.
    let other = try test.connect()
    try other.request("POST", "/x.txt", ["Upload-Complete: ?0", "Stream-ID: b"], body: "abc")
    #expect(try other.final().answer.status == 201)
    _ = try test.events.first("the end of the other stream") { $0.kind == .closed && $0.file == "x-b.txt" }
    try waitUntil("both uploads are over") { try figure("sluice_server_uploads_open", of: test.server) == 0 }
    #expect(test.events.all.count { $0.kind == .closed } == 1)
  }

  @Test("an upload whose final name is refused stays unfinished, and completes when the name is free")
  func nameRefused() async {
    await #expect(processExitsWith: .success) {
      for durability in Durability.allCases {
        for (error, status) in [(EACCES, 500), (EROFS, 500), (EEXIST, 500), (ENOSPC, 507)] {
          for lines in [[], ["Upload-Length: 6"]] {
            let context = "\(durability), errno \(error), \(lines)"
            let test = try TestServer { $0.durability = durability }
            let location = try test.create("/t.txt", ["Stream-ID: a"] + lines)
            try test.append(location, at: 0, "abc")
            rename_gate_fail(error)
            let client = try test.connect()
            try client.patch(location, at: 3, completes: true, body: "def")
            let refused = try client.final().answer
            try require(refused.status == status && refused["retry-after"] != nil, "\(context): \(refused)")
            try require(refused["upload-complete"] == "?0" && refused["upload-offset"] == "6", "\(context): \(refused)")
            try require(try test.connect().head(location)["upload-offset"] == "6", context)
            rename_gate_fail(0)
            let again = try test.connect()
            try again.patch(location, at: 6, completes: true, body: "")
            let done = try again.final().answer
            try require(done.status == 201 && done["upload-complete"] == "?1", "\(context): \(done)")
            try require(try test.directory.text("t-a.txt") == "abcdef", context)
          }
        }
      }
    }
  }

  /// What has the final name of a recording, or that of its sidecar.
  enum Foreign: CaseIterable, Sendable {
    case file, folder, fifo, link

    func make(_ path: String) -> Bool {
      switch self {
      case .file: makeFile(path)
      case .folder: mkdir(path, 0o700) == 0
      case .fifo: mkfifo(path, 0o600) == 0
      case .link: symlink("nowhere", path) == 0
      }
    }

    /// An empty one could be what a power failure has left of a server's own file.
    private func makeFile(_ path: String) -> Bool {
      let descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
      defer { close(descriptor) }
      return write(descriptor, "x", 1) == 1
    }
  }

  @Test(
    "the log and the response name what has a name of a recording that ends, which is complete when that is gone",
    arguments: Foreign.allCases, ["t-a.txt", "t-a.sidecar"])
  func foreignName(_ foreign: Foreign, _ file: String) throws {
    for isPlain in [false, true] { try end(foreign, file, isPlain: isPlain) }
  }

  private func end(_ foreign: Foreign, _ file: String, isPlain: Bool) throws {
    let test = try TestServer()
    let location = isPlain ? "" : try test.create("/t.txt", ["Stream-ID: a"])
    if isPlain { try test.plain(id: "a", Array("abc".utf8)) } else { try test.append(location, at: 0, "abc") }
    func complete(at offset: Int, _ body: String) throws -> RawClient.Answer {
      if isPlain { return try RawClient.sendPlain(test, id: "a", offset: offset, body) }
      let client = try test.connect()
      try client.patch(location, at: offset, completes: true, body: body)
      return try client.final().answer
    }
    let path = "\(test.directory.path)/\(file)"
    try #require(foreign.make(path))
    let refused = try complete(at: 3, "def")
    #expect(refused.status == 500 && refused["retry-after"] != nil, "\(refused)")
    #expect(refused.body.contains(file), "\(refused)")
    let report = try test.events.first("the report") { $0.status == 500 }
    #expect(report.reason?.contains(file) == true, "\(report)")
    try #require((foreign == .folder ? rmdir(path) : unlink(path)) == 0)
    let done = try isPlain ? complete(at: 3, "def") : complete(at: 6, "")
    #expect(done.status == (isPlain ? 200 : 201), "\(done)")
    #expect(try test.directory.text("t-a.txt") == "abcdef")
  }

  @Test("a plain stream whose final name is refused is completed by the same request again")
  func plainNameRefused() async {
    await #expect(processExitsWith: .success) {
      for durability in Durability.allCases {
        let test = try TestServer { $0.durability = durability }
        rename_gate_fail(EACCES)
        let client = try test.connect()
        try client.request("POST", "/t.txt", version: nil, ["Stream-ID: a"], body: "abc")
        let refused = try client.answer()
        try require(refused.status == 500 && refused["stream-offset"] == "3", "\(durability): \(refused)")
        rename_gate_fail(0)
        let again = try test.connect()
        try again.request("POST", "/t.txt", version: nil, ["Stream-ID: a"], body: "abc")
        try require(try again.answer().status == 200, "\(durability)")
        try require(try test.directory.text("t-a.txt") == "abc", "\(durability)")
      }
    }
  }

  @Test(
    "content that does not match its Repr-Digest leaves no bytes, and the right content is stored after it",
    arguments: [false, true])
  func representation(_ restarts: Bool) throws {
    let directory = TemporaryDirectory()
    var test = try TestServer(in: directory)
    for attempt in ["hellX", "hello"] {
      let client = try test.connect()
      let lines = ["Upload-Complete: ?1", "Stream-ID: a", "Repr-Digest: \(Self.right)"]
      try client.request("POST", "/t.txt", lines, body: attempt)
      let answer = try client.final().answer
      #expect(answer.status == (attempt == "hello" ? 201 : 400), "\(attempt): \(answer)")
      if attempt == "hellX" { #expect(directory.names.filter { !$0.hasPrefix(".") } == []) }
      if restarts {
        test.stop()
        test = try TestServer(in: directory)
      }
    }
    #expect(try directory.text("t-a.txt") == "hello")
  }

  @Test(
    "a plain request with a wrong digest of its content stores nothing", arguments: ["Content-Digest", "Repr-Digest"])
  func plainContent(_ field: String) throws {
    let test = try TestServer()
    func send(_ digest: String, at offset: Int, _ body: String, chunked: Bool) throws -> RawClient.Answer {
      let client = try test.connect()
      let lines = ["Stream-ID: a", "Stream-Offset: \(offset)", "\(field): \(digest)"]
      try client.request("POST", "/t.txt", version: nil, lines, body: chunked ? nil : body, chunked: chunked)
      if chunked {
        for octet in body { try client.sendChunk(String(octet)) }
        try client.send("0\r\n\r\n")
      }
      return try client.answer()
    }
    for chunked in [true, false] {
      #expect(try send(Self.wrong, at: 0, "hello", chunked: chunked).status == 400)
      #expect(test.directory.names.filter { !$0.hasPrefix(".") } == [])
      // The server ignores an algorithm that it does not know.
      #expect(try send("sha-3=:AAAA:", at: 0, "x", chunked: chunked).status == 201)
      unlink(test.directory.path + "/t-a.txt")
    }
    // Bytes that were stored before stay, and are included in the comparison.
    try test.plain(id: "a", Array("hel".utf8))
    if field == "Content-Digest" {
      #expect(try send(Self.right, at: 3, "lo", chunked: true).status == 400)
      #expect(try test.directory.text("t-a.part") == "hel")
    }
    #expect(try send(Self.wrong, at: 0, "hello", chunked: true).status == 400)
    #expect(try test.directory.text("t-a.part") == "hel")
    #expect(try send(Self.right, at: 0, "hello", chunked: true).status == 200)
    #expect(try test.directory.text("t-a.txt") == "hello")
    #expect(try send(Self.wrong, at: 0, "hello", chunked: true).status == 400)
    #expect(try test.directory.text("t-a.txt") == "hello")
  }

  @Test(
    "a hole before an upload counts against the limit of holes, and only in a plain stream against the maximum size",
    arguments: [false, true])
  func holeBeyondSize(_ isPlain: Bool) throws {
    let test = try TestServer {
      $0.uploads.maximumSize = 10
      $0.maximumHoleLength = 20
    }
    func create(_ offset: Int, _ body: String) throws -> Int {
      let client = try test.connect()
      let lines = ["Stream-ID: a", "Stream-Offset: \(offset)"] + (isPlain ? [] : ["Upload-Complete: ?0"])
      try client.request("POST", "/t.txt", version: isPlain ? nil : 8, lines, body: body)
      return try client.final().answer.status
    }
    if isPlain {
      for body in ["", "x"] { #expect(try create(11, body) == 413) }
      #expect(test.directory.names.filter { !$0.hasPrefix(".") } == [])
      return
    }
    // A client whose buffer was full while the server was away, or a stream that the server has lost.
    #expect(try create(21, "x") == 409)
    #expect(try create(11, "0123456789") == 201)
    // Uploads of one stream follow each other, and the maximum applies to each of them.
    #expect(try create(21, "0123456789") == 201)
    #expect(try create(52, "x") == 409)
    #expect(try create(51, "01234567890") == 413)
    #expect(try create(51, "0123456789") == 201)
    #expect(try test.directory.text("t-a.part").utf8.count == 61)
  }
}
