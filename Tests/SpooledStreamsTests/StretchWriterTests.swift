// A stretch's writer at rare moments: while bytes are on their way, after a long outage, and at the end of its memory.

import EventLoops
import Glibc
import Spool
import SpoolTesting
import StreamBuffers
import Testing

@testable import SpooledStreams

@Suite("The writer of a stretch")
struct StretchWriterTests {
  private let disk = TestDisk()
  private let folder: SpoolFolder

  init() throws {
    try disk.makeFolder("/spool", mode: 0o700)
    folder = try SpoolFolder(directory: "/spool", stream: "s", disk: disk)
  }

  private func stretch() -> SpooledStretch {
    SpooledStretch(kept: 0..<0, released: 0, capacity: 1 << 20, load: { _ in }, keep: {})
  }

  private func settings(_ stretch: SpooledStretch) -> CircularBuffer.Settings {
    var settings = CircularBuffer.Settings(capacity: 64 << 10)
    (settings.hasCopier, settings.overflow, settings.backing) = (true, .dropOldest, stretch)
    return settings
  }

  private func writer(
    _ file: SpoolFile, _ stretch: SpooledStretch, _ copier: CircularBuffer.Copier, _ shared: SharedStretch?
  ) -> StretchWriter {
    StretchWriter(file: file, stretch: stretch, copier: copier, shared: shared, patience: .zero) {
      () throws(SpoolError) -> SpoolFile in throw SpoolError(.notASpool, path: "")
    }
  }

  @Test("bytes on their way to the disk are not missing, and those that the disk refuses are")
  func onTheirWay() throws {
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let stretch = stretch()
    var ends = try CircularBuffer.makeCopied(settings(stretch))
    let writer = writer(file, stretch, ends.copier, nil)
    _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 }
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 16)
    defer { buffer.deallocate() }
    // The buffer may have dropped the bytes by now.
    func missing() -> UInt64? {
      if case .overwritten(let oldest) = stretch.read(at: 0, maximum: 10, oldestInMemory: 1000) { oldest } else { nil }
    }
    var meanwhile: [UInt64?] = []
    let copied = writer.copy(through: buffer, atMost: .max) { _, _ in
      meanwhile.append(missing())
      return false
    }
    #expect(copied == .blocked(SpoolError(.full, path: file.path)))
    #expect(meanwhile == [nil] && missing() == 1000)
  }

  @Test("a writer knows each lost byte, also while the disk refuses everything, and at its end those of the last block")
  func lostBytes() throws {
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let stretch = stretch()
    var ends = try CircularBuffer.makeCopied(settings(stretch))
    let writer = writer(file, stretch, ends.copier, nil)
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 16)
    defer { buffer.deallocate() }
    func capture(upTo head: UInt64) {
      while ends.producer.head < head { _ = ends.producer.write(minimum: 1000, maximum: 1000) { _ in 1000 } }
    }
    func copy() -> StretchWriter.Copied { writer.copy(through: buffer, atMost: .max) { _, _ in true } }
    func refuse() { disk.lasting[.write] = (from: 0, code: ENOSPC) }
    refuse()
    capture(upTo: 100_000)
    guard case .blocked = copy() else {
      Issue.record("the disk is full")
      return
    }
    let lost: UInt64 = 100_000 - 64 << 10
    #expect(stretch.holes(before: 0) == [0..<lost])
    disk.lasting = [:]
    #expect(copy() == StretchWriter.Copied.some && file.head == 100_000)
    try writer.commit(sync: true)
    // The incomplete block needs no write.
    capture(upTo: 101_000)
    refuse()
    #expect(copy() == StretchWriter.Copied.some && file.head == 101_000 && file.survivingHead == 100_000)
    capture(upTo: 171_000)
    guard case .blocked = copy() else {
      Issue.record("the disk is full again")
      return
    }
    let end: UInt64 = 171_000 - 64 << 10
    #expect(stretch.holes(before: 0) == [0..<lost, 101_000..<end])
    writer.findLossAtEnd()
    #expect(stretch.holes(before: 0) == [0..<lost, 100_000..<end])
    #expect(stretch.notSynchronized(upTo: 171_000) == 64 << 10)
  }

  @Test("after a long outage of the disk, the next process finds the bytes that follow it")
  func longOutage() throws {
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let stretch = stretch()
    var ends = try CircularBuffer.makeCopied(settings(stretch))
    let writer = writer(file, stretch, ends.copier, nil)
    let total: UInt64 = 9 << 20
    while ends.producer.head < total { _ = ends.producer.write(minimum: 4096, maximum: 4096) { _ in 4096 } }
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8192, alignment: 16)
    defer { buffer.deallocate() }
    #expect(writer.copy(through: buffer, atMost: .max) { _, _ in true } == StretchWriter.Copied.some)
    #expect(file.head == total)
    // One checkpoint is enough: a recovery finds the blocks behind it.
    #expect(file.checkpoint.head > 8 << 20 && file.checkpoint.head < total, "\(file.checkpoint.head)")
    disk.killProcess()
    let found = try SpoolFile.open(file.path, access: .readOnly, disk: disk)
    // The last block was not complete.
    #expect(found.head <= total && found.head + 4064 > total, "\(found.head)")
  }

  @Test("a stretch leaves memory when its last text is in the file, and stays there while the disk refuses the text")
  func leavesMemory() throws {
    let file = try SpoolFile.create(in: folder, description: "", capacity: 1 << 20)
    let shared = SharedStretch(id: file.id)
    defer { shared.remove() }
    let stretch = stretch()
    var settings = settings(stretch)
    settings.path = shared.bufferPath
    let ends = try CircularBuffer.makeCopied(settings)
    stretch.keepsWords(in: ends.copier.note)
    let writer = writer(file, stretch, ends.copier, shared)
    stretch.noteWithRelease("one")
    disk.lasting[.write] = (from: 0, code: ENOSPC)
    let error = #expect(throws: SpoolError.self) { try writer.leaveMemory() }
    #expect(error?.code == ENOSPC)
    // A process that is killed now leaves it to the next one.
    stretch.noteWithRelease("two")
    #expect(try shared.remains()?.note == "two" && file.checkpoint.state.isEmpty)
    disk.lasting = [:]
    try writer.leaveMemory()
    #expect(file.checkpoint.state == "two" && !shared.isThere)
  }
}
