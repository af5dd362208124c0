// Resumable uploads through nginx and Caddy, which buffer, drop interim responses, answer in a server's place, and are
// killed.

import ChaosTesting
import CommandTesting
import NetworkTesting
import TestRigs
import Testing

@Suite(
  "Through real front ends",
  .enabled(if: FrontEnd.isInstalled, "nginx (package nginx-light) and caddy have to be installed"))
struct FrontEndTests {
  /// The size of one append. Everything before it is acknowledged, so nothing else is ever repeated.
  private static let appendSize = 256 << 10

  @Test(
    "connection resets, and kills of the front end and the server: the stream is stored once and completely, and only unacknowledged data is sent again",
    arguments: Route.all)
  func stream(route: Route) throws {
    let run = try FrontEndRun(
      route,
      faults: [
        .reset(after: 200_000), .frontEndKilled(after: 150_000), .reset(after: 250_000), .serverKilled(after: 200_000),
      ])
    let pattern = StampedPattern(seed: 20_261_121)
    let input = try PacedInput("\(run.directory.path)/input", pattern, bytesPerSecond: 400_000)
    try input.start()
    let client = try StreamProcess(
      "pipe", "\(run.url)/stream.bin",
      more: run.clientOptions + [
        "--resumable", "always", "--roll-over-after", "200ms", "--roll-over-bytes", "\(Self.appendSize)",
      ], input: input.path)
    try client.event("connecting")
    input.isBeingRead()
    try run.doFaults(to: client)
    // The last of them is over when the stream continues for several appends.
    let before = client.events("acknowledged").count
    try client.output.wait(for: "five more acknowledgements") { events, _ in
      events.count { $0.event == "acknowledged" } >= before + 5 ? () : nil
    }
    let length = input.finish()
    let summary = try client.ended(code: 0)

    #expect(summary.integer("captured") == Int(length))
    #expect(summary.integer("acknowledged") == Int(length))
    #expect(summary.integer("lost") == 0)
    let file = try run.storedFile()
    #expect(try pattern.firstDifference(file: file, count: length) == nil)
    #expect(try StampedPattern.digest(file: file) == pattern.digest(count: length))
    #expect(client.events("upload-created").count == 1)
    // A front end may not notice a server that is briefly down. A reset between two requests is not a failure.
    #expect(client.newConnectionCount >= 4, "\(run.story(of: client))")
    #expect(summary.integer("resent") ?? .max <= 4 * Self.appendSize)
    #expect(client.events("interim-response").isEmpty)
  }

  @Test("a file through real front ends arrives in the same way", arguments: Route.all)
  func file(route: Route) throws {
    let run = try FrontEndRun(
      route,
      faults: [
        .reset(after: 1_500_000), .frontEndKilled(after: 1_200_000), .reset(after: 1_700_000),
        .serverKilled(after: 1_300_000),
      ])
    let bytes = StampedPattern(seed: 20_261_122).bytes(10_000_001)
    let path = try run.directory.write("file.bin", bytes)
    let client = try StreamProcess(
      "put", path, more: ["\(run.url)/"] + run.clientOptions + ["--resumable", "always", "--roll-over-bytes", "1MiB"])
    try run.doFaults(to: client)
    let summary = try client.ended(code: 0)

    #expect(summary.integer("acknowledged") == bytes.count)
    #expect(try StampedPattern.digest(file: run.storedFile()) == StampedPattern.digest(file: path))
    // A front end may not notice a server that is briefly down. A reset between two requests is not a failure.
    #expect(client.newConnectionCount >= 4, "\(run.story(of: client))")
    #expect(summary.integer("resent") ?? .max <= 4 << 20)
    // The upload is requested before the first byte, so a dropped 104 costs nothing.
    #expect(client.events("upload-created").count == 1)
  }

  @Test(
    "under a path of a front end: the server knows the prefix of its URLs, or the client keeps its host",
    arguments: FrontEnd.Program.allCases, [false, true])
  func location(program: FrontEnd.Program, keepsHost: Bool) throws {
    let route = Route(program: program, isHTTP1: false, changes: .init(hasPrefix: true))
    let run = try FrontEndRun(
      route, serverOptions: ["--public-url", keepsHost ? "http://backend.invalid:1/ingest" : "/ingest"])
    let bytes = Array("not all at once".utf8)
    let path = try run.directory.write("file.txt", bytes)
    // Careful creation, because this test is about the upload's URL.
    let client = try StreamProcess(
      "pipe", "\(run.url)/ingest/file.txt",
      more: run.clientOptions + ["--resumable", "always"] + (keepsHost ? ["--location", "keep"] : []), input: path)
    let summary = try client.ended(code: 0)
    #expect(summary.integer("acknowledged") == bytes.count)
    #expect(summary.integer("outages") == 0)
    #expect(try fileContents(run.storedFile()) == bytes)
  }

