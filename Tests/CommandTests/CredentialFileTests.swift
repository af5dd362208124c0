// Tests credential files that cannot be read immediately: FIFOs without a writer, and keys that need a pass phrase.

import EventLoops
import Glibc
import NetworkTesting
import TestRigs
import Testing

@Suite("Credential files that block") struct CredentialFileTests {
  static let options = ["bearer-token-file", "netrc-file", "ca-file", "cert", "key"]

  private func makeFIFO(_ path: String) throws {
    guard mkfifo(path, 0o600) == 0 else { throw TestFailure("mkfifo: \(String(cString: strerror(errno)))") }
  }

  /// Replaces a file by a FIFO in one step.
  private func replaceByFIFO(_ path: String) throws {
    try makeFIFO(path + ".fifo")
    guard rename(path + ".fifo", path) == 0 else { throw TestFailure("rename: \(String(cString: strerror(errno)))") }
  }

  @Test("a FIFO or a device is refused at once, for each option that names it", arguments: options)
  func refused(_ option: String) throws {
    let directory = try TemporaryDirectory()
    let fifo = "\(directory.path)/fifo"
    try makeFIFO(fifo)
    for path in [fifo, "/dev/null"] {
      for arguments in [["heartbeat", "https://127.0.0.1:9/"], ["load", "https://127.0.0.1:9/"]] {
        let process = try sluice(arguments + ["--\(option)", path])
        #expect(try process.wait() == 66)
        let text = process.errors.joined(separator: "\n")
        #expect(text.contains("--\(option) ") && text.contains(path) && text.contains("not a regular file"), "\(text)")
      }
    }
  }

  @Test("~/.netrc that is a FIFO is refused at once")
  func netrcAtHome() throws {
    let directory = try TemporaryDirectory()
    try makeFIFO("\(directory.path)/.netrc")
    let process = try sluice(
      ["heartbeat", "http://127.0.0.1:9/", "--netrc"], environment: ["HOME": directory.path])
    #expect(try process.wait() == 66)
    #expect(process.errors.contains { $0.contains("--netrc ") && $0.contains("not a regular file") })
  }

  @Test("a FIFO in place of the token file blocks no stream: the token stays, and SIGTERM ends the stream")
  func tokenFile() throws {
    let directory = try TemporaryDirectory()
    let token = try directory.write("token", "SECRET")
    let server = try StreamServer()
    let process = try sluice([
      "heartbeat", "\(server.url)/h", "--interval", "5ms", "--roll-over-after", "50ms", "--progress", "json",
      "--bearer-token-file", token,
    ])
    _ = try process.lines.first("an acknowledgement") { $0.text.contains("\"acknowledged\"") }
    try replaceByFIFO(token)
    let stored = try storedCount(server)
    try eventually("more bytes") { try storedCount(server) > stored + 1_000 }
    process.signal(SIGTERM)
    #expect(try process.wait() == 0)
  }

  @Test("while the netrc file is a FIFO, each attempt fails with the reason; then the stream continues")
  func netrcFile() throws {
    let directory = try TemporaryDirectory()
    let netrc = try directory.write("netrc", "machine 127.0.0.1 login me password SECRET\n")
    let server = try StreamServer()
    let process = try sluice([
      "heartbeat", "\(server.url)/h", "--interval", "5ms", "--roll-over-after", "50ms", "--progress", "json",
      "--retry-ceiling", "20ms", "--netrc-file", netrc,
    ])
    _ = try process.lines.first("an acknowledgement") { $0.text.contains("\"acknowledged\"") }
    try replaceByFIFO(netrc)
    _ = try process.lines.first("why") { $0.text.contains("netrc file") && $0.text.contains("is not a regular file") }
    unlink(netrc)
    try directory.write("netrc", "machine 127.0.0.1 login me password SECRET\n")
    let stored = try storedCount(server)
    try eventually("more bytes") { try storedCount(server) > stored + 1_000 }
    process.signal(SIGTERM)
    #expect(try process.wait() == 0)
  }

