// Tests each long-running subcommand with outputs that accept no byte. It must not wait for a reader that never comes.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing
import UploadServer

@Suite("A command whose output is never read")
struct BlockedOutputTests {
  enum Output: CaseIterable {
    /// Ctrl-S on a terminal.
    case stoppedTerminal
    /// A terminal whose other end hangs, as over ssh.
    case hungTerminal
    case fullPipe
    /// The reader has closed its end, so each write fails.
    case closedPipe
  }

  /// The destination of both outputs while this object exists.
  private final class Blocked {
    let descriptor: Int32
    private let terminal: Terminal?
    private let pipe: TestPipe?

    init(_ output: Output) throws {
      switch output {
      case .stoppedTerminal, .hungTerminal:
        let terminal = try Terminal()
        if output == .stoppedTerminal { try terminal.stopOutput() } else { terminal.fill() }
        (self.terminal, pipe, descriptor) = (terminal, nil, terminal.inner)
      case .fullPipe, .closedPipe:
        let pipe = try TestPipe()
        if output == .fullPipe { fillUp(pipe.writing) } else { pipe.closeReading() }
        (terminal, self.pipe, descriptor) = (nil, pipe, pipe.writing)
      }
    }
  }

  private static let progress = ["bar", "json"]

  private func start(_ arguments: [String], _ output: Blocked, input: Int32? = nil) throws -> SpawnedCommand {
    let null = open("/dev/null", O_RDONLY | O_CLOEXEC)
    defer { close(null) }
    return try SpawnedCommand(arguments, [input ?? null, output.descriptor, output.descriptor])
  }

  /// Waits until the server has stored this many bytes of its only stream.
  private func waitUntilStored(_ count: Int, _ server: StreamServer) throws {
    try eventually("the stored stream") {
      server.directory.names.contains { (try? server.directory.contents($0).count) ?? 0 >= count }
    }
  }

  @Test("heartbeat continues, and ends on a signal", arguments: Output.allCases, progress)
  func heartbeat(_ output: Output, _ progress: String) throws {
    let server = try StreamServer()
    let blocked = try Blocked(output)
    let command = try start(
      ["heartbeat", "\(server.url)/h", "--interval", "5ms", "--progress", progress], blocked)
    try waitUntilStored(2_000, server)
    command.signal(SIGTERM)
    #expect(try command.wait() == 0)
    try server.events.first("the stream's end") { $0.kind == .ended }
  }

  @Test("mic loses nothing, and ends on a signal", arguments: Output.allCases, progress)
  func mic(_ output: Output, _ progress: String) throws {
    let server = try StreamServer()
    let microphone = TestMicrophone()
    let blocked = try Blocked(output)
    let command = try start(
      ["mic", "\(server.url)/m", "--device", microphone.name(), "--progress", progress], blocked)
    try waitUntilStored(50_000, server)
    command.signal(SIGTERM)
    #expect(try command.wait() == 0)
    #expect(microphone.framesLost == 0)
    try server.events.first("the stream's end") { $0.kind == .ended }
  }

  @Test("pipe and put deliver everything", arguments: Output.allCases, progress)
  func pipeAndPut(_ output: Output, _ progress: String) throws {
    let server = try StreamServer()
    let blocked = try Blocked(output)
    let pattern = OffsetPattern()
    let bytes = pattern[0..<1_000_000]
    let sources = try TemporaryDirectory()
    let file = try sources.write("file", bytes)
    let input = open(file, O_RDONLY | O_CLOEXEC)
    defer { close(input) }
    let pipe = try start(
      ["pipe", "\(server.url)/p", "--stream-id", "p", "--progress", progress], blocked, input: input)
    let put = try start(["put", file, "\(server.url)/put", "--progress", progress], blocked)
    #expect(try pipe.wait() == 0)
    #expect(try put.wait() == 0)
    #expect(try server.directory.contents("p-p.bin") == bytes)
    let name = try #require(server.directory.names.first { $0.hasPrefix("put") })
    #expect(try server.directory.contents(name) == bytes)
  }

  @Test("load ends, and reports it", arguments: Output.allCases, progress)
  func load(_ output: Output, _ progress: String) throws {
    let server = try StreamServer { $0.storage = .discarding }
    let blocked = try Blocked(output)
    let directory = try TemporaryDirectory()
    let report = "\(directory.path)/report.json"
    let command = try start(
      ["load", server.url, "-n", "2", "-d", "600ms", "--progress", progress, "--json", report], blocked)
    #expect(try command.wait() == 0)
    #expect(access(report, R_OK) == 0)
  }

