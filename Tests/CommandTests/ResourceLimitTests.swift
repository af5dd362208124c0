// Runs a command that may open only a few descriptors, or write only small files.

import CommandTesting
import Glibc
import NetworkTesting
import Testing

@Suite("A command under a limit of descriptors or of file sizes")
struct ResourceLimitTests {
  /// Starts the command with a limit of ulimit(1). Only its three standard descriptors are open. A child also inherits
  /// those that libcurl has open for other tests.
  private func start(_ option: String, _ limit: Int, _ arguments: [String]) throws -> TestProcess {
    let script = """
      for d in /proc/self/fd/*; do d=${d##*/}; [ "$d" -le 2 ] || eval "exec $d>&-"; done
      ulimit "$1" "$2" && shift 2 && exec "$@"
      """
    return try TestProcess(
      "bash", ["-c", script, "bash", option, "\(limit)", sluicePath()] + arguments, environment: ["https_proxy": nil])
  }

  private static let hasty = ["http://127.0.0.1:1/x", "--resumable", "never", "--give-up", "1ms"]

  @Test(
    "too few descriptors to begin: 74, with the limit to raise", arguments: [["put", "/proc/self/exe"], ["pipe"]],
    [4, 5, 6, 7])
  func descriptors(command: [String], limit: Int) throws {
    let process = try start("-n", limit, command + Self.hasty)
    let code = try process.wait()
    #expect(code == 74, "\(process.errors)")
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("Too many open files") && message.contains("ulimit -n"), "\(message)")
    #expect(!message.contains("Name a file"), "\(message)")
  }

  @Test("no number of descriptors makes the file of certificate authorities a wrong argument")
  func authorities() throws {
    let directory = try TemporaryDirectory()
    try TestCertificates.make(in: directory)
    let server = try ScriptedServer { _, _ in }
    let command = [
      "heartbeat", "https://127.0.0.1:\(server.port)/x", "--resumable", "never", "--give-up", "1ms", "--ca-file",
      "\(directory.path)/ca.pem",
    ]
    // From too few to begin to enough for a connection, which the server closes.
    let processes = try (4...24).map { try start("-n", $0, command) }
    let codes = try processes.map { try $0.wait() }
    #expect(codes.first == 74 && codes.last == 69, "\(codes)")
    #expect(!codes.contains(64), "\(codes): \(processes.flatMap(\.errors))")
  }

  /// A program that lacks a descriptor for these of its sockets, such as `:when=1..6`. Nothing for all.
  private static func withoutSockets(_ numbers: String = "") -> [String] {
    [
      "strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=socket", "-e",
      "inject=socket:error=EMFILE\(numbers)",
    ]
  }

  enum Client: CaseIterable { case givesUp, finishes, downloads }

  @Test("too few descriptors for a connection: 74, with the limit to raise", arguments: Client.allCases)
  func sockets(_ client: Client) throws {
    let directory = try TemporaryDirectory()
    let arguments =
      switch client {
      case .givesUp: ["heartbeat"] + Self.hasty
      case .finishes: ["heartbeat", "http://127.0.0.1:1/x", "--finish-timeout", "1s"]
      case .downloads: ["get", "http://127.0.0.1:1/x", "--give-up", "1ms", "-o", "\(directory.path)/x"]
      }
    let command = Self.withoutSockets() + [try sluicePath()] + arguments
    let process = try TestProcess(command[0], Array(command.dropFirst()), environment: ["http_proxy": nil])
    if client == .finishes {
      try process.lines.first("the outage") { $0.text.contains("Too many open files") }
      process.signal(SIGTERM)
    }
    #expect(try process.wait() == 74)
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("Too many open files") && message.contains("ulimit -n"), "\(message)")
    #expect(!message.contains("could not be reached"), "\(message)")
  }

  @Test("a stream continues when there is a descriptor for its connection")
  func socketsLater() throws {
    let stored = try TemporaryDirectory()
    let server = try ServeProcess(stored.path)
    let stream = try SluiceProcess(
      ["heartbeat", "http://\(server.address)/a.txt", "--interval", "1ms", "--progress", "json"],
      prefix: Self.withoutSockets(":when=1..6"))
    try stream.event("outage") { $0.text("cause")?.contains("Too many open files") == true }
    try stream.event("acknowledged") { $0.integer("offset") ?? 0 > 100 }
    stream.signal(SIGTERM)
    let code = try stream.exitCode()
    #expect(code == 0, "\(stream.output.text)")
  }

  @Test("a buffer larger than the largest file: 74, with the limit and the option")
  func buffer() throws {
    // bash counts in units of 1,024 bytes.
    let process = try start("-f", 1024, ["pipe"] + Self.hasty)
    #expect(try process.wait() == 74)
    let message = process.errors.joined(separator: "\n")
    #expect(message.contains("ulimit -f") && message.contains("--buffer"), "\(message)")
  }
}
