// Tests what the command prints while its server is unreachable, answers with an error, or does not accept a token.

import EventLoops
import Glibc
import NetworkTesting
import Testing
import UploadServer

@testable import sluice

@Suite("Messages about outages and refusals", .serialized)
struct OutageLinesTests {
  private func line(_ outage: inout OutageLines, _ second: Int64, _ reason: String?, isNew: Bool = false) -> String? {
    outage.line(
      "failed", reason: reason, retryDelay: .seconds(2), isNew: isNew,
      now: MonotonicInstant(nanoseconds: second * 1_000_000_000))
  }

  @Test("an outage causes five lines, then one per minute, with each reason once, and the hint once")
  func lines() {
    var outage = OutageLines(isLimited: false)
    #expect(line(&outage, 0, "full", isNew: true) == #"failed: "full"; next attempt in 2.00 s"#)
    for second in 1...3 { #expect(line(&outage, Int64(second), "full") == "failed; next attempt in 2.00 s") }
    #expect(line(&outage, 4, nil)?.hasSuffix("use --give-up T") == true)
    #expect(line(&outage, 5, "full") == nil && line(&outage, 63, nil) == nil)
    #expect(line(&outage, 64, nil) == "failed; next attempt in 2.00 s")
    #expect(
      line(&outage, 65, "moved") == #"failed: "moved"; next attempt in 2.00 s"#, "a new reason is printed at once")
    #expect(line(&outage, 66, "moved") == nil)
    // The next outage prints them again, without the hint.
    #expect(line(&outage, 67, "moved", isNew: true) == #"failed: "moved"; next attempt in 2.00 s"#)
    for second in 68...71 { #expect(line(&outage, Int64(second), "moved") == "failed; next attempt in 2.00 s") }
    var limited = OutageLines(isLimited: true)
    for second in 0...9 { #expect(line(&limited, Int64(second), nil)?.contains("--give-up") != true) }
  }

  /// Runs the command, with an empty standard input, until it ends.
  private func run(
    _ arguments: [String], code: Int32, environment: [String: String?] = [:]
  ) throws -> [String] {
    let process = try sluice(arguments, input: .pipe, environment: environment)
    process.endInput()
    #expect(try process.wait() == code, "\(arguments)")
    return process.errors
  }

  private func server(
    _ status: String, _ fields: [String] = ["Content-Type: text/plain"], body: String
  ) throws -> ScriptedServer {
    try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond(status, fields + ["Connection: close"], body: body)
      _ = connection.readToEnd()
    }
  }

  @Test("the text of a 503 is printed once", arguments: ["pipe", "put", "get"])
  func reason(_ subcommand: String) throws {
    let directory = try TemporaryDirectory()
    let server = try server("503 Service Unavailable", body: "the disk is full\u{1B}[2J\nmore\n")
    let operands: [String] =
      switch subcommand {
      case "pipe": [server.url, "--resumable", "never"]
      case "put": [try directory.write("data", "some"), "\(server.url)/x"]
      default: ["\(server.url)/x", "--output", "\(directory.path)/there"]
      }
    let errors = try run(
      [subcommand] + operands + ["--give-up", "300ms", "--retry-ceiling", "20ms"], code: 69)
    #expect(errors.count { $0.contains("answered 503: \"the disk is full [2J more\"") } == 1, "\(errors)")
    #expect(errors.count { $0.contains("answered 503; next attempt") } >= 1, "\(errors)")
  }

  @Test("the JSON line of an outage has the server's text")
  func json() throws {
    let server = try server("503 Service Unavailable", body: "the disk is full\n")
    let process = try sluice(
      ["pipe", server.url, "--resumable", "never", "--give-up", "1ms", "--progress", "json"], input: .pipe)
    process.endInput()
    _ = try process.wait()
    #expect(process.output.contains { $0.contains(#""reason":"the disk is full""#) }, "\(process.output)")
  }

  @Test("the error names a refused token, and requests a missing one", arguments: ["pipe", "get"])
  func token(_ subcommand: String) throws {
    let directory = try TemporaryDirectory()
    let server = try server("401 Unauthorized", body: "Unknown TOKEN.\n")
    let file = try directory.write("token", "secret")
    let operands =
      [server.url + "/x"] + (subcommand == "get" ? ["--output", "\(directory.path)/there"] : ["--resumable", "never"])
    let missing = try run([subcommand] + operands, code: 77)
    let error = try #require(missing.first { $0.hasPrefix("sluice: ") })
    #expect(error.contains("requires valid credentials (401): Unknown TOKEN. Use --bearer-token-file"), "\(error)")
    let wrong = try run([subcommand] + operands + ["--bearer-token-file", file], code: 77)
    let other = try #require(wrong.first { $0.hasPrefix("sluice: ") })
    #expect(other.contains("Unknown TOKEN. The server does not accept the token in \(file). Check"), "\(other)")
    let variable = try run([subcommand] + operands, code: 77, environment: ["SLUICE_BEARER_TOKEN": "secret"])
    #expect(variable.contains { $0.contains("the token in $SLUICE_BEARER_TOKEN. Check") }, "\(variable)")
  }

  @Test("the error for https to a port without TLS states this")
  func clearText() throws {
    let server = try StreamServer()
    let url = server.url.replacing("http://", with: "https://")
    let errors = try run(["pipe", "\(url)/x", "--give-up", "200ms", "--retry-ceiling", "20ms"], code: 69)
    #expect(
      errors.contains { $0.contains("does not speak TLS on this port") && $0.contains("Try http://, or the port") },
      "\(errors)")
  }

  @Test("the text of a handler's response is printed, without terminal control sequences and direction changes")
  func response() throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", "some")
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      var count = 0
      while count < 4, let bytes = try connection.receive() { count += bytes.count }
      try connection.respond(
        "201 Created", ["Content-Type: text/plain; charset=utf-8"],
        body: "1\u{1B}[2J\r\n\u{202E}2\u{2066}\n3\u{200F}\u{61C}\n4\n5\n6\n")
    }
    let put = ["put", file, "\(server.url)/x", "--resumable", "never"]
    let errors = try run(put, code: 0)
    #expect(errors.suffix(5) == ["1[2J", "2", "3", "4", "5"].map { "the server: \($0)" }, "\(errors)")
    let process = try sluice(put + ["--progress", "json"])
    #expect(try process.wait() == 0)
    let words = #""response":"1[2J\u000a2\u000a3\u000a4\u000a5""#
    #expect(process.output.last?.contains(words) == true, "\(process.output)")
  }

  @Test("get suggests --allow-download if the server does not allow downloads, and else prints the path")
  func downloads() throws {
    let directory = try TemporaryDirectory()
    let receiving = try StreamServer()
    let refused = try run(["get", "\(receiving.url)/x.bin", "--output", "\(directory.path)/there"], code: 76)
    #expect(
      refused.contains { $0.hasSuffix("It does not offer downloads. Start sluice serve with --allow-download.") },
      "\(refused)")
    let handing = try StreamServer { $0.allowsDownloads = true }
    let missing = try run(["get", "\(handing.url)/x.bin", "--output", "\(directory.path)/there"], code: 76)
    #expect(missing.contains { $0.hasSuffix("Check the path.") }, "\(missing)")
  }
}
