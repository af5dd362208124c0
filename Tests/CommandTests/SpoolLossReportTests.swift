// Bytes that are lost between the disk and memory: their process was killed after the disk was full for too long.

import EventLoops
import Glibc
import NetworkTesting
import Spool
import StreamBuffers
import Testing

@testable import SpooledStreams

@Suite("A stretch with a hole before the bytes in memory, for sluice spool")
struct SpoolLossReportTests {
  private let directory: TemporaryDirectory

  init() throws { directory = try TemporaryDirectory() }

  private var spool: String { "\(directory.path)/spool" }

  /// Makes the stretch's file with this number of bytes, like a process that is killed. Returns its identifier.
  private func makeFile(_ count: Int) throws -> [UInt8] {
    let folder = try SpoolFolder(directory: spool, stream: "cam")
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let bytes = [UInt8](repeating: 1, count: count)
    try bytes.withUnsafeBytes { try file.append($0, at: 0, time: 0) }
    try file.noteMemory(isNeeded: true)
    try file.commit(state: "", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
    file.close()
    return file.id
  }

  /// Leaves the last 64 KiB of 100,000 bytes in memory.
  ///
  /// - Parameter acknowledged: what the server has acknowledged.
  private func leave(at path: String, _ label: CircularBuffer.Label, acknowledged: UInt64) throws {
    var settings = CircularBuffer.Settings(capacity: 64 << 10)
    (settings.allowsPauses, settings.hasCopier, settings.overflow) = (true, true, .dropOldest)
    (settings.path, settings.label) = (path, label)
    var ends = try CircularBuffer.makeCopied(settings)
    for number in 0..<100 {
      if number == 60 { ends.consumer.release(upTo: acknowledged) }
      _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
    }
  }

  private func run(_ arguments: [String]) throws -> (code: Int32, text: [String]) {
    let process = try sluice(["spool"] + arguments)
    return (try process.wait(), process.output + process.errors)
  }

  @Test(
    "list and verify print each lost byte that the server has not acknowledged, and the bytes in memory",
    arguments: [nil, 0, 10_000] as [Int?], [0, 20_000, 50_000] as [UInt64])
  func reported(inFile: Int?, acknowledged: UInt64) throws {
    let identity = StretchIdentity()
    let id = try inFile.map { try makeFile($0) } ?? identity.id
    let shared = SharedStretch(id: id)
    defer { shared.remove() }
    let folder = "\(SpoolFolder.resolved(spool))/cam"
    try leave(
      at: shared.bufferPath, SharedStretch.label(created: identity.created, folder: folder),
      acknowledged: acknowledged)
    if inFile == nil {
      try shared.write(SharedStretch.Description(identity: identity, folder: folder, text: "", hasBuffer: true))
    }
    let oldest: UInt64 = 100_000 - 64 << 10
    let start = max(UInt64(inFile ?? 0), acknowledged)
    let (lost, inMemory) = (oldest - min(oldest, start), 100_000 - max(oldest, acknowledged))

    let verified = try run(["verify", spool])
    #expect(verified.code == (lost > 0 ? 4 : 0), "\(verified)")
    let hole = "bytes \(start) to \(oldest - 1) were lost before they were spooled"
    #expect(verified.text.filter { $0.contains("were lost") }.count == (lost > 0 ? 1 : 0), "\(verified)")
    #expect(verified.text.contains { $0.hasSuffix(hole) } == (lost > 0), "\(verified)")
    if let inFile {
      let line = "\(inFile) bytes intact, \(inMemory) more in memory, \(lost) bytes lost"
      #expect(verified.text.last?.hasSuffix(line) == true, "\(verified)")
    } else {
      #expect(verified.text.contains { $0.contains("only in memory") }, "\(verified)")
    }

    let listed = try run(["list", spool])
    #expect(listed.code == 0 && listed.text.contains { $0.contains(" lost") } == (lost > 0), "\(listed)")
    let json = try run(["list", "--json", spool])
    #expect(json.text.count == 1 && json.text[0].contains("\"memory_bytes\":\(inMemory),"), "\(json)")
    #expect(json.text[0].contains("\"lost_bytes\":\(lost),"), "\(json)")
  }
}
