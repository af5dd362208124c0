// Tests a file that changes while put sends it. Whatever changes and whenever, the stored bytes must not count as a
// complete upload.

import CommandTesting
import Glibc
import NetworkTesting
import Synchronization
import Testing

@Suite("sluice put of a file that changes", .serialized)
struct PutFileChangeTests {
  enum Moment: CaseIterable { case whileItIsSent, duringAnOutage, beforeTheResponse }

  private static let size = 3_000_000

  /// Lets the server stop, signal this to the test, and wait for it.
  private final class Gate: Sendable {
    let reached: EventLog<Bool>
    let opened: EventLog<Bool>
    init() throws { (reached, opened) = (try EventLog(), try EventLog()) }
    func pass() {
      reached.append(true)
      _ = try? opened.first("the change") { $0 }
    }
  }

  /// Supports no resumable uploads, and stops after this many content bytes.
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
    "put fails and describes the change, for each change at any time",
    arguments: FileChange.harmful.flatMap { change in Moment.allCases.map { (change, $0) } })
  func change(_ change: FileChange, _ moment: Moment) throws {
    let (process, code, heads, directory) = try upload(change, moment)
    #expect(code == 74)
    let file = "\(directory.path)/data"
    let text = process.errors.joined(separator: "\n")
    #expect(text.contains("sluice: \(file) changed while it was being sent: "), "\(text)")
    #expect(!text.contains("resume with"), "\(text)")
    if let heads { #expect(heads.all.last?.line.hasPrefix("DELETE") == true) }
    #expect(!directory.names.contains("data.sluice"))
  }

  @Test(
    "put continues if only permissions, owner or links of a file change",
    arguments: FileChange.harmless.flatMap { change in Moment.allCases.map { (change, $0) } })
  func harmless(_ change: FileChange, _ moment: Moment) throws {
    let (process, code, _, directory) = try upload(change, moment)
    #expect(code == 0, "\(process.errors)")
    #expect(!directory.names.contains("data.sluice"))
  }

  /// Uploads a file that changes at the given moment.
  private func upload(
    _ change: FileChange, _ moment: Moment
  ) throws -> (TestProcess, code: Int32, heads: EventLog<ServerConnection.Head>?, TemporaryDirectory) {
    let directory = try TemporaryDirectory()
    let file = try directory.write("data", [UInt8](repeating: 7, count: Self.size))
    let gate = try Gate()
    switch moment {
    case .duringAnOutage:
      let server = try HalfServer(keeps: 1000, cuts: true) { gate.pass() }
      // All bytes fit into the kernel's buffers, so the command notices the end of the connection.
      let process = try sluice(["put", file, "\(server.url)/x"])
      try gate.reached.first("the question") { $0 }
      try change.perform(on: file)
      gate.opened.append(true)
      return (process, try process.wait(), server.heads, directory)
    case .whileItIsSent, .beforeTheResponse:
      let server = try plainServer(stopsAt: moment == .beforeTheResponse ? Self.size : 100_000, gate)
      let process = try sluice(["put", file, "\(server.url)/x", "--resumable", "never", "--send-buffer", "64KiB"])
      try gate.reached.first("the content") { $0 }
      try change.perform(on: file)
      gate.opened.append(true)
      return (process, try process.wait(), nil, directory)
    }
  }

  @Test(
    "put --resume continues with the same file, whatever its current permissions and links",
    arguments: FileChange.allCases.filter { $0 != .writtenWithOldTime })
  func resumed(_ change: FileChange) throws {
    let directory = try TemporaryDirectory()
    let content = (0..<Self.size).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ $0 >> 8) }
    let file = try directory.write("data", content)
    let server = try HalfServer(keeps: 1000)
    let first = try sluice(["put", file, "\(server.url)/x"])
    try waitUntil("it is remembered") {
      (try? directory.contents("data.sluice")).map { String(decoding: $0, as: UTF8.self).contains("SECRET-place") }
        == true
    }
    first.signal(SIGKILL)
    _ = try first.wait()
    try change.perform(on: file)
    let second = try sluice(["put", file, "\(server.url)/x", "--resume"])
    let code = try second.wait()
    if FileChange.harmless.contains(change) {
      #expect(code == 0, "\(second.errors)")
      #expect(server.appended.withLock { $0.elementsEqual(content[1000...]) })
      #expect(!directory.names.contains("data.sluice"))
    } else {
      #expect(code == (change == .moved ? 66 : 74), "\(second.errors)")
      #expect(server.appended.withLock { $0.isEmpty } && directory.names.contains("data.sluice"))
    }
  }

  @Test(
    "a file that stays unchanged, or is only removed, is uploaded completely at any rate", arguments: [false, true])
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
