// Tests that a server which has ended, and whose worker is still busy, changes nothing for the next server.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("A server that has ended, and the next one")
struct EndedServerTests {
  /// What the worker writes a sidecar for.
  private enum Work: String, CaseIterable {
    /// The digests of a recording.
    case digests
    /// The time since when a recording is kept.
    case retention
    /// The end of a recording whose stream continues in another.
    case split
    /// The same, if the server before it was killed while it did this.
    case splitAgain
  }

  private static let name = StreamName(path: "/h.txt", streamID: "a", mediaType: "text/plain")
  private static let link = "h/2026-11-21T22-00-00Z.txt"

  private static func store(
    _ directory: TemporaryDirectory, _ durability: Durability, _ retention: RetentionState? = nil
  ) throws -> FileStore {
    try FileStore(
      path: directory.path, durability: durability, closedLifetime: .zero, hasSidecars: true,
      names: RecordingNames(pattern: RecordingNames.standardPattern, includesWhole: true), retention: retention,
      files: OpenFiles(), UploadUsage(.init()))
  }

  /// Writes a recording, and its sidecar with or without digests.
  private static func leave(_ work: Work, in directory: TemporaryDirectory) throws {
    if work == .splitAgain {
      var sidecar = RecordingSidecar(file: name.final)
      sidecar.stored = RecordingSidecar.Content(bytes: 3)
      sidecar.received = sidecar.stored
      try directory.write(name.pendingSidecar, Array(sidecar.text.utf8))
    }
    if work == .split || work == .splitAgain {
      try directory.write(name.partial, Array("abc".utf8))
      let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
      defer { close(descriptor) }
      var (split, growing) = (RecordingPart(file: name.final), RecordingPart(file: name.recording(2).final))
      (split.end, split.isSplit) = (3, true)
      (growing.number, growing.start, growing.firstReceived) = (2, 3, 3)
      growing.series = .init(start: 0, holesEnd: 0)
      try StreamParts(in: descriptor, OpenFiles()).append(split, growing, to: name.base)
      return try directory.write(name.recording(2).partial, Array("d".utf8))
    }
    try directory.write(name.final, Array("abc".utf8))
    var sidecar = RecordingSidecar(file: name.final)
    (sidecar.stream, sidecar.started) = ("a", "2026-11-21T22:00:00.000Z")
    sidecar.stored = RecordingSidecar.Content(bytes: 3)
    if work == .retention { sidecar.stored?.sha256 = "0" }
    sidecar.received = sidecar.stored
    try directory.write(work == .digests ? name.pendingSidecar : name.sidecar, Array(sidecar.text.utf8))
  }

  private static func begin(_ work: Work, _ store: FileStore) throws {
    switch work {
    case .digests: store.completeSidecar(name)
    case .retention: store.beginRetention { _ in }
    case .split, .splitAgain:
      // If nothing is synced, this thread performs the steps.
      try NamedThread("finder") { try? store.findUnfinished { _, _ in } }.detach()
    }
  }

  /// Ends the server while its worker waits at a gate. Returns how many still wait there when the directory is free.
  private static func end(_ store: FileStore) throws -> UInt {
    let waiters = try EventLog<UInt>()
    try NamedThread("end") {
      store.unlock()
      waiters.append(open_gate_waiters() + unlink_gate_waiters())
    }.detach()
    // Only a server that does not wait for its worker ends in this time.
    poll(nil, 0, 100)
    open_gate_open()
    unlink_gate_open()
    return try waiters.first("the end of the server") { _ in true }
  }

