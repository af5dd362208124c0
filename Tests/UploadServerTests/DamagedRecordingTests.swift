// Tests a disk that cannot read a recording: the error is reported, and the other recordings get their sidecars.

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

@Suite("Recordings whose sidecars the disk does not let the server complete")
struct DamagedRecordingTests {
  /// Writes a recording of a server that ended before it computed the digests of the 3 bytes.
  private static func write(_ text: String, to base: String, in directory: TemporaryDirectory) throws {
    try directory.write("\(base).txt", Array(text.utf8))
    var sidecar = RecordingSidecar(file: "\(base).txt")
    sidecar.stored = RecordingSidecar.Content(bytes: 3)
    sidecar.received = sidecar.stored
    try directory.write(".\(base).sidecar", Array(sidecar.text.utf8))
  }

  @Test(
    "an error that recurs while digests are computed is reported once with the file, and delays no other recording",
    arguments: [
      (EIO, "Check the disk", 1), (ENOSPC, "Free space", 1), (EFBIG, "Raise the limit", 1),
      (ESTALE, "check its file server", 1),
      (EIO, "Check the disk", 3), (ENOSPC, "Free space", 3), (ESTALE, "check its file server", 3),
    ])
  func reported(code: Int32, remedy: String, threads: Int) async {
    await #expect(processExitsWith: .success) {
      [code = code as Int32, remedy = remedy as String, threads = threads as Int] in
      let directory = TemporaryDirectory()
      for base in ["d-1", "o-1"] { try DamagedRecordingTests.write("abc", to: base, in: directory) }
      read_gate_fail(code, "/d-1.txt")
      let test = try TestServer(in: directory) {
        $0.maintenancePause = .milliseconds(5)
        if threads > 1 { $0.threads = threads }
      }
      let warning = try test.events.wait(.warning)
      try require(warning.file == "d-1.txt" && warning.reason?.contains(remedy) == true, "\(warning)")
      try require(read_gate_failures() >= UnfinishedRecordings.patience, "\(read_gate_failures()) attempts")
      try waitUntil("the other recording has its sidecar") { directory.exists("o-1.sidecar") }
      let count = read_gate_failures()
      try waitUntil("it is tried again") { read_gate_failures() > count }
      try require(test.events.all.count { $0.kind == .warning } == 1, "\(test.events.all)")
      read_gate_fail(0, "")
      try waitUntil("the sidecar follows") { directory.exists("d-1.sidecar") && !directory.exists(".d-1.sidecar") }
      test.stop()
    }
  }

  @Test("a recording that something else has changed before its digests exist is reported, and may be restored")
  func changed() throws {
    let directory = TemporaryDirectory()
    try Self.write("ab", to: "d-1", in: directory)
    let test = try TestServer(in: directory) { $0.maintenancePause = .milliseconds(5) }
    let warning = try test.events.wait(.warning)
    let reason = warning.reason ?? ""
    #expect(warning.file == "d-1.txt" && reason.contains("something else has changed d-1.txt"), "\(warning)")
    #expect(reason.contains("Restore the recording"), "\(warning)")
    #expect(!directory.exists("d-1.sidecar"))
    try directory.write("d-1.txt", Array("abc".utf8))
    try waitUntil("the sidecar follows") { directory.exists("d-1.sidecar") && !directory.exists(".d-1.sidecar") }
    #expect(test.events.all.count { $0.kind == .warning } == 1, "\(test.events.all)")
    test.stop()
  }

  /// The rounds after each of these failures until the next attempt, and the numbers of the failures that are reported.
  private static func pauses(_ errors: [Int32?]) -> (pauses: [Int], reported: [Int]) {
    var recordings = UnfinishedRecordings()
    let recording = UnfinishedRecording(fileBase: "k-a", isSplit: false)
    var (pauses, reported): ([Int], [Int]) = ([], [])
    for (number, code) in errors.enumerated() {
      let error = code.map { SystemError(operation: "read", code: $0) }
      if recordings.postpone(recording, after: error) { reported.append(number) }
      var rounds = 1
      while recordings.round() != [recording] { rounds += 1 }
      pauses.append(rounds)
    }
    return (pauses, reported)
  }

  @Test("the pauses grow up to the longest one, which is longer for a damaged disk, and a shortage has none")
  func pauses() {
    let full = Self.pauses([Int32?](repeating: ENOSPC, count: 10))
    #expect(full.pauses == [1, 1, 2, 4, 8, 16, 32, 32, 32, 32] && full.reported == [2], "\(full)")
    let damaged = Self.pauses([Int32?](repeating: EIO, count: 14))
    #expect(damaged.pauses == [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024], "\(damaged)")
    #expect(damaged.reported == [2])
    let short = Self.pauses([EMFILE, ENOMEM, nil, EMFILE, nil])
    #expect(short.pauses == [1, 1, 1, 1, 1] && short.reported == [], "\(short)")
  }

  @Test("a search that is repeated does not read a recording again before its pause is over")
  func repeatedSearch() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try DamagedRecordingTests.write("abc", to: "d-1", in: directory)
      let store = try FileStore(
        path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
        UploadUsage(.init()))
      read_gate_fail(EIO, "/d-1.txt")
      try store.findUnfinished { _, _ in }
      let recording = UnfinishedRecording(fileBase: "d-1", isSplit: false)
      try waitUntil("it is postponed") { store.unfinished.withLock { $0.isPostponed(recording) } }
      let count = read_gate_failures()
      try store.findUnfinished { _, _ in }
      // All work of the search comes before this.
      let isOver = try EventLog<Bool>()
      store.worker.executeUnhurried(remaining: .max) { isOver.append(true) }
      try isOver.first("the end of its work") { _ in true }
      try require(read_gate_failures() == count, "\(read_gate_failures()) reads")
      store.finishUnfinished()
      try waitUntil("it is tried again") { read_gate_failures() > count }
    }
  }

  @Test("a recording that was finished begins anew, and others do not wait for one that pauses")
  func settled() {
    var recordings = UnfinishedRecordings()
    let error = SystemError(operation: "read", code: EIO)
    let (first, other) = (
      UnfinishedRecording(fileBase: "k-a", isSplit: false), UnfinishedRecording(fileBase: "k-b", isSplit: false)
    )
    for _ in 0..<5 { _ = recordings.postpone(first, after: error) }
    let isReported = recordings.postpone(other, after: error)
    let due = [recordings.round(), recordings.round()]
    #expect(!isReported && due == [[other], []])
    recordings.settle(first)
    let reports = (0..<4).map { _ in recordings.postpone(first, after: error) }
    #expect(reports == [false, false, true, false])
  }
}
