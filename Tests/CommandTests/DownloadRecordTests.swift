// The record of a download: its states, and its refusal after a change by another program.

import Downloads
import NetworkTesting
import PropertyTesting
import Testing

@testable import sluice

@Suite("The record of a download")
struct DownloadRecordTests {
  private let directory: TemporaryDirectory
  private let data: DownloadResumeData

  init() throws {
    directory = try TemporaryDirectory()
    let part = try directory.write("file.part", "0123")
    data = DownloadResumeData(
      path: part, inode: 7, birth: 8, byteCount: 4, validator: "\"v\"", length: 10, digest: "sha-256=:AA==:")
  }

  private func record() -> DownloadRecord { DownloadRecord(path: "\(directory.path)/file.sluice", url: "http://h/x") }

  /// A record with this state, and its bytes.
  private func written(_ data: DownloadResumeData) throws -> [UInt8] {
    let record = record()
    #expect(try record.claim(part: data.path) == nil)
    #expect(record.write(data, isSynchronized: true) == nil)
    record.release()
    return try directory.contents("file.sluice")
  }

  private func refusal() -> String? {
    let record = record()
    do throws(CommandError) {
      _ = try record.claim(part: data.path)
      return nil
    } catch {
      return error.code == .badData ? error.message : nil
    }
  }

  @Test("a later process finds the state that was written", arguments: [nil, "sha-256=:AA==:"])
  func roundTrip(_ digest: String?) throws {
    var data = data
    data.digest = digest
    _ = try written(data)
    let next = record()
    #expect(try next.claim(part: data.path) == DownloadRecord.Unfinished(url: "http://h/x", data: data))
    next.remove()
    #expect(directory.names == ["file.part"])
  }

  /// The number of synced bytes in the last state of the record.
  private func synchronizedCount() throws -> String? {
    let lines = String(decoding: try directory.contents("file.sluice"), as: UTF8.self).split(separator: "\n")
    return lines.lastIndex(of: "http://h/x").map { String(lines[$0 + 4]) }
  }

  @Test("the synced bytes of an earlier process still count while a later one continues the part")
  func earlierSync() throws {
    _ = try written(data)
    // The process after that one was killed before it synced more.
    try directory.write("file.part", "012345")
    let next = record()
    var part = try #require(try next.claim(part: data.path)).data
    #expect(part.byteCount == 6)
    #expect(next.write(part, isSynchronized: false) == nil)
    #expect(try synchronizedCount() == "4")
    // The server continues after an outage, where the part ends by now.
    part.byteCount = 8
    #expect(next.write(part, isSynchronized: false) == nil)
    #expect(try synchronizedCount() == "4")
    part.byteCount = 3
    #expect(next.write(part, isSynchronized: false) == nil)
    #expect(try synchronizedCount() == "3", "the part has lost the others")
    // Another version begins, and has bytes at the next outage.
    part.byteCount = 0
    #expect(next.write(part, isSynchronized: false) == nil)
    part.byteCount = 5
    #expect(next.write(part, isSynchronized: false) == nil)
    #expect(try synchronizedCount() == "0", "the synced bytes were those of the earlier version")
    #expect(next.write(part, isSynchronized: true) == nil)
    #expect(try synchronizedCount() == "5")
    next.remove()
  }

  @Test("a record of which any bit was changed is refused and stays unchanged", arguments: Seed.several(2))
  func changedBit(_ seed: Seed) throws {
    var random = seed.generator
    let whole = try written(data)
    for position in whole.indices {
      var changed = whole
      changed[position] ^= 1 << UInt8.random(in: 0..<8, using: &random)
      try directory.write("file.sluice", changed)
      #expect(refusal() != nil, "byte \(position)")
      #expect(try directory.contents("file.sluice") == changed, "byte \(position)")
    }
  }

  @Test(
    "a record into which another program has written another URL, version or length is refused, with a remedy",
    arguments: ["http://h/x", "\"v", "10"])
  func changedField(_ field: String) throws {
    let text = String(decoding: try written(data), as: UTF8.self)
    let changed = text.replacing("\n\(field)", with: "\n\(field)2")
    #expect(changed != text)
    try directory.write("file.sluice", changed)
    let message = try #require(refusal())
    #expect(message.contains("another program has changed it"), "\(message)")
    #expect(message.contains("--resume-file PATH, or delete it and the part"), "\(message)")
  }

  @Test("a record of an earlier version, which has no digests, can be resumed")
  func earlierForm() throws {
    try directory.write("file.sluice", "sluice download record 2\nhttp://h/x\n\"v\"\n7 8\n10\n4\nboot\n end\n")
    var expected = data
    expected.digest = nil
    let record = record()
    #expect(try record.claim(part: data.path)?.data == expected)
    record.release()
  }
}
