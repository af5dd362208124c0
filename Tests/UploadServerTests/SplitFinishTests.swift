// Tests the end of a recording whose stream continues in the next one, in states that depend on another server, on the
// log or on the clock.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

@Suite("The end of a recording that is split off")
struct SplitFinishTests {
  private static let bytes = StreamedHead.all[0].bytes + [UInt8](repeating: 7, count: 400)
  private static let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")

  private static func store(_ directory: TemporaryDirectory) throws -> FileStore {
    try FileStore(
      path: directory.path, durability: .interval, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
      UploadUsage(.init()))
  }

  /// The stream with all its bytes.
  private static func grown(_ store: FileStore) throws -> StreamFile {
    let stream = try #require(try store.open(name, for: nil, at: 0, creating: true))
    let stored = stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: 0, maySplit: false)
    #expect(stored.error == nil && stored.count == bytes.count)
    return stream
  }

  @Test("one attempt at a time finishes a recording, and none does once its stream is discarded")
  func attempts() {
    let finish = SplitFinish()
    #expect(finish.begin())
    #expect(!finish.begin())
    finish.end()
    #expect(finish.begin())
    finish.discard()
    finish.end()
    #expect(!finish.begin())
  }

  @Test("a recording that the previous server finishes at the same time counts as finished, and gets its sidecar")
  func finishedByOther() throws {
    let (directory, name) = (TemporaryDirectory(), Self.name)
    let store = try Self.store(directory)
    let stream = try Self.grown(store)
    let mayBegin = try EventLog<Bool>()
    store.worker.execute { _ = try? mayBegin.wait("the other server") { $0.first } }
    let loop = try EventLoop()
    var isFinished = false
    try store.split(stream, try #require(WAVHead(Self.bytes))).finish(loop) { outcome in
      if case .finished = outcome { isFinished = true }
      loop.stop()
    }
    // The other server has all but computed the digests.
    var sidecar = RecordingSidecar(file: name.final)
    sidecar.state = .split
    sidecar.stored = RecordingSidecar.Content(bytes: UInt64(Self.bytes.count))
    sidecar.received = sidecar.stored
    try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    try #require(rename("\(directory.path)/\(name.partial)", "\(directory.path)/\(name.final)") == 0)
    mayBegin.append(true)
    loop.runAtMostAMinute()
    #expect(isFinished)
    try waitUntil("it has its sidecar") { directory.exists(name.sidecar) }
  }

  @Test("there is no part after the last one")
  func lastPart() throws {
    let directory = TemporaryDirectory()
    let store = try Self.store(directory)
    let last = Self.name.recording(RecordingPart.largestNumber)
    try directory.write(last.final, [7])
    let next = try store.nextName(after: Self.name.recording(last.part - 1), beginning: [])
    #expect(next.part == last.part)
  }

  @Test("bytes before a recording cannot be read if the log has forgotten where they are")
  func forgotten() throws {
    let (directory, name) = (TemporaryDirectory(), Self.name)
    let store = try Self.store(directory)
    var part = RecordingPart(file: name.recording(2).final)
    (part.number, part.start, part.firstReceived) = (2, 100, 100)
    part.series = RecordingPart.Series(start: 0, holesEnd: 0)
    try store.parts.append(part, to: name.base)
    try directory.write(name.recording(2).partial, [7, 8])
    let stream = try #require(try store.open(name, for: nil, at: 102, creating: false))
    let (before, within) = (try stream.stretches(of: 90..<101), try stream.stretches(of: 100..<101))
    #expect(before?.count == nil && within?.count == 1)
  }

  @Test(
    "a recording ends at a time of day by the server's clock if its sender does not state when it began",
    .enabled(if: WallClock(birthOf: "/tmp", in: AT_FDCWD) != nil, "the file system records no times of creation"))
  func timeOfDay() throws {
    let directory = TemporaryDirectory()
    let store = try Self.store(directory)
    let stream = try Self.grown(store)
    let head = try #require(WAVHead(Self.bytes))
    let split = RecordingSplit(timeOfDay: .seconds(12 * 3600))
    let birth = try #require(WallClock(birthOf: Self.name.partial, in: store.directory))
    let first = UInt64(head.received.count)
    let clock = try #require(StreamClock(started: birth.sinceEpoch, first: first, head))
    let end = try #require(clock.end(of: split, from: first))
    #expect(store.endByClock(of: stream, split, head) == end)
  }
}
