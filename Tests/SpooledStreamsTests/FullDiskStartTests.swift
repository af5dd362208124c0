// Processes that begin to stream on a disk without space for the folder of their spool.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Spool
import SpoolTesting
import SpooledStreams
import StreamBuffers
import Testing

@Suite("The first start of a stream on a full disk")
struct FullDiskStartTests {
  private let rig: SpoolOnMachine

  init() throws { rig = try SpoolOnMachine(Seed(4), hasDirectory: false) }

  /// Why another process cannot use the stream; nil if it can.
  private func refusal() -> SpoolError? {
    do throws(SpoolError) {
      _ = try rig.open()
      return nil
    } catch {
      return error
    }
  }

  @Test("the stream begins in memory, and its folder is made when there is space", arguments: [ENOSPC, EDQUOT])
  func begins(code: Int32) throws {
    rig.machine.failFolders(with: code)
    let spool = try rig.open()
    let buffer = try spool.begin(description: "text", capacity: 64 << 10, overflow: .refuse)
    var ends = try buffer.ends()
    ends.producer.capture(5000)
    try SpoolDirectory.wait(for: "the report") { !rig.events.all.isEmpty }
    guard case .failing(let error)? = rig.events.all.first else {
      Issue.record("\(rig.events.all)")
      return
    }
    #expect(error.code == code)
    rig.machine.failFolders(with: nil)
    try SpoolDirectory.wait(for: "everything on the disk") { buffer.stretch.notSynchronized(upTo: 5000) == 0 }
    try SpoolDirectory.wait(for: "the end of the failure") { rig.events.all.last == .recovered }
    #expect(rig.events.all.count == 2, "\(rig.events.all)")
    let stretch = try #require(try rig.stretches().first)
    let file = try rig.file(stretch)
    #expect(file.head == 5000 && file.description == "text")
    #expect(try spool.finish(buffer.stretch, isDelivered: true) == 0)
  }

  @Test("another process cannot use the stream meanwhile, whether or not there is space by then")
  func isLocked() throws {
    rig.machine.failFolders(with: ENOSPC)
    let spool = try rig.open()
    for code in [ENOSPC, nil] {
      rig.machine.failFolders(with: code)
      #expect(refusal()?.cause == .inUse(getpid()))
    }
    // The other process has made the folder, so the lock in it is free again.
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    #expect(try rig.stretches().count == 1)
    #expect(refusal()?.cause == .inUse(getpid()))
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test("errors other than a lack of space end the start", arguments: [EACCES, ENOTDIR, EROFS, EIO])
  func refuses(code: Int32) throws {
    rig.machine.failFolders(with: code)
    #expect(refusal()?.code == code)
  }
}
