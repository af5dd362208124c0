// Tests output to a file that accepts no more bytes, and later accepts bytes again.

import EventLoops
import Glibc
import NetworkTesting
import Testing

@testable import sluice

@Suite("Output to a full disk")
struct FullOutputTests {
  @Test("lines that it refuses are counted, and reported when there is space, even without another line")
  func writer() throws {
    let directory = try TemporaryDirectory()
    let failures = try EventLog<Int32>()
    let disk = try Disk(directory)
    let writer = OutputWriter(descriptor: disk.output) {
      "dropped \($0)"
    } onFailure: {
      failures.append($0)
    }
    try writer.begin()
    func write(_ line: String) -> Bool {
      writer.update { $0.append(line: line) }
      return writer.flush(patience: .seconds(60))
    }
    for number in 0..<10 { #expect(write("\(number)")) }
    #expect(writer.droppedCount == 10 && writer.failure == ENOSPC)
    #expect(failures.all == [ENOSPC])
    disk.makeRoom()
    #expect(write("10"))
    #expect(writer.droppedCount == 10 && writer.failure == nil)
    var text = String(decoding: try directory.contents("log"), as: UTF8.self)
    #expect(text == "dropped 10\n10\n")
    disk.fill()
    #expect(write("11"))
    #expect(failures.all == [ENOSPC, ENOSPC])
    disk.makeRoom()
    #expect(writer.flush(patience: .seconds(60)))
    text = String(decoding: try directory.contents("log"), as: UTF8.self)
    #expect(text == "dropped 10\n10\ndropped 1\n")
    #expect(writer.droppedCount == 11 && writer.failure == nil)
  }

  @Test("without a queue, the output of a short-lived program is incomplete even if later lines are written")
  func withoutQueue() throws {
    let directory = try TemporaryDirectory()
    let disk = try Disk(directory)
    let writer = OutputWriter(descriptor: disk.output) { "dropped \($0)" }
    writer.update { $0.append(line: "0") }
    disk.makeRoom()
    writer.update { $0.append(line: "1") }
    #expect(writer.failure == ENOSPC && writer.droppedCount == 1)
  }

  /// A descriptor for a full disk, and for a file in a directory when there is room.
  private final class Disk {
    let output: Int32
    private let full: Int32
    private let file: Int32

    init(_ directory: TemporaryDirectory) throws {
      let full = try retryingInterrupts("open /dev/full") { open("/dev/full", O_WRONLY | O_CLOEXEC) }
      file = try retryingInterrupts("open log") {
        open("\(directory.path)/log", O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
      }
      (self.full, output) = (full, fcntl(full, F_DUPFD_CLOEXEC, 0))
    }

    deinit { for descriptor in [output, full, file] { close(descriptor) } }

    func fill() { dup2(full, output) }
    func makeRoom() { dup2(file, output) }
  }

  @Test(
    "serve counts and reports lines that its log cannot contain, and exits with 74 only if that is so at the end",
    arguments: [true, false])
  func log(recovers: Bool) throws {
    let directory = try TemporaryDirectory()
    let (socket, figures) = ("\(directory.path)/socket", "\(directory.path)/figures")
    // bash counts in units of 1,024 bytes.
    let script = "ulimit -S -f 2; log=$1; shift; exec \"$@\" > \"$log\""
    let server = try TestProcess(
      "bash",
      [
        "-c", script, "bash", "\(directory.path)/log", sluicePath(), "serve", "--listen", "unix:\(socket)", "--discard",
        "--metrics", "unix:\(figures)",
      ])
    try server.lines.first("the server") { $0.text.hasPrefix("listening on ") }
    func upload(_ stream: String) throws {
      let curl = try TestProcess(
        "curl",
        [
          "--silent", "--fail", "--max-time", "20", "--unix-socket", socket, "-H", "Stream-ID: \(stream)", "--data",
          "hello", "http://h/t",
        ])
      let code = try curl.wait()
      #expect(code == 0)
    }
    var count = 0
    try eventually("three lines that are dropped") {
      count += 1
      try upload("s\(count)")
      return try droppedLineCount(figures) >= 3
    }
    let cut = try directory.contents("log")
    #expect(cut.count == 2048)
    if recovers {
      let limit = try TestProcess("prlimit", ["--pid", "\(server.pid)", "--fsize=1000000:"])
      let code = try limit.wait()
      #expect(code == 0, "\(limit.errors)")
      try upload("last")
      try eventually("the last line") { try logLines(directory).contains { $0.contains("\"last\"") } }
      let (lines, dropped) = (try logLines(directory), try droppedLineCount(figures))
      let place = try #require(lines.firstIndex { $0.contains("\"output-dropped\"") })
      #expect(lines[place].contains("\"lines\":\(dropped),"), "\(lines[place]), not \(dropped)")
      // Only the line that was cut is incomplete, and nothing follows it in its line.
      let incomplete = lines.indices.filter { !lines[$0].hasPrefix("{\"event\"") || !lines[$0].hasSuffix("}") }
      let isCut = cut.last != UInt8(ascii: "\n") && cut.last != UInt8(ascii: "}")
      #expect(incomplete == (isCut ? [place - 1] : []), "\(lines)")
    }
    server.signal(SIGTERM)
    let code = try server.wait()
    #expect(code == (recovers ? 0 : 74), "\(server.errors)")
    let reports = server.errors.filter { $0.contains("cannot write to standard output: File too large") }
    #expect(reports.count == 1 && reports[0].contains("ulimit -f"), "\(server.errors)")
  }

  private func logLines(_ directory: TemporaryDirectory) throws -> [Substring] {
    String(decoding: try directory.contents("log"), as: UTF8.self).split(separator: "\n")
  }
}
