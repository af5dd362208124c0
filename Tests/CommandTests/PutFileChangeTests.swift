// A file that changes while put sends it: whatever changes, and whenever, what the server stored must not count as an
// upload.

import Glibc
import NetworkTesting
import Testing

@Suite("sluice put of a file that changes", .serialized)
struct PutFileChangeTests {
  enum Change: CaseIterable {
    case shortened, grown, written, writtenWithOldTime, replaced

    func perform(on path: String) throws {
      var status = stat()
      guard stat(path, &status) == 0 else { throw TestFailure("stat") }
      switch self {
      case .shortened: truncate(path, off_t(status.st_size / 2))
      case .grown: try write("more", at: off_t(status.st_size), path)
      case .written: try write("other", at: 7, path)
      case .writtenWithOldTime:
        try write("other", at: 7, path)
        let times = [status.st_atim, status.st_mtim]
        guard utimensat(AT_FDCWD, path, times, 0) == 0 else { throw TestFailure("utimensat") }
      case .replaced:
        let other = open(path + ".other", O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        ftruncate(other, off_t(status.st_size))
        close(other)
        rename(path + ".other", path)
      }
    }

    private func write(_ text: String, at offset: off_t, _ path: String) throws {
      let descriptor = open(path, O_WRONLY | O_CLOEXEC)
      defer { close(descriptor) }
      let bytes = Array(text.utf8)
      guard pwrite(descriptor, bytes, bytes.count, offset) == bytes.count else { throw TestFailure("pwrite") }
    }
  }

  enum Moment: CaseIterable { case whileItIsSent, duringAnOutage, beforeTheResponse }

  private static let size = 3_000_000

  /// Where the server stops, tells, and waits for the test.
  private final class Gate: Sendable {
    let reached: EventLog<Bool>
    let opened: EventLog<Bool>
    init() throws { (reached, opened) = (try EventLog(), try EventLog()) }
    func pass() {
      reached.append(true)
      _ = try? opened.first("the change") { $0 }
    }
  }

  /// Knows nothing of resumable uploads, and stops after this number of content bytes.
  private func plainServer(stopsAt limit: Int, _ gate: Gate) throws -> ScriptedServer {
    try ScriptedServer(receiveBuffer: 64 << 10) { connection, _ in
      let head = try connection.head()
      let length = head["Content-Length"].flatMap { Int($0) } ?? 0
      var rest = length
      func take(to end: Int) throws {
        while rest > end, let piece = try connection.receive(rest - end) { rest -= piece.count }
      }
      try take(to: length - limit)
      gate.pass()
      try take(to: 0)
      if rest == 0 { try connection.respond("200 OK", ["Connection: close"]) }
    }
  }

  @Test(
    "put fails and names the change, whatever changes and whenever",
    arguments: Change.allCases.flatMap { change in Moment.allCases.map { (change, $0) } })
  func change(_ change: Change, _ moment: Moment) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", [UInt8](repeating: 7, count: Self.size))
    let gate = try Gate()
    let process: TestProcess
    let heads: EventLog<ServerConnection.Head>?
    switch moment {
    case .duringAnOutage:
      let server = try HalfServer(keeps: 1000, cuts: true) { gate.pass() }
      // All of it fits the kernel's buffers, and so the end of the connection is seen.
      process = try sluice(["put", file, "\(server.url)/x"])
      heads = server.heads
      try gate.reached.first("the question") { $0 }
      try change.perform(on: file)
      gate.opened.append(true)
      #expect(try process.wait() == 74)
    case .whileItIsSent, .beforeTheResponse:
      let server = try plainServer(stopsAt: moment == .beforeTheResponse ? Self.size : 100_000, gate)
      process = try sluice(["put", file, "\(server.url)/x", "--resumable", "never", "--send-buffer", "64KiB"])
      heads = nil
      try gate.reached.first("the content") { $0 }
      try change.perform(on: file)
      gate.opened.append(true)
      #expect(try process.wait() == 74)
    }
    let text = process.errors.joined(separator: "\n")
    #expect(text.contains("sluice: \(file) changed while it was being sent: "), "\(text)")
    #expect(!text.contains("continue with"), "\(text)")
    if let heads { #expect(heads.all.last?.line.hasPrefix("DELETE") == true) }
    #expect(!directory.names.contains("data.sluice"))
  }

  @Test("a file that stays as it is, or is only removed, is uploaded whole, however slowly", arguments: [false, true])
  func unchanged(isRemoved: Bool) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", [UInt8](repeating: 7, count: Self.size))
    let gate = try Gate()
    let server = try plainServer(stopsAt: 100_000, gate)
    let process = try sluice(["put", file, "\(server.url)/x", "--resumable", "never"])
    try gate.reached.first("the content") { $0 }
    if isRemoved { unlink(file) }
    gate.opened.append(true)
    #expect(try process.wait() == 0)
  }
}