  @Test("serve stores streams, and ends on a signal", arguments: Output.allCases)
  func serve(_ output: Output) throws {
    let directory = try TemporaryDirectory()
    let blocked = try Blocked(output)
    let command = try start(
      ["serve", "--listen", "unix:\(directory.path)/socket", "--directory", directory.path], blocked)
    try eventually("the server's socket") { access("\(directory.path)/socket", F_OK) == 0 }
    for number in 0..<3 {
      let client = try sluice(
        [
          "heartbeat", "http://localhost/h", "--unix-socket", "\(directory.path)/socket", "--stream-id", "\(number)",
          "--interval", "10ms", "--duration", "30ms", "--retry-ceiling", "20ms",
        ])
      #expect(try client.wait() == 0)
      #expect(access("\(directory.path)/h-\(number).txt", R_OK) == 0)
    }
    command.signal(SIGTERM)
    #expect(try command.wait() == 0)
  }

  @Test("verify exits with 130 on a signal while its result waits for a reader", arguments: [SIGTERM, SIGINT])
  func verify(_ signal: Int32) throws {
    let directory = try TemporaryDirectory()
    try directory.write("a.wav", "no sidecar")
    let null = open("/dev/null", O_RDONLY | O_CLOEXEC)
    defer { close(null) }
    let (findings, result) = (try TestPipe(), try TestPipe())
    fillUp(result.writing)
    let command = try SpawnedCommand(["verify", directory.path], [null, findings.writing, result.writing])
    _ = try findings.read { $0.last == UInt8(ascii: "\n") }
    // Only the result remains. The process sleeps when it waits for the reader.
    try eventually("a waiting process") {
      String(decoding: try fileContents("/proc/\(command.pid)/stat"), as: UTF8.self).contains(") S ")
    }
    command.signal(signal)
    #expect(try command.wait() == 130)
  }

  @Test("SIGQUIT after the first signal ends a command at once")
  func secondSignal() throws {
    let requests = try EventLog<Int>()
    let server = try ScriptedServer { connection, number in
      _ = try connection.head()
      requests.append(number)
      _ = connection.waitForEnd()
    }
    let blocked = try Blocked(.fullPipe)
    let command = try start(["heartbeat", server.url, "--resumable", "never"], blocked)
    try requests.first("a request") { $0 == 0 }
    command.signal(SIGTERM)
    command.signal(SIGQUIT)
    // Before the server stops waiting.
    #expect(try command.wait(limit: .seconds(25)) == 130)
  }

  @Test("a returning reader receives the waiting lines in order, and the number of dropped lines")
  func backAgain() throws {
    let server = try StreamServer { $0.storage = .discarding }
    let directory = try TemporaryDirectory()
    let pipe = try TestPipe()
    fillUp(pipe.writing)
    let null = open("/dev/null", O_RDWR | O_CLOEXEC)
    defer { close(null) }
    let command = try SpawnedCommand(
      [
        "heartbeat", server.url, "--interval", "1ms", "--progress", "json", "--roll-over-after", "1ms", "--metrics",
        "unix:\(directory.path)/figures",
      ], [null, pipe.writing, null])
    try eventually("a line that is dropped") { try droppedLineCount("\(directory.path)/figures") > 0 }
    let mark = UInt8(ascii: "\n")
    // First the bytes that filled the pipe, then the lines that waited.
    _ = try pipe.read { $0.count { $0 == mark } > 100 }
    command.signal(SIGTERM)
    let rest = try pipe.read { $0.suffix(1000).reversed().starts(with: "\n}".utf8) && isLast($0) }
    #expect(try command.wait() == 0)
    // The first of the remaining lines may be incomplete.
    let lines = String(decoding: rest, as: UTF8.self).split(separator: "\n").dropFirst()
    #expect(lines.allSatisfy { $0.hasPrefix("{") && $0.hasSuffix("}") })
  }

  private func isLast(_ bytes: [UInt8]) -> Bool {
    String(decoding: bytes.suffix(1000), as: UTF8.self).split(separator: "\n").last?.contains(#""event":"ended""#)
      == true
  }
}
