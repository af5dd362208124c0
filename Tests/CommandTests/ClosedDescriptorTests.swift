// Starts each subcommand without some of its three standard descriptors. No file that it opens may get their numbers.

import AudioCapture
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs
import Testing
import UploadServer

@Suite("A command without its standard descriptors", .serialized)
struct ClosedDescriptorTests {
  /// Which of the three descriptors are closed.
  private static let combinations = (0..<8).map { bits in (0..<3).map { bits >> $0 & 1 == 1 } }

  /// Starts the command once for each combination. Each run is named after the number of its combination.
  private func forEachCombination(
    input: String = "/dev/null", _ arguments: (Int) -> [String],
    check: (_ run: Int, _ closed: [Bool], _ command: SpawnedCommand) throws -> Void
  ) throws {
    let sink = open("/dev/null", O_WRONLY | O_CLOEXEC)
    defer { close(sink) }
    let commands = try Self.combinations.enumerated().map { run, closed in
      // Each run opens the file itself because a shared descriptor would share its offset.
      let source = open(input, O_RDONLY | O_CLOEXEC)
      defer { close(source) }
      let descriptors: [Int32?] = [closed[0] ? nil : source, closed[1] ? nil : sink, closed[2] ? nil : sink]
      return try SpawnedCommand(arguments(run), descriptors)
    }
    for (run, command) in commands.enumerated() { try check(run, Self.combinations[run], command) }
  }

  @Test("pipe streams only its input, and fails without an input")
  func pipe() throws {
    let server = try StreamServer()
    let pattern = OffsetPattern()
    let bytes = pattern[0..<300_000]
    let file = try server.directory.write("input", bytes)
    try forEachCombination(input: file) {
      ["pipe", "\(server.url)/p", "--stream-id", "\($0)", "--progress", "json"]
    } check: { run, closed, command throws in
      #expect(try command.wait() == (closed[0] ? 74 : 0), "\(closed)")
      if !closed[0] { #expect(try server.directory.contents("p-\(run).bin") == bytes, "\(closed)") }
    }
  }

  @Test("pipe with a spool streams only its input, and leaves nothing in the spool")
  func spool() throws {
    let server = try StreamServer()
    let spool = try TemporaryDirectory()
    let pattern = OffsetPattern()
    let bytes = pattern[0..<300_000]
    let file = try server.directory.write("input", bytes)
    try forEachCombination(input: file) {
      [
        "pipe", "\(server.url)/p\($0)", "--spool", "\(spool.path)/\($0)", "--spool-limit", "64MiB", "--progress",
        "json",
      ]
    } check: { run, closed, command throws in
      #expect(try command.wait() == (closed[0] ? 74 : 0), "\(closed)")
      guard !closed[0] else { return }
      let stored = try fileNames(in: server.directory.path).filter { $0.hasPrefix("p\(run)-") && $0.hasSuffix(".bin") }
      #expect(try stored.map { try server.directory.contents($0) } == [bytes], "\(closed)")
      for folder in try fileNames(in: "\(spool.path)/\(run)") {
        #expect(try fileNames(in: "\(spool.path)/\(run)/\(folder)") == ["lock"], "\(closed)")
      }
    }
  }

  @Test("heartbeat sends only its lines", arguments: ["json", "bar", "none"])
  func heartbeat(_ progress: String) throws {
    let server = try StreamServer()
    try forEachCombination {
      [
        "heartbeat", "\(server.url)/h", "--stream-id", "\($0)", "--interval", "10ms", "--duration", "200ms",
        "--progress", progress,
      ]
    } check: { run, closed, command throws in
      #expect(try command.wait() == 0, "\(closed)")
      let text = String(decoding: try server.directory.contents("h-\(run).txt"), as: UTF8.self)
      let lines = text.split(separator: "\r\n")
      #expect(!lines.isEmpty && lines.allSatisfy { $0.hasPrefix("*** 20") && $0.hasSuffix(" +0000") }, "\(closed)")
    }
  }

  @Test("put uploads only its file")
  func put() throws {
    let server = try StreamServer()
    let pattern = OffsetPattern()
    let bytes = pattern[0..<300_000]
    let sources = try TemporaryDirectory()
    let files = try (0..<8).map { try sources.write("file-\($0)", bytes) }
    try forEachCombination {
      ["put", files[$0], "\(server.url)/put-\($0)"]
    } check: { run, closed, command throws in
      #expect(try command.wait() == 0, "\(closed)")
      let name = try #require(server.directory.names.first { $0.hasPrefix("put-\(run)") }, "\(closed)")
      #expect(try server.directory.contents(name) == bytes, "\(closed)")
    }
  }

  @Test("mic streams only its samples")
  func mic() throws {
    let server = try StreamServer()
    let microphones = (0..<8).map { _ in TestMicrophone() }
    try forEachCombination {
      [
        "mic", "\(server.url)/m", "--stream-id", "\($0)", "--device", microphones[$0].name(), "--duration", "200ms",
        "--container", "raw",
      ]
    } check: { run, closed, command throws in
      #expect(try command.wait() == 0, "\(closed)")
      let name = try #require(server.directory.names.first { $0.hasPrefix("m-\(run)") }, "\(closed)")
      #expect(try server.directory.contents(name).count == 48_000 / 5 * 2, "\(closed)")
    }
  }

  @Test("serve stores the received bytes and ends on a signal")
  func serve() throws {
    let directories = try (0..<8).map { _ in try TemporaryDirectory() }
    try forEachCombination {
      ["serve", "--listen", "unix:\(directories[$0].path)/socket", "--directory", directories[$0].path]
    } check: { run, closed, command throws in
      let directory = directories[run]
      try eventually("the server's socket") { access("\(directory.path)/socket", F_OK) == 0 }
      let client = try sluice(
        [
          "heartbeat", "http://localhost/h", "--unix-socket", "\(directory.path)/socket", "--stream-id", "h",
          "--interval", "10ms", "--duration", "50ms", "--retry-ceiling", "20ms",
        ])
      #expect(try client.wait() == 0, "\(closed)")
      let text = String(decoding: try directory.contents("h-h.txt"), as: UTF8.self)
      #expect(text.hasPrefix("*** 20") && !text.contains("{"), "\(closed)")
      command.signal(SIGTERM)
      #expect(try command.wait() == 0, "\(closed)")
    }
  }

  @Test("load, report and devices end as they do with all three")
  func others() throws {
    let server = try StreamServer { $0.storage = .discarding }
    try forEachCombination { _ in
      ["load", server.url, "-n", "1", "-d", "300ms", "--grace", "5s"]
    } check: { _, closed, command throws in
      #expect(try command.wait() == 0, "\(closed)")
    }
    try forEachCombination { _ in
      ["report", "/nonexistent/report.json"]
    } check: { _, closed, command throws in
      #expect(try command.wait() == 66, "\(closed)")
    }
    let everything = try sluice(["devices"]).wait()
    try forEachCombination { _ in
      ["devices"]
    } check: { _, closed, command throws in
      #expect(try command.wait() == everything, "\(closed)")
    }
  }
}