  @Test(
    "nginx with default settings and HTTP/1.0 behind it: the server sends no interim response, and files and streams arrive"
  )
  func http10() throws {
    let route = Route(
      program: .nginx, isHTTP1: false,
      changes: .init(buffersRequests: true, speaksHTTP10: true, closesConnections: true))
    // The server may send interim responses here.
    let run = try FrontEndRun(
      route, faults: [.reset(after: 600_000)], serverOptions: ["--proxied-interims", "all"], mayInterim: true)
    let bytes = StampedPattern(seed: 20_261_123).bytes(2_000_001)
    let path = try run.directory.write("file.bin", bytes)
    let client = try StreamProcess(
      "put", path, more: ["\(run.url)/"] + run.clientOptions + ["--resumable", "always", "--roll-over-bytes", "256KiB"])
    #expect(try client.ended(code: 0).integer("acknowledged") == bytes.count)
    #expect(client.events("interim-response").isEmpty)
    #expect(try StampedPattern.digest(file: run.storedFile()) == StampedPattern.digest(file: path))
  }

  @Test(
    "a server that sends interim responses to nginx: the client drops HTTP/2, and loses nothing",
    arguments: [false, true])
  func http2GivenUp(closesConnections: Bool) throws {
    let route = Route(program: .nginx, isHTTP1: false, changes: .init(closesConnections: closesConnections))
    let run = try FrontEndRun(route, serverOptions: ["--proxied-interims", "all"], mayInterim: true)
    let pattern = StampedPattern(seed: 20_261_124)
    // Slow enough that the server accepts it at once even on a loaded machine. nginx has the response's head by then,
    // and after a single delayed write it never sends the rest of the request.
    let input = try PacedInput("\(run.directory.path)/input", pattern, bytesPerSecond: 40_000)
    try input.start()
    let client = try StreamProcess(
      "pipe", "\(run.directURL)/stream.bin",
      more: run.clientOptions + ["--resumable", "always", "--roll-over-after", "200ms"],
      input: input.path)
    try client.event("connecting")
    input.isBeingRead()
    try client.output.wait(for: "four acknowledgements") { events, _ in
      events.count { $0.event == "acknowledged" } >= 4 ? () : nil
    }
    let length = input.finish()
    let summary = try client.ended(code: 0)
    // The creation, once.
    #expect(client.events("outage").count == 1)
    #expect(client.events("outage").first?.text("cause")?.contains("trying HTTP/1.1") == true)
    #expect(summary.integer("acknowledged") == Int(length))
    #expect(summary.integer("resent") == 0)
    #expect(try StampedPattern.digest(file: run.storedFile()) == pattern.digest(count: length))
  }

  @Test(
    "a server that sends Caddy more interim responses than it supports: after two failures, the stream avoids them")
  func interimLimit() throws {
    let run = try FrontEndRun(
      Route(program: .caddy, isHTTP1: false), serverOptions: ["--proxied-interims", "all"], mayInterim: true)
    let pattern = StampedPattern(seed: 20_261_125)
    let input = try PacedInput("\(run.directory.path)/input", pattern, bytesPerSecond: 1_000_000)
    try input.start()
    let client = try StreamProcess(
      "pipe", "\(run.url)/stream.bin", more: run.clientOptions + ["--resumable", "always"], input: input.path)
    try client.event("connecting")
    input.isBeingRead()
    try client.output.wait(for: "two outages") { events, _ in SluiceProcess.failures(in: events).count >= 2 ? () : nil
    }
    // Five times as many as a request can otherwise have.
    let before = client.events("interim-response").count
    try client.output.wait(for: "25 interim responses") { events, _ in
      events.count { $0.event == "interim-response" } >= before + 25 ? () : nil
    }
    let length = input.finish()
    let summary = try client.ended(code: 0)
    #expect(client.failures.count == 2)
    #expect(summary.integer("acknowledged") == Int(length))
    #expect(try StampedPattern.digest(file: run.storedFile()) == pattern.digest(count: length))
  }

  @Test(
    "a file through that front end: it fails repeatedly, and arrives with few repeated bytes and without long pauses")
  func interimLimitOfFile() throws {
    let run = try FrontEndRun(
      Route(program: .caddy, isHTTP1: false), serverOptions: ["--proxied-interims", "all"], mayInterim: true)
    let path = try run.directory.write("file.bin", StampedPattern(seed: 20_261_126).bytes(40_000_000))
    // Pauses after answers could be that long, unlike those after broken connections.
    let client = try StreamProcess("put", path, more: ["\(run.url)/", "--ca-file", run.certificate])
    #expect(try client.ended(code: 0).integer("acknowledged") == 40_000_000)
    #expect(client.failures.count >= 2)
    #expect(client.failures.allSatisfy { $0.thousandths("retry_seconds") ?? 0 <= 25 })
    #expect(try StampedPattern.digest(file: run.storedFile()) == StampedPattern.digest(file: path))
  }
}
