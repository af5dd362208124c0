import PropertyTesting
import SpoolTesting
import Testing

@testable import Spool

@Suite("A spool file that another program truncates while it is in use")
struct SpoolTruncationTests {
  private static let pattern = OffsetPattern(seed: 4)

  private func append(_ count: Int, to file: SpoolFile) throws {
    let head = file.head
    try Self.pattern.bytes(count, at: head).withUnsafeBytes { try file.append($0, at: head, time: 0) }
    try file.commit(state: "state", pausedByteCount: 0, pauses: [], isFinished: false, sync: true)
  }

  @Test(
    "has its beginning again, keeps what follows, and names what is missing",
    arguments: [0, 20_000, 81_920, 90_000, 81_920 + 30 * 4096])
  func repaired(size: Int) throws {
    let disk = TestDisk()
    try disk.makeFolder("/tmp", mode: 0)
    try disk.synchronizeFolder("/")
    let folder = try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: disk)
    let file = try SpoolFile.create(in: folder, description: "text", capacity: 64 * 4064)
    try append(50_000, to: file)
    #expect(try !file.repairTruncation())
    _ = disk.withFile(file.path) { $0.removeSubrange(min(size, $0.count)...) }
    #expect(try file.repairTruncation())
    try append(10_000, to: file)
    #expect(try !file.repairTruncation())
    // The last block was not complete, so memory had it.
    let last = 50_000 / 4064
    let firstMissing = UInt64(min(last, max(0, size - 81_920) / 4096) * 4064)
    let missing = firstMissing < UInt64(last * 4064) ? [firstMissing..<UInt64(last * 4064)] : []
    try expect(file, missing)
    disk.cutPower()
    let next = try SpoolFolder(directory: "/tmp/spool", stream: "s", disk: disk)
    let recovered = try SpoolFile.open(file.path, folder: next)
    #expect(recovered.description == "text" && recovered.checkpoint.state == "state" && recovered.head == 60_000)
    try expect(recovered, missing)
  }

  private func expect(_ file: SpoolFile, _ expected: [Range<UInt64>]) throws {
    let (bytes, missing) = try file.readAll(from: file.oldest)
    // Each block is named by itself, or in a run.
    #expect(missing.withJoinedNeighbors == expected)
    for (position, piece) in bytes { #expect(piece.withUnsafeBytes { Self.pattern.matches($0, at: position) }) }
  }
}
