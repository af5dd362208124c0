import EventLoops
import FoundationEssentials
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

/// Starts the `sluice` command that was built with these tests.
func sluice(
  _ arguments: [String], input: TestProcess.Input = .nothing, environment: [String: String?] = [:]
) throws -> TestProcess {
  let own: [String: String?] = ["SLUICE_BEARER_TOKEN": nil, "http_proxy": nil, "https_proxy": nil, "all_proxy": nil]
  return try TestProcess(sluicePath(), arguments, input: input, environment: own.merging(environment) { $1 })
}

/// Starts that command, which is killed within a system call of one of these kinds.
///
/// - Parameters:
///   - number: the number of the call, from 1.
///   - path: only calls for this file count. Nil for all.
func sluice(
  _ arguments: [String], killedIn calls: String, number: Int = 1, on path: String? = nil
) throws -> TestProcess {
  try TestProcess(
    "strace",
    ["-D", "-f", "-qq", "-o", "/dev/null"] + (path.map { ["-P", $0] } ?? []) + [
      "-e", "trace=\(calls)", "-e", "inject=\(calls):signal=SIGKILL:when=\(number)", try sluicePath(),
    ] + arguments, environment: ["http_proxy": nil, "all_proxy": nil])
}

/// The path of that command.
func sluicePath() throws -> String {
  var path = [CChar](repeating: 0, count: 4096)
  guard readlink("/proc/self/exe", &path, 4095) > 0 else { throw TestFailure("readlink") }
  let tests = String(decoding: path.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  // SwiftPM puts the test runner next to the products. With Xcode's layout this test would fail.
  let directory = tests.prefix(upTo: tests.lastIndex(of: "/") ?? tests.startIndex)
  return "\(directory)/sluice"
}

/// One line of the output of `--progress json` and of `serve`.
private struct Line: Decodable {
  var event: String
  var offset: UInt64?
  var captured: UInt64?
  var acknowledged: UInt64?
  var error: String?
  var cause: String?

  static func all(_ lines: [String]) throws -> [Line] {
    try lines.map { try JSONDecoder().decode(Line.self, from: Data($0.utf8)) }
  }
}

@Suite("The command as a process", .serialized)
struct CommandProcessTests {
  // MARK: Exit codes

  struct Misuse: Sendable, CustomTestStringConvertible {
    var arguments: [String]
    var code: Int32
    /// Texts that the message must contain.
    var says: [String]
    var testDescription: String { arguments.joined(separator: " ") }

    init(_ arguments: String, _ code: Int32 = 64, _ says: String...) {
      self.arguments = arguments.split(separator: " ").map {
        String($0.replacing("~", with: " ").replacing("\\r\\n", with: "\r\n"))
      }
      self.code = code
      self.says = says
    }
  }

  @Test(
    "each invalid input is refused with its code, in one line with the input and the remedy",
    arguments: [
      Misuse("heartbeat localhost:8080/x", 64, "localhost:8080/x", "http://"),
      Misuse("pipe //127.0.0.1:18080/a", 64, "\"//127.0.0.1:18080/a\"", "Write \"http://127.0.0.1:18080/a\""),
      Misuse("heartbeat http://host:port/", 64, "http://host:port/"),
      Misuse("heartbeat ftp://host/", 64, "neither http:// nor https://", "Write http:// or https://"),
      Misuse("put http://u:p@h/ film.mkv", 64, "in the wrong order", "sluice put film.mkv http://h/"),
      Misuse("serve --listen localhost:99999", 64, "localhost:99999", "above 65535"),
      Misuse("heartbeat http://h/ --interval 1s --interval 2s", 64, "--interval is given twice"),
      Misuse("heartbeat http://h/ --intervall 1s", 64, "Did you mean --interval?"),
      Misuse("heartbeat http://h/ --interval soon", 64, "\"soon\"", "250ms"),
      Misuse("heartbeat http://127.0.0.1:0/", 64, "http://127.0.0.1:0/", "port"),
      Misuse("heartbeat http:///x", 64, "http:///x", "no host"),
      Misuse("heartbeat http://127.0.0.1/ -6", 64, "--ipv6", "127.0.0.1"),
      Misuse("heartbeat http://[::1]/ -4", 64, "--ipv4", "[::1]"),
      Misuse("heartbeat http://h/ --proxy unix:/x", 64, "--proxy", "unix:/x"),
      Misuse("heartbeat http://h/ --buffer --give-up 1s", 64, "--buffer requires a value"),
      Misuse("pipe http://h/ -H Content-Type:~a/b --content-type a/b", 64, "Content-Type", "--content-type"),
      Misuse("pipe http://h/ --content-type =", 64, "--content-type \"=\"", "text/plain; charset=utf-8"),
      Misuse("mic http://h/ --split 00:00 --split 12:00", 64, "a second time of day"),
      Misuse("mic http://h/ --device hw:99", 66, "hw:99"),
      Misuse("pipe http://h/ --resumable never --digest sha-256", 64, "--digest", "--resumable never"),
      Misuse("heartbeat http://h/ --interval 1us", 64, "from 1ms"),
      Misuse("heartbeat http://h/ -H X:~a\\r\\nEvil:~1", 64, "control characters"),
      Misuse("heartbeat http://h/ -H X\\r\\nEvil:~1", 64, "control characters"),
      Misuse("heartbeat http://h/ -H X~Y:~1", 64, "--header", "is invalid"),
      Misuse("heartbeat http://h/ -H nothing", 64, "no colon"),
      Misuse("heartbeat http://h/ -H Content-Length:~5", 64, "Content-Length"),
      Misuse("heartbeat http://h/ --method GET~/", 64, "method"),
      Misuse("heartbeat http://h/ --stream-id ../up", 64, "--stream-id"),
      Misuse("heartbeat http://h/ --overflow explode", 64, "drop-oldest, stop or wait"),
      Misuse("heartbeat http://h/ --progress loud", 64, "auto, bar, json or none"),
      Misuse("heartbeat http://h/ --ca-file /nonexistent/ca.pem", 66, "/nonexistent/ca.pem", "No such file"),
      Misuse("heartbeat http://h/ --bearer-token-file /nonexistent/token", 66, "/nonexistent/token"),
      Misuse(
        "heartbeat http://nowhere.invalid/ --give-up 100ms --retry-ceiling 10ms", 69, "nowhere.invalid", "gave up"),
      Misuse("heartbeat http://127.0.0.1:9/ --give-up 100ms --retry-ceiling 10ms", 69, "127.0.0.1", "gave up"),
      Misuse("mic http://h/ --device nonexistent-device", 66, "nonexistent-device"),
      Misuse("mic http://h/ --format S16_BE", 64, "Did you mean S16_LE?"),
      Misuse("mic http://h/ --container ogg", 64, "wav or raw"),
      Misuse("serve --listen 127.0.0.1", 64, "127.0.0.1"),
      Misuse("serve --listen 127.0.0.1:0 --directory /proc/1/nonexistent", 74, "/proc/1/nonexistent"),
      Misuse("serve --listen 127.0.0.1:0 --directory /proc/self", 74, "/proc/self"),
      Misuse("serve --discard --directory /tmp", 64, "--discard", "--directory"),
      Misuse("serve --discard --threads 0", 64, "--threads"),
      Misuse("serve --discard --listen 127.0.0.1:0 --metrics 9090", 64, "--metrics", "9090"),
      Misuse("heartbeat http://h/ --metrics 192.0.2.1:0", 69, "--metrics", "192.0.2.1"),
      Misuse("heartbeet", 64, "Did you mean heartbeat?"),
      Misuse("pipe", 64, "URL is missing"),
    ])
  func misuse(_ misuse: Misuse) throws {
    let process = try sluice(misuse.arguments)
    #expect(try process.wait() == misuse.code)
    let text = process.errors.joined(separator: "\n")
    for part in misuse.says { #expect(text.contains(part), "\(text)") }
    #expect(process.output.isEmpty)
    // The error comes first. Only the reason for giving up may precede it.
    if misuse.code == 64 { #expect(process.errors.first?.hasPrefix("sluice: ") == true) }
  }

  @Test("closed standard input: 74, with a remedy")
  func closedInput() throws {
    let process = try sluice(["pipe", "http://127.0.0.1:9/"], input: .closed)
    #expect(try process.wait() == 74)
    #expect(
      process.errors.first?.hasPrefix("sluice: cannot read standard input") == true)
  }

  @Test("unreadable input: 74")
  func unreadableInput() throws {
    let server = try StreamServer()
    let process = try sluice(["pipe", server.url], input: .file("/"))
    #expect(try process.wait() == 74)
    #expect(process.errors.contains { $0.contains("standard input") && $0.contains("Is a directory") })
  }

  @Test("a port in use: 69, with its owner")
  func portTaken() throws {
    let server = try ScriptedServer { _, _ in }
    let directory = try TemporaryDirectory()
    let process = try sluice(["serve", "--listen", "127.0.0.1:\(server.port)", "--directory", directory.path])
    #expect(try process.wait() == 69)
    #expect(process.errors.first?.contains("\(server.port)") == true)
  }

  @Test(
    "a server's response ends the command with its code",
    arguments: [
      ("401 Unauthorized", 77, "credentials"), ("403 Forbidden", 77, "does not permit"),
      ("404 Not Found", 76, "Check the path"),
      ("413 Content Too Large", 76, "Raise its limit"), ("301 Moved Permanently", 76, "http://elsewhere/"),
      ("200 OK", 76, "before the end"),
    ] as [(String, Int32, String)])
  func answers(_ status: String, _ code: Int32, _ says: String) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond(status, ["Location: http://elsewhere/", "Connection: close"], body: "my reason\n")
      _ = connection.readToEnd()
    }
    let process = try sluice(["heartbeat", server.url])
    #expect(try process.wait() == code)
    #expect(process.errors.contains { $0.hasPrefix("sluice: ") && $0.contains(says) })
  }

  @Test("a response that is not HTTP: 76, whatever it contains")
  func noHTTP() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.send("220 mail.example ESMTP\r\n")
      _ = connection.readToEnd()
    }
    let process = try sluice(["heartbeat", server.url])
    #expect(try process.wait() == 76)
    #expect(process.errors.contains { $0.contains("does not use HTTP") })
  }

  @Test("an untrusted certificate: 76 and the option to trust it; with the option, 0")
  func certificates() throws {
    let server = try StreamServer()
    let nginx = try TLSFrontEnd(backend: "127.0.0.1:\(server.port)")
    let url = "https://localhost:\(nginx.port)/secure"
    let refused = try sluice(["heartbeat", url, "-4"])
    #expect(try refused.wait() == 76)
    #expect(refused.errors.contains { $0.contains("certificate is not trusted") && $0.contains("--ca-file") })
    let trusted = try sluice(["heartbeat", url, "-4", "--ca-file", nginx.authority, "--duration", "100ms"])
    #expect(try trusted.wait() == 0)
    try server.events.first("the stream's end") { $0.kind == .ended }
  }

  // MARK: Signals

  @Test("the first signal finishes the upload and exits 0", arguments: [SIGINT, SIGTERM, SIGHUP])
  func firstSignal(_ signal: Int32) throws {
    let server = try StreamServer()
    let process = try sluice(["heartbeat", "\(server.url)/pulse", "--stream-id", "a", "--interval", "20ms"])
    try server.events.first("the stream") { $0.kind == .begun }
    process.signal(signal)
    #expect(try process.wait() == 0)
    let ended = try server.events.first("the stream's end") { $0.kind == .ended }
    #expect(ended.file == "pulse-a.txt")
    let text = String(decoding: try server.directory.contents("pulse-a.txt"), as: UTF8.self)
    #expect(text.hasPrefix("*** 20") && text.hasSuffix(" +0000\r\n") && UInt64(text.utf8.count) == ended.bytes)
    #expect(process.errors.contains { $0.hasPrefix("finishing") })
  }

  @Test("two signals at once are one: timeout(1) signals its child, and then its process group")
  func doubledSignal() throws {
    let server = try StreamServer()
    let process = try sluice(["heartbeat", "\(server.url)/pulse", "--stream-id", "a", "--interval", "20ms"])
    try server.events.first("the stream") { $0.kind == .begun }
    // Both signals are pending when the process continues. Two signals with the same number would be merged.
    for signal in [SIGSTOP, SIGTERM, SIGINT, SIGCONT] { process.signal(signal) }
    #expect(try process.wait() == 0)
    let ended = try server.events.first("the stream's end") { $0.kind == .ended }
    #expect(ended.file == "pulse-a.txt")
  }

  @Test(
    "the first signal ends a stream within --finish-timeout, with the unsent bytes: 69 if it was never connected, else 4"
  )
  func finishTimeout() throws {
    let reached = try EventLog<Bool>()
    let silent = try ScriptedServer { connection, _ in
      _ = try connection.head()
      reached.append(true)
      _ = connection.readToEnd()
    }
    for (url, word, code) in [
      ("http://127.0.0.1:\(try freePort())/", "outage", Int32(69)), (silent.url, "", 4),
    ] {
      let process = try sluice(
        ["heartbeat", url, "--interval", "20ms", "--resumable", "always", "--finish-timeout", "100ms"])
      if word.isEmpty {
        try reached.first("the connection") { $0 }
      } else {
        try process.lines.first("the outage") { $0.text.hasPrefix(word) }
      }
      process.signal(SIGTERM)
      #expect(try process.wait() == code)
      #expect(process.errors.contains { $0.hasPrefix("finishing") && $0.contains("at most 0.10 s") })
      #expect(process.errors.contains { $0.contains(" unsent") }, "\(process.errors)")
    }
  }

  @Test("SIGQUIT ends a stream at once with 130, without a crash")
  func quit() throws {
    let server = try StreamServer()
    let process = try sluice(["heartbeat", "\(server.url)/pulse", "--interval", "20ms"])
    try server.events.first("the stream") { $0.kind == .begun }
    process.signal(SIGQUIT)
    #expect(try process.wait() == 130)
    #expect(!process.errors.contains { $0.contains("crash") }, "\(process.errors)")
  }

  @Test("SIGQUIT ends a command that waits for a file, without a crash")
  func quitBeforeStream() throws {
    let directory = try TemporaryDirectory()
    let fifo = "\(directory.path)/profile"
    guard mkfifo(fifo, 0o600) == 0 else { throw SystemError.last("mkfifo") }
    // A program inherits the signals that are blocked in the thread that starts it.
    var (quit, before) = (sigset_t(), sigset_t())
    sigemptyset(&quit)
    sigaddset(&quit, SIGQUIT)
    pthread_sigmask(SIG_UNBLOCK, &quit, &before)
    defer { pthread_sigmask(SIG_SETMASK, &before, nil) }
    let process = try sluice(["load", "http://127.0.0.1:9/", "--profile", fifo])
    // Opening the FIFO waits until the process opens it too.
    let writer = open(fifo, O_WRONLY | O_CLOEXEC)
    defer { close(writer) }
    process.signal(SIGQUIT)
    #expect(try process.wait() == 128 + SIGQUIT)
    #expect(process.errors == [])
  }

  @Test("load refuses a body that is a FIFO at once")
  func fifoBody() throws {
    let directory = try TemporaryDirectory()
    let fifo = "\(directory.path)/body"
    guard mkfifo(fifo, 0o600) == 0 else { throw SystemError.last("mkfifo") }
    let process = try sluice(["load", "http://127.0.0.1:9/", "--body", fifo])
    #expect(try process.wait() == 66)
    #expect(process.errors.contains { $0.contains(fifo) && $0.contains("not a regular file") }, "\(process.errors)")
  }

  @Test("a requested digest that the server did not send is reported as not verified")
  func notVerified() throws {
    let server = try ScriptedServer { connection, _ in
      // Each request has its own connection, and OPTIONS has no content.
      guard try !connection.head().line.hasPrefix("OPTIONS ") else {
        return try connection.respond("405 Method Not Allowed")
      }
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    for isJSON in [true, false] {
      let process = try sluice(
        ["pipe", server.url, "--digest", "sha-256"] + (isJSON ? ["--progress", "json"] : []), input: .pipe)
      process.send(Array("some".utf8))
      process.endInput()
      #expect(try process.wait() == 0)
      if isJSON {
        #expect(process.output.contains { $0.contains(#""verified":false"#) })
      } else {
        #expect(
          process.errors.contains { $0 == "the upload is not verified: the server sent no sha-256 digest" },
          "\(process.errors)")
      }
    }
  }

  @Test("the second signal stops at once with 130, and the unsent bytes are reported")
  func secondSignal() throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.body()
      _ = connection.waitForEnd()
    }
    let process = try sluice(["heartbeat", server.url, "--interval", "20ms", "--resumable", "never"])
    try process.lines.first("the stream") { $0.text.hasPrefix("streaming to ") }
    process.signal(SIGINT)
    try process.lines.first("the first signal's word") { $0.text.hasPrefix("finishing") }
    // The test needs real time between the signals.
    usleep(1_000_000)
    process.signal(SIGINT)
    #expect(try process.wait() == 130)
    #expect(process.errors.contains { $0.hasPrefix("sluice: stopped before everything was sent") })
  }

  @Test("serve exits with 0 on a signal, and leaves unfinished recordings as .part")
  func serve() throws {
    let directory = try TemporaryDirectory()
    let server = try sluice(["serve", "--listen", "127.0.0.1:0", "--directory", directory.path])
    let listening = try server.lines.first("its address") { $0.text.hasPrefix("listening on ") }.text
    let url = "http://" + listening.dropFirst("listening on ".count)
    let whole = try sluice(["pipe", "\(url)/whole", "--stream-id", "w", "--content-type", "text/plain"], input: .pipe)
    whole.send(Array("all of it\n".utf8))
    whole.endInput()
    #expect(try whole.wait() == 0)
    let part = try sluice(["pipe", "\(url)/part", "--stream-id", "p"], input: .pipe)
    part.send(Array("some".utf8))
    try server.lines.wait("two streams") { lines in
      lines.count { $0.text.contains(#""event":"begun""#) } == 2 ? true : nil
    }
    server.signal(SIGTERM)
    #expect(try server.wait() == 0)
    part.signal(SIGKILL)
    #expect(try directory.contents("whole-w.txt") == Array("all of it\n".utf8))
    #expect(directory.names == ["part-p.part", "whole-w.txt"])
    let events = try Line.all(server.output).map(\.event)
    #expect(events == ["begun", "ended", "begun", "interrupted"])
  }

  // MARK: Outputs

  @Test("--progress json: each line of standard output is JSON, and standard error is empty")
  func json() throws {
    let server = try StreamServer()
    let process = try sluice([
      "heartbeat", server.url, "--interval", "20ms", "--progress", "json", "--duration", "1200ms",
    ])
    #expect(try process.wait() == 0)
    let lines = try Line.all(process.output)
    let known = lines.map(\.event).filter { ["connecting", "upload-created", "streaming"].contains($0) }
    #expect(known == ["connecting", "upload-created", "streaming"])
    #expect(lines.contains { $0.event == "progress" } && lines.last?.event == "ended")
    #expect(lines.last?.captured ?? 0 > 31 && lines.last?.captured == lines.last?.acknowledged)
    #expect(process.errors.isEmpty)
  }

  @Test("a pipe of several megabytes arrives byte for byte, with nothing on standard output")
  func pipe() throws {
    let server = try StreamServer()
    let pattern = OffsetPattern()
    let bytes = pattern[0..<3_000_000]
    let process = try sluice(["pipe", "\(server.url)/p", "--stream-id", "p"], input: .pipe)
    #expect(process.send(bytes))
    process.endInput()
    #expect(try process.wait() == 0)
    #expect(try server.directory.contents("p-p.bin") == bytes)
    #expect(process.output.isEmpty)
    #expect(process.errors.contains { $0.contains("3.00 MB acknowledged") })
  }

  @Test(
    "secrets are sent and never printed: tokens and passwords from any source, during any failure",
    arguments: ["json", "none"])
  func secrets(_ progress: String) throws {
    let heads = try EventLog<String>()
    let server = try ScriptedServer { connection, number in
      heads.append(try connection.head()["Authorization"] ?? "none")
      if number % 2 == 0 { return }
      try connection.respond("403 Forbidden", ["Connection: close"])
      _ = connection.readToEnd()
    }
    let directory = try TemporaryDirectory()
    let token = try directory.write("token", "file-SECRET-token\n")
    let netrc = try directory.write("netrc", "machine 127.0.0.1 login me password netrc-SECRET\n")
    let port = server.port
    let empty = try directory.write("empty", "\n")
    let cases: [([String], [String: String?], String)] = [
      ([server.url, "--bearer-token-file", token], [:], "Bearer file-SECRET-token"),
      ([server.url], ["SLUICE_BEARER_TOKEN": "env-SECRET-token"], "Bearer env-SECRET-token"),
      (["http://me:url-SECRET@127.0.0.1:\(port)/"], [:], "Basic bWU6dXJsLVNFQ1JFVA=="),
      ([server.url, "--netrc-file", netrc], [:], "Basic bWU6bmV0cmMtU0VDUkVU"),
      // A unit of systemd without a token.
      ([server.url, "--bearer-token-file", empty], ["CREDENTIALS_DIRECTORY": directory.path], "none"),
    ]
    for (arguments, environment, sent) in cases {
      let process = try sluice(
        ["heartbeat", "--progress", progress, "--retry-ceiling", "10ms"] + arguments, environment: environment)
      #expect(try process.wait() == 77)
      #expect(heads.all.last == sent)
      #expect(!process.lines.all.contains { $0.text.contains("SECRET") })
      #expect(!process.lines.all.isEmpty)
    }
    let malformed = try sluice(["heartbeat", "http://me:url-SECRET@host:port/"])
    #expect(try malformed.wait() == 64)
    #expect(!malformed.lines.all.contains { $0.text.contains("SECRET") })
    let badToken = try directory.write("bad", "two SECRET words")
    let refused = try sluice(["heartbeat", server.url, "--bearer-token-file", badToken])
    #expect(try refused.wait() == 65)
    #expect(!refused.lines.all.contains { $0.text.contains("SECRET") })
    #expect(try sluice(["heartbeat", server.url, "--bearer-token-file", empty]).wait() == 65)
    for token in ["two SECRET words", "SECRET\nword", ""] {
      let refused = try sluice(["heartbeat", server.url], environment: ["SLUICE_BEARER_TOKEN": token])
      #expect(try refused.wait() == 64)
      #expect(!refused.lines.all.contains { $0.text.contains("SECRET") })
      #expect(refused.errors.contains { $0.contains("$SLUICE_BEARER_TOKEN") })
    }
  }

  @Test("--version prints the newest version of the changelog, and the commit")
  func version() throws {
    let source = #filePath.split(separator: "/").dropLast(3).map { "/" + $0 }.joined()
    let changes = String(decoding: try fileContents(source + "/CHANGELOG.md"), as: UTF8.self).split(separator: "\n")
    let newest = try #require(changes.first { $0.hasPrefix("## ") }).dropFirst(3).prefix { $0 != " " }
    let process = try sluice(["--version"])
    #expect(try process.wait() == 0)
    // Outside a repository, for example in an unpacked archive, the commit is unknown.
    let line = try #require(process.output.first)
    #expect(
      try line == "sluice \(newest)" || #/sluice \S+ \(commit [0-9a-f]{12}\)/#.wholeMatch(in: line) != nil, "\(line)")
    #expect(line.split(separator: " ")[1] == newest)
  }

  @Test(
    "help and version go to standard output, with 0",
    arguments: [
      ["--help"], ["help"], ["help", "connection"], ["help", "resuming"], ["help", "uploads"], ["help", "mic"],
      ["help", "put"], ["help", "report"], ["help", "exit-codes"], ["serve", "-h"], ["--version"],
    ])
  func help(_ arguments: [String]) throws {
    let process = try sluice(arguments)
    #expect(try process.wait() == 0)
    #expect(!process.output.isEmpty && process.errors.isEmpty)
    #expect(process.output.allSatisfy { $0.count <= 80 })
  }

  @Test("a full disk is an error, even if only the output was requested")
  func fullOutput() throws {
    for arguments in ["--version", "--help", "help exit-codes", "help man sluice", "help completions bash"] {
      let process = try TestProcess("sh", ["-c", "\"$0\" \(arguments) > /dev/full", sluicePath()])
      #expect(try process.wait() == 74, "\(arguments)")
      #expect(process.errors.contains { $0.contains("cannot write to standard output: No space left") })
    }
  }

  @Test("a full disk for --progress json is an error that is always reported, with 74")
  func fullProgress() throws {
    let server = try StreamServer()
    let (directory, url) = (try TemporaryDirectory(), server.url)
    let file = try directory.write("file", "text")
    for arguments in ["put '\(file)' \(url)/f", "pipe \(url)/p < '\(file)'", "heartbeat \(url)/h --duration 50ms"] {
      // A single run could report it by chance.
      for _ in 0..<5 {
        let process = try TestProcess(
          "sh", ["-c", "\"$0\" \(arguments) --progress json > /dev/full", sluicePath()],
          environment: ["http_proxy": nil, "all_proxy": nil])
        #expect(try process.wait() == 74, "\(arguments)")
        #expect(
          process.errors.contains { $0.contains("cannot write to standard output: No space left") }, "\(arguments)")
      }
    }
  }
}
