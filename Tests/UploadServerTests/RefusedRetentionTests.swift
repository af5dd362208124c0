// Tests retention on a disk that refuses the removal of a recording, or that does not answer for a while.

import EventLoops
import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Synchronization
import Testing

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

@Suite("Retention on a disk that refuses")
struct RefusedRetentionTests {
  /// A store that removes all recordings while the clock is synchronized, because the disk has never enough free space.
  private final class Retained {
    let directory = TemporaryDirectory()
    let events: EventLog<ServerEvent>
    let store: FileStore
    private let retention: RetentionState
    private let clock: Clock

    private final class Clock: Sendable {
      let isSynchronized: Atomic<Bool>
      init(_ isSynchronized: Bool) { self.isSynchronized = Atomic(isSynchronized) }
    }

    /// - Parameters:
    ///   - recordings: the names of recordings without extension, the oldest first.
    ///   - removes: whether the clock is synchronized from the start.
    init(_ recordings: String..., removes: Bool) throws {
      events = try EventLog<ServerEvent>()
      let clock = Clock(removes)
      self.clock = clock
      for (index, base) in recordings.enumerated() { try Self.write(base, index, in: directory) }
      retention = RetentionState(
        RecordingRetention(freeSpace: .percent(100)),
        RetentionState.Clock(isSynchronized: { clock.isSynchronized.load(ordering: .acquiring) }))
      store = try FileStore(in: directory, hasSidecars: true, retention: retention)
    }

    private static func write(_ base: String, _ index: Int, in directory: TemporaryDirectory) throws {
      try directory.write(base + ".txt", Array("abc".utf8))
      let hole = GapRecord(offset: 1, length: 1, cause: .notReceived)
      try directory.write(base + ".gaps", Array(hole.jsonLine.utf8))
      var sidecar = RecordingSidecar(file: base + ".txt")
      sidecar.firstSeen = WallClock(seconds: 1_700_000_000 + Int64(index)).iso8601
      sidecar.stored = RecordingSidecar.Content(bytes: 3, sha256: String(repeating: "0", count: 64))
      try directory.write(base + ".sidecar", Array(sidecar.text.utf8))
    }

    func write(_ base: String) throws { try Self.write(base, 10, in: directory) }

    func begin() {
      let events = events
      store.beginRetention { events.append($0) }
    }

    func synchronizeClock() { clock.isSynchronized.store(true, ordering: .releasing) }

    /// Waits for a warning that contains this text.
    func awaitWarning(_ text: String) throws {
      try events.first("a warning about \(text)") { $0.kind == .warning && $0.reason?.contains(text) == true }
    }

    /// The recordings that retention knows, without extension.
    func known() throws -> Set<String> {
      let answers = try EventLog<Set<String>>()
      let retention = retention
      store.worker.executeSlice { answers.append(Set(retention.ledger.recordings.keys)) }
      return try answers.wait("the ledger") { $0.first }
    }

    /// Waits until all selected recordings are removed or refused.
    func awaitRemovals() throws {
      let retention = retention
      try waitUntil("retention has finished") {
        let answers = try EventLog<Bool>()
        store.worker.executeSlice { answers.append(retention.isAtWork) }
        return try !answers.wait("the state of retention") { $0.first }
      }
    }

    /// Whether nothing of a recording is missing or hidden.
    func isWhole(_ base: String) -> Bool {
      [".txt", ".gaps", ".sidecar"].allSatisfy { directory.exists(base + $0) }
        && [".gaps", ".sidecar"].allSatisfy { !directory.exists(".\(base)\($0)") }
    }
  }

  @Test("a recording that cannot be moved away is reported once, stays whole, and is removed as soon as it can be")
  func obstacle() throws {
    let retained = try Retained("a", removes: true)
    let (removing, obstacle) = (retained.directory.path + "/.removing", retained.directory.path + "/.removing/a.txt")
    try #require(mkdir(removing, 0o700) == 0 && mkdir(obstacle, 0o700) == 0)
    retained.begin()
    try retained.awaitWarning("cannot remove a.txt")
    try retained.awaitRemovals()
    for _ in 0..<2 {
      retained.store.applyRetention()
      try retained.awaitRemovals()
      #expect(retained.isWhole("a"))
    }
    let warnings = retained.events.all.filter { $0.reason?.contains("cannot remove a.txt") == true }
    #expect(warnings.count == 1, "\(warnings)")
    let kept = retained.events.all.filter { $0.reason?.contains("still take room") == true }
    #expect(kept.count == 1, "\(kept)")
    try #require(rmdir(obstacle) == 0)
    retained.store.applyRetention()
    let removed = try retained.events.wait(.removed)
    #expect(removed.file == "a.txt" && !retained.directory.exists("a.txt"))
  }

