// A server that moves to another address, in a mount namespace with its own /etc/hosts.

import CommandTesting
import NetworkTesting
import TestRigs
import Testing

@Suite("A server that moves to another address while it cannot be reached", .enabled(if: Surroundings.mayMount))
struct MovedServerTests {
  /// An /etc/hosts with one name, whose first address has no server.
  private struct Hosts {
    private let scratch = ScratchDirectory()

    init() { moves(to: ServeProcess.freshHost()) }

    /// In place, because the namespace has this file and no other of its name.
    func moves(to address: String) { scratch.write("\(address) moving.example\n", to: "hosts") }

    /// Runs a program that uses this file.
    var prefix: [String] {
      let script = "hosts=$1; shift; mount --bind \"$hosts\" /etc/hosts && exec \"$@\""
      return ["unshare", "--mount", "sh", "-c", script, "sh", scratch.file("hosts")]
    }
  }

  /// libcurl uses an address for a minute.
  private let limit = Duration.seconds(30)

  private func waitForFailures(_ client: SluiceProcess) throws {
    try client.output.wait(for: "failed attempts") { events, _ in
      SluiceProcess.failures(in: events).count >= 3 ? true : nil
    }
  }

  @Test("a stream finds it before the former address would be forgotten")
  func stream() throws {
    let scratch = ScratchDirectory()
    let server = try ServeProcess(scratch.path)
    let parts = server.address.split(separator: ":")
    let hosts = Hosts()
    let client = try StreamProcess(
      "heartbeat", "http://moving.example:\(parts[1])/pulse", more: ["--interval", "100ms", "--retry-ceiling", "50ms"],
      prefix: hosts.prefix)
    try waitForFailures(client)
    hosts.moves(to: String(parts[0]))
    try client.event("connected", limit: limit)
    #expect(try client.finish().integer("lost") == 0)
  }

  @Test("a download finds it, too")
  func download() throws {
    let scratch = ScratchDirectory()
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("200 OK", body: "a film")
    }
    let hosts = Hosts()
    let client = try SluiceProcess(
      [
        "get", "http://moving.example:\(server.port)/film", "-o", scratch.file("film"), "--progress", "json",
        "--retry-ceiling", "50ms",
      ], prefix: hosts.prefix)
    try waitForFailures(client)
    hosts.moves(to: "127.0.0.1")
    #expect(try client.exitCode(limit: limit) == 0)
    #expect(scratch.read("film") == Array("a film".utf8))
    server.close()
  }
}
