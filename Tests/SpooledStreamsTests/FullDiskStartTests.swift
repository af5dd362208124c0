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
  private let directory: TemporaryDirectory
  private let machine: SpoolMachine
  private let events: EventLog<SpoolEvent>

  init() throws {
    directory = try TemporaryDirectory()
    machine = try SpoolMachine(Seed(4).generator, folder: directory.path)
    events = try EventLog()
  }

  private func open() throws(SpoolError) -> StreamSpool {
    var settings = SpoolSettings(limit: 1 << 20)
    settings.syncInterval = .milliseconds(10)
    return try StreamSpool(
      directory: "\(directory.path)/spool", stream: "s", settings: settings, disk: machine.start()
    ) { [events] event in events.append(event) }
  }

  /// Why another process cannot use the stream; nil if it can.
  private func refusal() -> SpoolError? {
    do throws(SpoolError) {
      _ = try open()
      return nil
    } catch {
      return error
    }
  }

  @Test("the stream begins in memory, and its folder is made when there is space", arguments: [ENOSPC, EDQUOT])
  func begins(code: Int32) throws {
    machine.failFolders(with: code)
    let spool = try open()
    let buffer = try spool.begin(description: "text", capacity: 64 << 10, overflow: .refuse)
    guard var ends = buffer.takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    _ = ends.producer.write(minimum: 5000, maximum: 5000) { span in
      span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: 0) }
      return 5000
    }
    try SpoolDirectory.wait(for: "the report") { !events.all.isEmpty }
    guard case .failing(let error)? = events.all.first else {
      Issue.record("\(events.all)")
      return
    }
    #expect(error.code == code)
    machine.failFolders(with: nil)
    try SpoolDirectory.wait(for: "everything on the disk") { buffer.stretch.notSynchronized(upTo: 5000) == 0 }
    try SpoolDirectory.wait(for: "the end of the failure") { events.all.last == .recovered }
    #expect(events.all.count == 2, "\(events.all)")
    let stretch = try #require(try SpoolFolder.stretches(in: spool.path, disk: machine.start()).first)
    let file = try SpoolFile.open(stretch, access: .readOnly, disk: machine.start())
    #expect(file.head == 5000 && file.description == "text")
    #expect(try spool.finish(buffer.stretch, isDelivered: true) == 0)
  }

  @Test("another process cannot use the stream meanwhile, whether or not there is space by then")
  func isLocked() throws {
    machine.failFolders(with: ENOSPC)
    let spool = try open()
    for code in [ENOSPC, nil] {
      machine.failFolders(with: code)
      #expect(refusal()?.cause == .inUse(getpid()))
    }
    // The other process has made the folder, so the lock in it is free again.
    let buffer = try spool.begin(description: "", capacity: 64 << 10, overflow: .refuse)
    #expect(try SpoolFolder.stretches(in: spool.path, disk: machine.start()).count == 1)
    #expect(refusal()?.cause == .inUse(getpid()))
    try spool.finish(buffer.stretch, isDelivered: true)
  }

  @Test("errors other than a lack of space end the start", arguments: [EACCES, ENOTDIR, EROFS, EIO])
  func refuses(code: Int32) throws {
    machine.failFolders(with: code)
    #expect(refusal()?.code == code)
  }
}
