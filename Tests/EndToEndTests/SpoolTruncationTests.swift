// Files of a spool that another program truncates while a command uses them, and limits on their size.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import TestRigs
import Testing

@Suite("A spool whose files are truncated or may not be large")
struct SpoolTruncationTests {
  private let directory: TemporaryDirectory
  private let pattern = OffsetPattern(seed: 78)
  private let server: ServeProcess
  private let input: HeldInput

  /// The server's address is known, and nobody answers there.
  init() throws {
    directory = try TemporaryDirectory()
    server = try ServeProcess("\(directory.path)/stored")
    server.kill()
    input = try HeldInput("\(directory.path)/input")
  }

  private var folder: String { "\(directory.path)/spool/cam" }

  private func client(_ more: [String] = ["--spool-limit", "64MiB"], prefix: [String] = []) throws -> StreamProcess {
    try StreamProcess(
      "pipe", "http://\(server.address)/x.bin",
      more: [
        "--spool", "\(directory.path)/spool", "--stream-id", "cam", "--sync-interval", "20ms", "--retry-ceiling",
        "50ms",
      ] + more, prefix: prefix, input: input.path)
  }

  /// Gives bytes to the command, and waits until they are in the file of its stretch. Returns the file's path.
  private func capture(_ bytes: [UInt8], upTo head: UInt64) throws -> String {
    try input.write(bytes)
    var path: String?
    try waitUntil("all of it is in the spool") {
      path = try? SpoolFolder.stretches(in: folder).last
      guard let path, let file = try? SpoolFile.open(path, access: .readOnly) else { return false }
      return file.checkpoint.head == head && file.needsNoMemory
    }
    return try #require(path)
  }

  /// The file in memory of a stretch.
  private func buffer(of file: String) throws -> String {
    let id = try SpoolFile.open(file, access: .readOnly).id.map { String(UInt16($0) + 0x100, radix: 16).dropFirst() }
    return "/dev/shm/sluice-\(id.joined())"
  }

  @Test("a buffer in memory that another program fills with zeros leaves the offsets of the stream as they are")
  func overwrittenBuffer() throws {
    let client = try client()
    let file = try capture(pattern.bytes(100_000, at: 0), upTo: 100_000)
    let path = try buffer(of: file)
    var status = stat()
    #expect(stat(path, &status) == 0)
    let zeros = [UInt8](repeating: 0, count: Int(status.st_size))
    let memory = open(path, O_WRONLY | O_CLOEXEC)
    #expect(write(memory, zeros, zeros.count) == zeros.count && close(memory) == 0)
    #expect(try capture(pattern.bytes(50_000, at: 100_000), upTo: 150_000) == file)
    let again = try ServeProcess("\(directory.path)/stored", address: server.address)
    let last = try client.event("progress") { ($0.integer("acknowledged") ?? 0) >= 150_000 }
    #expect(last.integer("acknowledged") == 150_000 && last.integer("captured") == 150_000)
    client.kill()
    withExtendedLifetime(again) {}
  }

  @Test("a truncated buffer in memory ends the command with 74 and a message, and the spool keeps what it had")
  func buffer() throws {
    let bytes = pattern.bytes(100_000, at: 0)
    let client = try client()
    let file = try capture(bytes, upTo: 100_000)
    let buffer = try buffer(of: file)
    #expect(truncate(buffer, 0) == 0)
    // The next reader of the buffer finds it.
    try input.write(pattern.bytes(1000, at: 100_000))
    #expect(try client.exitCode(limit: .seconds(60)) == 74)
    #expect(client.output.text.contains { $0.contains("was truncated by another program") }, "\(client.output.text)")
    let again = try ServeProcess("\(directory.path)/stored", address: server.address)
    let drain = try SluiceProcess(["spool", "drain", "\(directory.path)/spool"])
    #expect(try drain.exitCode() == 0, "\(drain.output.text)")
    // All that was captured was on the disk.
    let reports = drain.output.text.filter { $0.contains("are lost") || $0.contains("may be missing") }
    #expect(reports.isEmpty, "\(reports)")
    #expect(try stored() == [bytes])
    #expect(access(buffer, F_OK) != 0)
    #expect(try SpoolFolder.stretches(in: folder) == [])
    withExtendedLifetime(again) {}
  }

