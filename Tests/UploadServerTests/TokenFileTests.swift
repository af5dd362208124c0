// Tests who is admitted while the token file is changed, damaged and repaired.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("The token file")
struct TokenFileTests {
  /// The SHA-256 of "alpha", computed by sha256sum.
  private static let alpha = "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"

  private static func write(_ text: String, _ path: String) throws {
    guard let file = fopen(path, "w") else { throw TestFailure("cannot write \(path)") }
    fputs(text, file)
    fclose(file)
  }

  @Test("while it is unreadable, the tokens stay unchanged, this is reported once, and the server tries again")
  func trouble() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try Self.write(Self.alpha + "\n", path)
    let complaints = Lock(0)
    let file = try TokenFile(path: path, patience: .zero) { _ in complaints.withLock { $0 += 1 } }
    var admitsAlpha: Bool { file.credential("Bearer alpha") != nil }
    let troubles: [() throws -> Void] = [
      { unlink(path) }, { try Self.write("", path) }, { mkdir(path, 0o700) }, { mkfifo(path, 0o600) },
      { try Self.write(String(Self.alpha.dropLast()), path) }, { try Self.write("\0\n", path) },
      { symlink("/nonexistent/tokens", path) }, { symlink(path, path) },
    ]
    for (number, trouble) in troubles.enumerated() {
      for isAdmitted in [true, false] {
        let before = complaints.withLock { $0 }
        try Command.run("rm", ["-rf", path])
        try trouble()
        for _ in 0..<3 { #expect(admitsAlpha == isAdmitted, "trouble \(number)") }
        #expect(complaints.withLock { $0 } == before + 1, "trouble \(number)")
        // The file is readable again and has other tokens. No further change is needed.
        try Command.run("rm", ["-rf", path])
        try Self.write("# \(number)\n" + (isAdmitted ? "" : Self.alpha), path)
        #expect(admitsAlpha != isAdmitted, "trouble \(number)")
      }
    }
  }

  @Test("several requests within the delay check the file only once")
  func patience() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try Self.write(Self.alpha + "\n", path)
    let file = try TokenFile(path: path, patience: .seconds(100_000)) { _ in }
    try Self.write("# nobody\n", path)
    #expect(file.credential("Bearer alpha") != nil)
  }

  @Test(
    "a field matches a token by its octets",
    arguments: [
      ("Bearer alpha", true), ("bearer alpha", true), ("BEARER  alpha", true), ("Bearer alpha ", false),
      ("Bearer\talpha", false), ("Bearer ", false), ("Beare\u{301}r alpha", false), ("Bearer \u{301}alpha", false),
      ("Bearer alpha\u{301}", false), ("Basic alpha", false), ("alpha", false), ("", false),
    ])
  func fields(_ field: String, _ isAdmitted: Bool) throws {
    let directory = TemporaryDirectory()
    try Self.write(Self.alpha, directory.path + "/tokens")
    let file = try TokenFile(path: directory.path + "/tokens") { _ in }
    #expect((file.credential(field) != nil) == isAdmitted)
  }

  @Test("a server does not start with an unreadable token file")
  func tokenFileAtStart() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    #expect(throws: UploadServerError.tokenFile(path, line: nil, reason: "No such file or directory")) {
      do { _ = try TestServer { $0.tokenFile = path } } catch { throw error }
    }
    mkdir(path, 0o700)
    #expect(throws: UploadServerError.tokenFile(path, line: nil, reason: "Is a directory")) {
      do { _ = try TestServer { $0.tokenFile = path } } catch { throw error }
    }
    rmdir(path)
    // The FIFO has no writer, so a plain open would wait forever.
    mkfifo(path, 0o600)
    #expect(throws: UploadServerError.tokenFile(path, line: nil, reason: "it is not a regular file")) {
      do { _ = try TestServer { $0.tokenFile = path } } catch { throw error }
    }
  }

  @Test("a server whose token file has no tokens yet warns once, and admits them as soon as the file has them")
  func noTokensAtStart() throws {
    for (text, isEmpty) in [("", true), ("# nobody yet\n\n", true), (Self.alpha, false)] {
      for threads in [1, 2] {
        let directory = TemporaryDirectory()
        let path = directory.path + "/tokens"
        try Self.write(text, path)
        let test = try TestServer(in: directory) { ($0.tokenFile, $0.threads) = (path, threads) }
        func status() throws -> Int {
          let client = try test.connect()
          try client.send("GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer alpha\r\n\r\n")
          return try client.answer().status
        }
        #expect(try status() == (isEmpty ? 401 : 200))
        let warnings = test.events.all.filter { $0.kind == .warning }
        #expect(warnings.count == (isEmpty ? 1 : 0), "\(warnings)")
        #expect(warnings.allSatisfy { $0.reason?.contains(path) == true }, "\(warnings)")
        try Self.write("# now\n" + Self.alpha, path)
        try waitUntil("the token is admitted") { try status() == 200 }
      }
    }
  }

  @Test("a problem with it causes a warning, and no refused request")
  func warning() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try Self.write(Self.alpha, path)
    let test = try TestServer(in: directory) { $0.tokenFile = path }
    unlink(path)
    try waitUntil("it is said") {
      let client = try test.connect()
      try client.send("GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer alpha\r\n\r\n")
      #expect(try client.answer().status == 200)
      return test.events.all.contains { $0.kind == .warning }
    }
    #expect(test.events.all.allSatisfy { $0.kind == .warning })
  }
}