  @Test("a recording whose sidecar cannot be read now is not removed now, and not tried again at once")
  func unreadableSidecar() async {
    await #expect(processExitsWith: .success) {
      let retained = try Retained("a", removes: false)
      retained.begin()
      try retained.awaitWarning("clock")
      open_gate_fail(EMFILE, "/a.sidecar")
      retained.synchronizeClock()
      retained.store.applyRetention()
      try retained.awaitRemovals()
      try require(open_gate_failures() >= 2, "\(open_gate_failures()) attempts to read it")
      let known = try retained.known()
      try require(known == ["a"] && retained.isWhole("a"), "\(known)")
      open_gate_fail(0, "")
      retained.store.applyRetention()
      try retained.events.wait(.removed)
    }
  }

  @Test("a recording that an operator removes while others are removed is forgotten")
  func removedMeanwhile() async {
    await #expect(processExitsWith: .success) {
      let retained = try Retained("a", "b", removes: true)
      unlink_gate_close("/.removing/a.txt")
      // If an expectation fails, the store must not wait for a disk that hangs.
      defer { unlink_gate_open() }
      retained.begin()
      try waitUntil("the disk removes the first one") { unlink_gate_waiters() == 1 }
      try require(unlink(retained.directory.path + "/b.txt") == 0, "unlink b.txt")
      unlink_gate_open()
      try retained.awaitRemovals()
      let known = try retained.known()
      try require(known.isEmpty, "\(known)")
      let removed = retained.events.all.filter { $0.kind == .removed }.map(\.file)
      try require(removed == ["a.txt"], "\(removed)")
    }
  }

  @Test(
    "a recording that the disk refuses to remove in its place keeps its sidecar and its gaps",
    .enabled(if: disk_faults_are_possible() != 0))
  func inPlace() async {
    await #expect(processExitsWith: .success) {
      let retained = try Retained("a", removes: true)
      disk_faults_begin(retained.directory.path)
      // There is no room for a directory.
      disk_faults_fail(DISK_MAKE_DIRECTORY, 1, ENOSPC)
      unlink_gate_fail(EIO, "/a.txt")
      retained.begin()
      try retained.awaitWarning("cannot remove a.txt")
      try retained.awaitRemovals()
      try require(!retained.directory.exists(".removing") && unlink_gate_failures() == 1, "it was moved away")
      try require(retained.isWhole("a"), "\(retained.directory.names)")
      unlink_gate_fail(0, "")
      retained.store.applyRetention()
      try retained.events.wait(.removed)
    }
  }

  @Test("recordings that cannot be listed now are listed later")
  func unlisted() async {
    await #expect(processExitsWith: .success) {
      let retained = try Retained("a", removes: false)
      let last = retained.directory.path.split(separator: "/").last ?? ""
      open_gate_fail(EMFILE, "/\(last)/.")
      retained.begin()
      try retained.awaitWarning("cannot be listed")
      open_gate_fail(0, "")
      retained.store.applyRetention()
      try waitUntil("it is listed") { try retained.known() == ["a"] }
    }
  }

  @Test("a recording that cannot be read when it is complete is counted later")
  func uncounted() async {
    await #expect(processExitsWith: .success) {
      let retained = try Retained("a", removes: false)
      retained.begin()
      // All are listed then.
      try retained.awaitWarning("clock")
      try retained.write("b")
      open_gate_fail(EMFILE, "/b.sidecar")
      let (store, isOver) = (retained.store, try EventLog<Bool>())
      store.worker.executeSlice {
        store.countRetained(StreamName(base: "b"))
        isOver.append(true)
      }
      _ = try isOver.first("the attempt is over") { _ in true }
      try require(open_gate_failures() > 0, "it was read")
      open_gate_fail(0, "")
      store.applyRetention()
      try waitUntil("it is counted") { try retained.known() == ["a", "b"] }
    }
  }
}