  @Test("no other server uses the directory while a sidecar is written")
  func written() async {
    await #expect(processExitsWith: .success) {
      for work in Work.allCases {
        for durability in Durability.allCases {
          let directory = TemporaryDirectory()
          try EndedServerTests.leave(work, in: directory)
          let retention = RetentionState(
            RecordingRetention(longestAge: .seconds(1000)), RetentionState.Clock(isSynchronized: { true }))
          let store = try EndedServerTests.store(directory, durability, work == .retention ? retention : nil)
          open_gate_close("/" + EndedServerTests.name.newSidecar)
          try EndedServerTests.begin(work, store)
          try waitUntil("\(work), \(durability): the sidecar is opened") { open_gate_waiters() == 1 }
          let left = try EndedServerTests.end(store)
          try require(left == 0, "\(work), \(durability): the directory is free while the sidecar is written")
          let next = try EndedServerTests.store(directory, durability)
          try next.findUnfinished { _, _ in }
          try waitUntil("\(work), \(durability): the sidecar is complete") {
            directory.exists(EndedServerTests.name.sidecar) && !directory.exists(EndedServerTests.name.pendingSidecar)
          }
          let sidecar = try RecordingSidecar(parsing: try directory.contents(EndedServerTests.name.sidecar))
          try require(sidecar.stored?.sha256 != nil, "\(work), \(durability): \(sidecar)")
          let bytes = try directory.text(EndedServerTests.name.final)
          try require(bytes == "abc" && !directory.exists(EndedServerTests.name.gaps), "\(work), \(durability)")
        }
      }
    }
  }

  /// What retention does with a recording.
  private enum Move: CaseIterable {
    /// Moves it away, to remove it.
    case away
    /// Moves its sidecar back, because a killed server has moved only that.
    case back
    /// Removes its file, which was moved away.
    case removed
  }

  /// A complete recording in a directory, on which `move` is due.
  private static func leave(_ move: Move, in directory: TemporaryDirectory) throws {
    var sidecar = RecordingSidecar(file: name.final)
    (sidecar.ended, sidecar.isClockSynchronized) = ("2020-01-01T00:00:00.000Z", true)
    sidecar.stored = RecordingSidecar.Content(bytes: 3, sha256: "0")
    sidecar.received = sidecar.stored
    if move != .away { try require(mkdir("\(directory.path)/.removing", 0o700) == 0, "mkdir") }
    try directory.write(move == .removed ? ".removing/\(name.final)" : name.final, Array("abc".utf8))
    guard move != .removed else { return }
    try directory.write(move == .back ? ".removing/\(name.sidecar)" : name.sidecar, Array(sidecar.text.utf8))
  }

  @Test("no other server uses the directory while retention moves or removes a recording")
  func moved() async {
    await #expect(processExitsWith: .success) {
      for move in Move.allCases {
        let directory = TemporaryDirectory()
        try EndedServerTests.leave(move, in: directory)
        let clock = RetentionState.Clock(isSynchronized: {
          // The recordings are listed, and the rules are about to be applied.
          open_gate_close("/.removing")
          return true
        })
        let retention = RetentionState(RecordingRetention(longestAge: .seconds(1)), clock)
        let store = try EndedServerTests.store(directory, .none, move == .away ? retention : nil)
        switch move {
        case .away: break
        case .back: open_gate_close("/.removing")
        case .removed: unlink_gate_close("/.removing/" + EndedServerTests.name.final)
        }
        store.beginRetention { _ in }
        try waitUntil("\(move): the worker is about to do it") { open_gate_waiters() + unlink_gate_waiters() == 1 }
        let left = try EndedServerTests.end(store)
        try require(left == 0, "\(move): the directory is free meanwhile")
        let hasRecording = directory.exists(EndedServerTests.name.final)
        try require(hasRecording == (move == .back), "\(move): \(try allNames(in: directory.path))")
        try require(directory.exists(EndedServerTests.name.sidecar) == hasRecording, "\(move): its sidecar")
      }
    }
  }

  /// Why a recording that an earlier server has split off is unreliable.
  private enum Damage: CaseIterable {
    /// The log promises a byte that the disk lacks.
    case torn
    /// The disk refuses to sync it.
    case refused
  }

  @Test("no other server uses the directory while the server records that a split recording is unreliable")
  func unreliable() async {
    await #expect(processExitsWith: .success) {
      for damage in Damage.allCases {
        let directory = TemporaryDirectory()
        try EndedServerTests.leave(.split, in: directory)
        if damage == .torn { try directory.write(EndedServerTests.name.partial, Array("ab".utf8)) }
        let store = try EndedServerTests.store(directory, damage == .torn ? .none : .interval)
        if damage == .refused { sync_gate_fail(EIO) }
        open_gate_close("/" + EndedServerTests.name.gaps)
        try EndedServerTests.begin(.split, store)
        try waitUntil("\(damage): the record of its gaps is opened") { open_gate_waiters() == 1 }
        let left = try EndedServerTests.end(store)
        sync_gate_fail(0)
        try require(left == 0, "\(damage): the directory is free meanwhile")
        let gaps = try directory.text(EndedServerTests.name.gaps)
        try require(gaps.contains("not-synced"), "\(damage): \(gaps)")
      }
    }
  }

  @Test("a sidecar that waits for the disk when the server ends is the business of the next server")
  func waiting() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try EndedServerTests.leave(.digests, in: directory)
      let (name, link) = (EndedServerTests.name, EndedServerTests.link)
      let store = try EndedServerTests.store(directory, .interval)
      sync_gate_close()
      store.completeSidecar(name)
      try waitUntil("the sidecar is on its way to the disk") { sync_gate_calls() > 0 }
      store.unlock()
      // It does not wait for the disk, and so overtakes the first one.
      let next = try EndedServerTests.store(directory, .none)
      try next.findUnfinished { _, _ in }
      try waitUntil("the next server has completed it") {
        directory.exists(name.sidecar) && !directory.exists(name.pendingSidecar)
      }
      let before = try directory.contents(name.sidecar)
      try require(directory.exists(link), "it has no link")
      sync_gate_open()
      let isOver = try EventLog<Bool>()
      store.worker.execute { isOver.append(true) }
      _ = try isOver.first("the worker of the first server has done all") { _ in true }
      try require(directory.exists(link), "the link is gone")
      try require(try directory.contents(name.sidecar) == before, "the sidecar has changed")
    }
  }
}
