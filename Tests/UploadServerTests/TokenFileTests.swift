// Tests who is admitted while the token file is changed, damaged and repaired.

import Digests
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

  @Test("after a delay, the file is checked once, and then only after the next delay")
  func delays() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try Self.write(Self.alpha, path)
    let (patience, start) = (Duration.milliseconds(100), MonotonicInstant.now)
    let file = try TokenFile(path: path, patience: patience) { _ in }
    var isAdmitted = true
    for number in 1...4 {
      try waitUntil("change \(number) is noticed") {
        // Each change comes at once after the one before it was noticed.
        try Self.write(isAdmitted ? "# nobody\n" : Self.alpha, path)
        return (file.credential("Bearer alpha") != nil) != isAdmitted
      }
      isAdmitted.toggle()
    }
    #expect(MonotonicInstant.now - start >= patience * 4)
  }

  @Test("an earlier file that is moved back is read again")
  func movedBack() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try Self.write(Self.alpha, path)
    let file = try TokenFile(path: path, patience: .zero) { _ in }
    rename(path, path + ".old")
    try Self.write("# nobody\n", path)
    #expect(file.credential("Bearer alpha") == nil)
    rename(path + ".old", path)
    #expect(file.credential("Bearer alpha") != nil)
  }

  @Test("an error states the number of its line, and comments and empty lines count")
  func lines() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    let wrong = "it does not begin with 64 hexadecimal digits"
    for (text, line) in [
      ("x\n", 1), ("\(Self.alpha)\nx\n", 2), ("# comment\n\n \t\r\n\(Self.alpha) alice\n\(Self.alpha)0\n", 5),
    ] {
      try Self.write(text, path)
      #expect(throws: UploadServerError.tokenFile(path, line: line, reason: wrong)) {
        do { _ = try TokenFile(path: path) { _ in } } catch { throw error }
      }
    }
  }

  @Test("each token of the file is valid until it is removed, and a credential is its hash")
  func several() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    // The SHA-256 of "beta" and "gamma", computed by sha256sum.
    let beta = "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"
    let gamma = "be9d587defa1f0c09ef49eb17e206983a5f8f8289e4281860bd0ee5a19592c67"
    try Self.write("\(Self.alpha)\n\t\(beta)\tbob\r\n", path)
    let file = try TokenFile(path: path, patience: .zero) { _ in }
    let credential = file.credential("Bearer beta")
    #expect(Hexadecimal.text(credential ?? []) == beta && !file.isEmpty)
    #expect(file.credential("Bearer alpha") != nil && file.credential("Bearer gamma") == nil)
    #expect(credential.map(file.isValid) == true && !file.isValid([1, 2, 3]))
    try Self.write("\(gamma)\n\(Self.alpha)\n", path)
    #expect(credential.map(file.isValid) == false)
    #expect(file.credential("Bearer alpha") != nil && file.credential("Bearer gamma") != nil)
  }

  @Test("the file stays closed between its checks")
  func closed() throws {
    let directory = TemporaryDirectory()
    let path = directory.path + "/tokens"
    try Self.write(Self.alpha, path)
    let file = try TokenFile(path: path, patience: .zero) { _ in }
    for number in 0..<3 {
      // Some of these have errors.
      try Self.write("# \(number)\n\(String(repeating: "x", count: number))\n", path)
      _ = file.credential("Bearer alpha")
    }
    #expect(try !openPaths().contains(path))
  }

  @Test("it is read although its descriptor is 0, which a process without standard input gives it")
  func descriptorZero() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let path = directory.path + "/tokens"
      try TokenFileTests.write(TokenFileTests.alpha, path)
      close(0)
      let file = try TokenFile(path: path, patience: .zero) { _ in }
      try require(file.credential("Bearer alpha") != nil, "it is not read")
    }
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
