// What a collector's checkpoints state about the log, also after the brokers have lost messages.

import DiskFiles
import EventLoops
import NetworkTesting
import StreamServing
import StreamStore
import Testing

@testable import LogCollecting

@Suite("Writing the checkpoints of a collector")
struct CheckpointWriterTests {
  private let directory: TemporaryDirectory
  private let store: FileStore
  private let loop: EventLoop
  private let purge = CollectorCheckpoint.Purge(token: "t", sequence: 6)

  init() throws {
    directory = try TemporaryDirectory()
    store = try FileStore(
      path: directory.path, durability: .interval, closedLifetime: .zero, isCollected: true, files: OpenFiles(),
      UploadUsage(.init()))
    loop = try EventLoop()
  }

  private func writer(after position: CollectorCheckpoint.Position) -> CheckpointWriter {
    var checkpoint = CollectorCheckpoint(stream: "sluice", created: "now", partition: "1/1")
    checkpoint.position = position
    return CheckpointWriter(after: checkpoint, omitting: [], store, loop: loop)
  }

  /// Begins to write a checkpoint. `written` is called while the loop runs.
  private func write(
    _ writer: CheckpointWriter, _ purges: [CollectorCheckpoint.Purge] = [], _ written: @escaping () -> Void
  ) {
    writer.write([], purges, waiting: [:], exceptLast: false) { outcome in
      if case .written = outcome {} else { Issue.record("\(outcome)") }
      written()
    }
  }

  @Test("a checkpoint that was begun before the brokers lost messages states nothing about the log that is read again")
  func begunBefore() throws {
    let writer = writer(after: .init(sequence: 5, mark: "a", time: 7))
    writer.received(.init(sequence: 6, mark: "b", time: 8))
    writer.begin()
    write(writer, [purge]) { [loop] in loop.stop() }
    writer.rewind(from: 6)
    loop.run()
    #expect(writer.latest.position == .beginning)
    #expect(writer.latest.purges == [])
  }

  @Test("a loss of the brokers ends the purges of the last checkpoint, and those of the next one count")
  func begunAfter() throws {
    let writer = writer(after: .init(sequence: 5, mark: "a", time: 7))
    writer.received(.init(sequence: 6, mark: "b", time: 8))
    writer.begin()
    write(writer, [purge]) { [loop, purge] in
      #expect(writer.latest.purges == [purge])
      writer.begin()
      writer.rewind(from: 6)
      #expect(writer.latest.purges == [])
      writer.received(.init(sequence: 1, mark: "c", time: 9))
      write(writer, [purge]) { loop.stop() }
    }
    loop.run()
    #expect(writer.latest.position == CollectorCheckpoint.Position(sequence: 1, mark: "c", time: 9))
    #expect(writer.latest.purges == [purge])
    #expect(try CheckpointFile(in: store.directory).read() == writer.latest)
  }

  @Test("a checkpoint states how far the collector has come while a stream waits, and the next one counts from there")
  func waiting() throws {
    let (before, after) = (
      CollectorCheckpoint.Position(sequence: 5, mark: "a", time: 7),
      CollectorCheckpoint.Position(sequence: 6, mark: "b", time: 8)
    )
    let writer = writer(after: before)
    writer.received(after)
    writer.begin()
    writer.write([], [], waiting: [StreamName(base: "k-s0"): 6], exceptLast: false) { [self] _ in
      #expect(writer.latest.position == before && writer.latest.applied == after)
      #expect(writer.latest.omissions == [.init(base: "k-s0", sequence: 6)])
      writer.begin()
      write(writer) { loop.stop() }
    }
    loop.run()
    #expect(writer.latest.position == after && writer.latest.applied == nil)
  }

  @Test("a checkpoint states which messages are read again, until all of them are")
  func readAgain() throws {
    let writer = writer(after: .init(sequence: 6, mark: "a", time: 7))
    #expect(!writer.isReread(6))
    writer.rewind(from: 6)
    writer.received(.init(sequence: 1, mark: "b", time: 8))
    writer.begin()
    write(writer) { [self] in
      #expect(writer.latest.formerEnd == 6)
      let next = CheckpointWriter(after: writer.latest, omitting: [], store, loop: loop)
      #expect(next.isReread(6) && !next.isReread(7))
      next.received(.init(sequence: 6, mark: "c", time: 9))
      next.begin()
      write(next) {
        #expect(next.latest.formerEnd == nil)
        loop.stop()
      }
    }
    loop.run()
  }

  @Test(
    "a position has no time if the checkpoint before it has a message and no time, until the log is read again",
    arguments: [
      (.beginning, 4), (.init(sequence: 5, mark: "a"), 0), (.init(sequence: 5, mark: "a", time: 3), 4),
      (.init(sequence: 5, mark: "a", time: 9), 9),
    ] as [(CollectorCheckpoint.Position, Int64)])
  func time(_ position: CollectorCheckpoint.Position, _ expected: Int64) throws {
    let writer = writer(after: position)
    writer.received(.init(sequence: 6, mark: "b", time: 4))
    writer.begin()
    write(writer) { [self] in
      #expect(writer.latest.position == CollectorCheckpoint.Position(sequence: 6, mark: "b", time: expected))
      writer.rewind(from: 6)
      writer.received(.init(sequence: 1, mark: "c", time: 2))
      writer.begin()
      write(writer) { loop.stop() }
    }
    loop.run()
    #expect(writer.latest.position == CollectorCheckpoint.Position(sequence: 1, mark: "c", time: 2))
  }
}