  @Test("a truncated file of a spool is reported, and keeps what follows for the next run")
  func file() throws {
    let client = try client()
    let file = try capture(pattern.bytes(100_000, at: 0), upTo: 100_000)
    #expect(truncate(file, 0) == 0)
    let rest = pattern.bytes(50_000, at: 100_000)
    #expect(try capture(rest, upTo: 150_000) == file)
    try client.output.wait(for: "the report") { _, lines in lines.first { $0.contains("\" was truncated.") } }
    client.kill()
    let again = try ServeProcess("\(directory.path)/stored", address: server.address)
    let drain = try SluiceProcess(["spool", "drain", "\(directory.path)/spool"])
    #expect(try drain.exitCode() == 4, "\(drain.output.text)")
    #expect(try stored().contains { $0.suffix(rest.count).elementsEqual(rest) })
    withExtendedLifetime(again) {}
  }

  private func stored() throws -> [[UInt8]] {
    let stored = "\(directory.path)/stored"
    let names = try fileNames(in: stored).filter { $0.hasSuffix(".bin") }
    return try names.map { try StoredStream.contents("\(stored)/\($0)") }
  }

  // MARK: RLIMIT_FSIZE

  /// Runs a program that may write files of at most this size in bytes. Units of ulimit differ between shells.
  private func limited(_ byteCount: Int) -> [String] { ["prlimit", "--fsize=\(byteCount)"] }

  @Test(
    "without --spool-limit, a spool keeps within the limit of the process for a file",
    arguments: [32 << 20, 20 << 20, 4 << 20])
  func chosenLimit(limit: Int) throws {
    let client = try client([], prefix: limited(limit))
    _ = try capture(pattern.bytes(100_000, at: 0), upTo: 100_000)
    #expect(!client.output.text.contains { $0.contains("File too large") }, "\(client.output.text)")
    client.kill()
  }

  @Test("a default limit that is smaller because of the limit of the process names it")
  func reason() throws {
    let client = try SluiceProcess(
      [
        "pipe", "http://\(server.address)/x.bin", "--spool", "\(directory.path)/spool", "--give-up", "1ms",
        "--progress", "none",
      ], prefix: limited(4 << 20), input: "/dev/null")
    let line = try client.line("keeping at most")
    // Half of what the file has room for, and the buffer has the other half.
    #expect(line.contains("1.52 MB") && line.contains("ulimit -f"), "\(line)")
    _ = try client.exitCode(limit: .seconds(60))
  }

  @Test(
    "a limit of the process that is too small for any spool is an error that names it",
    arguments: [(2 << 20, []), (20 << 20, ["--buffer", "19MiB"])] as [(Int, [String])])
  func tooSmall(limit: Int, options: [String]) throws {
    let client = try client(options, prefix: limited(limit))
    #expect(try client.exitCode(limit: .seconds(60)) == 74)
    let line = try #require(client.output.text.first { $0.contains("ulimit -f") }, "\(client.output.text)")
    #expect(!line.contains("--spool-limit") && line.contains("--buffer") == !options.isEmpty, "\(line)")
  }

  @Test("a buffer that fits with no --spool-limit into the limit of the process is an error that names it")
  func tooLargeBuffer() throws {
    let client = try client(["--spool-limit", "1MiB", "--buffer", "19MiB"], prefix: limited(20 << 20))
    #expect(try client.exitCode(limit: .seconds(60)) == 74)
    let line = try #require(client.output.text.first { $0.contains("File too large") }, "\(client.output.text)")
    #expect(line.contains("smaller --buffer") && line.contains("ulimit -f"), "\(line)")
  }

  @Test("a file that would be too large is an error that names the remedy", arguments: [32 << 20, 10_000])
  func tooLarge(limit: Int) throws {
    let client = try client(prefix: limited(limit))
    #expect(try client.exitCode(limit: .seconds(60)) == 74)
    let line = try #require(client.output.text.first { $0.contains("File too large") }, "\(client.output.text)")
    #expect(line.contains("smaller --spool-limit") && line.contains("ulimit -f"), "\(line)")
  }
}
