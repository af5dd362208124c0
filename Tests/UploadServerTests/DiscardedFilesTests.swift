// Tests which files of a discarded stream the store removes, in states that only a killed server, an operator or a full
// disk leaves.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

@Suite("Files of a discarded stream")
struct DiscardedFilesTests {
  private static let name = StreamName(path: "/k.wav", streamID: "a", mediaType: "audio/wav")

  private static func store(_ directory: TemporaryDirectory) throws -> FileStore {
    try FileStore(in: directory)
  }

  /// Removes the stream. Returns the error if the disk refuses it.
  private static func remove(_ store: FileStore) throws -> SystemError? {
    let ended = try EventLog<SystemError?>()
    store.remove(name) { ended.append($0) }
    return try ended.wait("the end of the removal") { $0.first }
  }

  /// What is left of a stream without its growing recording.
  enum Left: CaseIterable, Sendable { case records, complete, closed }

  @Test(
    "a stream without a growing recording loses its records, unless it is complete or closed", arguments: Left.allCases)
  func withoutGrowing(_ left: Left) throws {
    let (directory, name) = (TemporaryDirectory(), Self.name)
    let store = try Self.store(directory)
    try store.owners.record([UInt8](repeating: 1, count: 32), of: name, isBeginner: true)
    let hole = GapRecord(offset: 1, length: 1, cause: .notReceived)
    try directory.write(name.gaps, Array(hole.jsonLine.utf8))
    switch left {
    case .records: break
    case .complete: try directory.write(name.final, [7])
    case .closed:
      // An operator has moved the recording away.
      var part = RecordingPart(file: name.final)
      (part.end, part.count) = (3, 2)
      try store.parts.append(part, to: name.base)
    }
    let log = try store.parts.lines(of: name.base)
    #expect(try Self.remove(store) == nil)
    let isKept = left != .records
    let hasOwner = try store.owners.record(of: name) != nil
    #expect(directory.exists(name.gaps) == isKept && hasOwner == isKept)
    #expect(try store.parts.lines(of: name.base) == log)
  }

  @Test("a recording that the log has forgotten is removed with its stream if its sidecar states that it was split off")
  func forgotten() throws {
    let (directory, name) = (TemporaryDirectory(), Self.name)
    let store = try Self.store(directory)
    var growing = RecordingPart(file: name.recording(5).final)
    growing.number = 5
    growing.series = RecordingPart.Series(start: 0, holesEnd: 0)
    try store.parts.append(growing, to: name.base)
    try directory.write(name.recording(5).partial, [7])
    for number in 1...4 {
      let recording = name.recording(number)
      var sidecar = RecordingSidecar(file: recording.final)
      sidecar.state = number < 3 ? .split : .interrupted
      // Two of them wait for their digests.
      let file = number % 2 == 0 ? recording.pendingSidecar : recording.sidecar
      try directory.write(file, Array(sidecar.text.utf8))
      try directory.write(recording.final, [7])
    }
    #expect(try Self.remove(store) == nil)
    #expect(directory.names == ["k-a~3.wav", "k-a~4.wav"])
    #expect(directory.exists("k-a~3.sidecar") && directory.exists(".k-a~4.sidecar"))
    #expect(!directory.exists("k-a.sidecar") && !directory.exists(".k-a~2.sidecar"))
  }

  /// A stream in two recordings that are not finished yet, and a third one that grows.
  private static func divided(
    in directory: TemporaryDirectory
  ) throws -> (store: FileStore, splits: [SplitRecording]) {
    let store = try store(directory)
    guard let stream = try store.open(name, for: nil, at: 0, creating: true),
      let head = WAVHead(StreamedHead.all[0].bytes)
    else { throw TestFailure("no stream") }
    var splits: [SplitRecording] = []
    for bytes in [StreamedHead.all[0].bytes, [UInt8](repeating: 7, count: 400)] {
      let stored = stream.write(bytes.span, [0..<bytes.count], skipping: 0, at: stream.length, maySplit: false)
      try require(stored.error == nil, "\(stored)")
      splits.append(try store.split(stream, head))
    }
    return (store, splits)
  }

  @Test("an unfinished recording of a discarded stream does not get its final name while the disk removes another one")
  func unfinished() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let (store, splits) = try DiscardedFilesTests.divided(in: directory)
      unlink_gate_close("/k-a.part")
      // If an expectation fails, the store must not wait for a disk that hangs.
      defer { unlink_gate_open() }
      let ended = try EventLog<SystemError?>()
      store.remove(DiscardedFilesTests.name) { ended.append($0) }
      try waitUntil("the disk removes the first one") { unlink_gate_waiters() == 1 }
      let loop = try EventLoop()
      var isDiscarded = false
      splits[1].finish(loop) { outcome in
        if case .discarded = outcome { isDiscarded = true }
        loop.stop()
      }
      loop.runAtMostAMinute()
      try require(isDiscarded, "it is finished")
      try require(directory.exists("k-a~2.part") && !directory.exists("k-a~2.wav"), "it has its final name")
      unlink_gate_open()
      try require(try ended.wait("the end") { $0.first } == SystemError?.none, "the disk refuses the removal")
      try require(directory.names.isEmpty, "\(directory.names)")
    }
  }

  @Test(
    "on a full disk, the growing recording makes room for the record of the removal",
    .enabled(if: disk_faults_are_possible() != 0))
  func fullDisk() async {
    await #expect(processExitsWith: .success) {
      let (directory, name) = (TemporaryDirectory(), DiscardedFilesTests.name)
      let (store, _) = try DiscardedFilesTests.divided(in: directory)
      unlink_gate_close("/k-a.part")
      defer { unlink_gate_open() }
      disk_faults_begin(directory.path)
      disk_faults_fail(DISK_WRITE, 1, ENOSPC)
      let ended = try EventLog<SystemError?>()
      store.remove(name) { ended.append($0) }
      try waitUntil("the disk removes the first one") { unlink_gate_waiters() == 1 }
      let place = String(cString: disk_faults_place())
      try require(place.hasSuffix("/.parts/k-a"), "failed at \(place)")
      try require(!directory.exists("k-a~3.part"), "the growing recording takes room")
      let log = try store.parts.lines(of: name.base)
      try require(log.last?.isDiscarded == true, "a server that starts now keeps the stream: \(log)")
      unlink_gate_open()
      try require(try ended.wait("the end") { $0.first } == SystemError?.none, "the disk refuses the removal")
      try require(directory.names.isEmpty, "\(directory.names)")
    }
  }
}