  @Test("SIGTERM ends a stream whose files became FIFOs", arguments: ["ca-file", "cert", "key", "netrc-file"])
  func ends(_ option: String) throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    try directory.write("netrc", "")
    let files = [
      "ca-file": "\(directory.path)/ca.pem", "cert": "\(directory.path)/client.pem",
      "key": "\(directory.path)/client.key", "netrc-file": "\(directory.path)/netrc",
    ]
    // The server does not speak TLS because the command fails before it would connect.
    let server = try ScriptedServer { _, _ in }
    let process = try sluice(
      ["heartbeat", "https://127.0.0.1:\(server.port)/", "--progress", "json", "--retry-ceiling", "20ms"]
        + ["--give-up", "1h", "--finish-timeout", "100ms"] + files.flatMap { ["--\($0)", $1] })
    _ = try process.lines.first("an attempt") { $0.text.contains("\"outage\"") }
    try replaceByFIFO(try #require(files[option]))
    _ = try process.lines.first("why") { $0.text.contains("is not a regular file") }
    process.signal(SIGTERM)
    #expect(try process.wait() == 69)
  }

  /// Key files that contain the same key, encrypted in each way that openssl(1) supports.
  private func encryptedKeys(_ directory: TemporaryDirectory) throws -> [String] {
    try TestCertificates.make(in: directory)
    let key = "\(directory.path)/client.key"
    let (modern, old) = ("\(directory.path)/modern.key", "\(directory.path)/old.key")
    for arguments in [
      ["pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", modern],
      ["ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", old],
    ] {
      guard try TestProcess("openssl", arguments).wait() == 0 else { throw TestFailure("openssl \(arguments)") }
    }
    let both = try directory.write(
      "both.pem", try directory.contents("client.pem") + directory.contents("modern.key"))
    return [modern, old, both]
  }

  @Test("an encrypted key is refused at once, with the reason and a remedy, even on a terminal")
  func encryptedKey() throws {
    let directory = try TemporaryDirectory()
    let keys = try encryptedKeys(directory)
    for key in keys {
      let isBoth = key.hasSuffix("both.pem")
      let own = isBoth ? ["--cert", key] : ["--cert", "\(directory.path)/client.pem", "--key", key]
      let terminal = try Terminal()
      let pipe = try TestPipe()
      let command = try SpawnedCommand(
        ["heartbeat", "https://127.0.0.1:9/", "--progress", "json"] + own, [terminal.inner, pipe.writing, pipe.writing])
      #expect(try command.wait() == 66)
      let text = String(decoding: try pipe.read { $0.last == 0x0A }, as: UTF8.self)
      #expect(text.contains(isBoth ? "--cert " : "--key "), "\(text)")
      #expect(text.contains("is encrypted") && text.contains("openssl pkey"), "\(text)")
    }
    #expect(keys.count == 3)
  }

  @Test("a key that is replaced by an encrypted one causes no question for a pass phrase")
  func replacedKey() throws {
    let directory = try TemporaryDirectory()
    let encrypted = try encryptedKeys(directory)[0]
    let key = "\(directory.path)/client.key"
    let server = try ScriptedServer { _, _ in }
    let terminal = try Terminal()
    let pipe = try TestPipe()
    // Without a controlling terminal, OpenSSL writes its prompt to standard error and reads standard input.
    let command = try SpawnedCommand(
      [
        "heartbeat", "https://127.0.0.1:\(server.port)/", "--progress", "json", "--retry-ceiling", "20ms",
        "--cert", "\(directory.path)/client.pem", "--key", key,
      ], [terminal.inner, pipe.writing, terminal.inner])
    _ = try pipe.read { String(decoding: $0, as: UTF8.self).contains("\"outage\"") }
    #expect(rename(encrypted, key) == 0)
    #expect(try command.wait() == 64)
    var asked = [UInt8](repeating: 0, count: 4096)
    let flags = fcntl(terminal.outer, F_GETFL)
    _ = fcntl(terminal.outer, F_SETFL, flags | O_NONBLOCK)
    let count = max(0, read(terminal.outer, &asked, asked.count))
    let text = String(decoding: asked[..<count], as: UTF8.self)
    #expect(!text.lowercased().contains("pass phrase"), "\(text)")
  }

  private func storedCount(_ server: StreamServer) throws -> Int {
    server.directory.names.reduce(0) { $0 + ((try? server.directory.contents($1).count) ?? 0) }
  }
}
