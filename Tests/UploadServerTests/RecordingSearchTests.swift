// Tests the search for what an earlier server has left: a disk that fails for a moment must not make the server leave
// it until its next start.

import CallCounter
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

@Suite("The search for what an earlier server has left")
struct RecordingSearchTests {
  private enum Trouble: CaseIterable {
    /// The list of the logs.
    case logs, brokenOffLogs
    /// The list of the owners' records.
    case owners
    /// The log of the stream that was split.
    case log
    /// The status of the silent recording.
    case status
    /// The access to the split-off recording.
    case splitOff

    func begin(_ code: Int32) {
      switch self {
      case .logs: open_gate_fail(code, "/.parts")
      case .brokenOffLogs: list_gate_fail(code, "/.parts", 2)
      case .owners: open_gate_fail(code, "/.owners")
      case .log: open_gate_fail(code, "/.parts/s-1")
      case .status: status_gate_fail(code, "/k-a.part")
      case .splitOff: open_gate_fail(code, "/s-1.part")
      }
    }

    /// How many calls have failed, of those that are counted.
    var failureCount: UInt {
      switch self {
      case .brokenOffLogs: UInt.max
      case .status: status_gate_failures()
      default: open_gate_failures()
      }
    }

    static func end() {
      open_gate_fail(0, "")
      list_gate_fail(0, "", 0)
      status_gate_fail(0, "")
    }
  }

  /// Writes a silent recording, a recording without its sidecar, a stream that was split, and one that was discarded.
  private static func leave(in directory: TemporaryDirectory) throws {
    try directory.write("k-a.part", Array("silent".utf8))
    try directory.write("t-1.txt", Array("abc".utf8))
    var sidecar = RecordingSidecar(file: "t-1.txt")
    sidecar.stored = RecordingSidecar.Content(bytes: 3)
    sidecar.received = sidecar.stored
    try directory.write(".t-1.sidecar", Array(sidecar.text.utf8))
    try leaveSplit(in: directory)
    try directory.write("d-1.part", Array("discarded".utf8))
    let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
    defer { close(descriptor) }
    var discarded = RecordingPart(file: "d-1.bin")
    discarded.isDiscarded = true
    try StreamParts(in: descriptor, OpenFiles()).append(discarded, to: "d-1")
    mkdir(directory.path + "/.owners", 0o700)
  }

  private static func leaveSplit(in directory: TemporaryDirectory) throws {
    try directory.write("s-1.part", Array("abc".utf8))
    try directory.write("s-1~2.part", Array("d".utf8))
    let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
    defer { close(descriptor) }
    var (split, growing) = (RecordingPart(file: "s-1.bin"), RecordingPart(file: "s-1~2.bin"))
    (split.end, split.isSplit) = (3, true)
    (growing.number, growing.start, growing.firstReceived) = (2, 3, 3)
    growing.series = .init(start: 0, holesEnd: 0)
    try StreamParts(in: descriptor, OpenFiles()).append(split, growing, to: "s-1")
  }

  private static func server(_ directory: TemporaryDirectory) throws -> TestServer {
    try TestServer(in: directory) {
      $0.finishAfter = .milliseconds(50)
      $0.maintenancePause = .milliseconds(5)
    }
  }

  /// Does not list the directory, because the test counts the calls of the server.
  private static func awaitAll(_ directory: TemporaryDirectory, _ context: String) throws {
    try waitUntil("all is finished: \(context)") {
      ["k-a", "t-1", "s-1", "s-1~2"].allSatisfy { directory.exists($0 + ".sidecar") }
        && ["k-a.part", "s-1.part", "s-1~2.part", "d-1.part", ".parts/d-1", ".t-1.sidecar"]
          .allSatisfy { !directory.exists($0) }
    }
    try require(try directory.text("k-a.bin") == "silent", "\(context)")
    try require(try directory.text("s-1.bin") + directory.text("s-1~2.bin") == "abcd", "\(context)")
  }

  @Test("after the disk has refused something for a while, the server finishes everything without a restart")
  func refused() async {
    await #expect(processExitsWith: .success) {
      for trouble in Trouble.allCases {
        for code in [EIO, ENOMEM, EMFILE] {
          let directory = TemporaryDirectory()
          try RecordingSearchTests.leave(in: directory)
          trouble.begin(code)
          let test = try RecordingSearchTests.server(directory)
          // The trouble lasts for several attempts.
          try waitUntil("\(trouble), \(code): several attempts") { trouble.failureCount > 3 }
          if trouble != .splitOff {
            let warning = try test.events.wait(.warning)
            try require(
              warning.reason?.contains("cannot find unfinished recordings") == true, "\(trouble), \(code): \(warning)")
          }
          Trouble.end()
          try RecordingSearchTests.awaitAll(directory, "\(trouble), \(code)")
          test.stop()
        }
      }
    }
  }

  @Test(
    "each failure to read the next name of a directory delays the search and does not end it",
    arguments: [EIO, EINTR])
  func eachName(_ code: Int32) async {
    await #expect(processExitsWith: .success) { [code = code as Int32] in
      var (number, count): (UInt, UInt) = (0, 1)
      while number <= count {
        let directory = TemporaryDirectory()
        try RecordingSearchTests.leave(in: directory)
        disk_faults_begin(directory.path)
        // The first run shows how many calls there are.
        if number > 0 { disk_faults_fail(DISK_LIST, number, code) }
        let test: TestServer
        do {
          test = try RecordingSearchTests.server(directory)
        } catch {
          // The fault was in what a server must read before it starts.
          try require(code != EINTR, "call \(number): \(error)")
          test = try RecordingSearchTests.server(directory)
        }
        try RecordingSearchTests.awaitAll(directory, "call \(number) fails with \(code)")
        count = max(count, disk_faults_calls(DISK_LIST))
        disk_faults_begin("")
        test.stop()
        number += 1
      }
    }
  }

  @Test("a directory is read on after an interrupt")
  func interrupted() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      for name in ["a", "b", "c"] { try directory.write(name, []) }
      let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
      disk_faults_begin(directory.path)
      let names = try DirectoryNames(of: descriptor)
      disk_faults_fail(DISK_LIST, 3, EINTR)
      let found = try names.next(10)
      try require(found.sorted() == ["a", "b", "c"], "\(found)")
    }
  }

  @Test("a recording may exist as long as the list of all recordings is broken off, and not after it was made again")
  func brokenOffList() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      for number in 0..<5 { try directory.write("r-\(number).xyz", []) }
      let descriptor = open(directory.path, O_RDONLY | O_DIRECTORY)
      let (recordings, worker) = (CompleteRecordings(in: descriptor), BackgroundWorker())
      let (absent, listed) = (StreamName(base: "r-9"), StreamName(base: "r-3"))
      func failure() -> Int32 {
        do throws(SystemError) {
          return try recordings.find(absent) == nil ? 0 : -1
        } catch {
          return error.code
        }
      }
      list_gate_fail(EIO, directory.path, 2)
      try recordings.scan(on: worker, patience: .zero) { _, _ in }
      try waitUntil("the first list is broken off") { failure() == EIO }
      recordings.scanAgain(on: worker) { _, _ in }
      try waitUntil("the second list is broken off") { failure() == EIO }
      list_gate_fail(0, "", 0)
      if disk_faults_are_possible() != 0 {
        disk_faults_begin(directory.path)
        disk_faults_fail(DISK_OPEN, 1, ENOMEM)
        recordings.scanAgain(on: worker) { _, _ in }
        try require(failure() == ENOMEM, "the third list has begun: \(failure())")
        disk_faults_begin("")
      }
      recordings.scanAgain(on: worker) { _, _ in }
      try waitUntil("the last list is complete") { failure() == 0 }
      let found = try recordings.find(listed)?.final
      try require(found == "r-3.xyz", "\(found ?? "nothing")")
    }
  }

  @Test("a search that is repeated leaves alone what the first one has begun to finish")
  func repeated() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try RecordingSearchTests.leaveSplit(in: directory)
      let store = try FileStore(
        path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
        UploadUsage(.init()))
      // It is opened once to find out what is synced.
      open_gate_close_after("/s-1.part", 1)
      let ends = try EventLog<String>()
      try NamedThread("first") {
        try? store.findUnfinished { _, _ in }
        ends.append("first")
      }.detach()
      try waitUntil("the first search opens the recording") { open_gate_waiters() == 1 }
      var found: [String] = []
      try store.findUnfinished { name, _ in found.append(name.partial) }
      try require(found == ["s-1~2.part"], "\(found)")
      try require(open_gate_waiters() == 1 && ends.all.isEmpty, "the second search waits for the first one")
      open_gate_open()
      _ = try ends.first("the end of the first search") { _ in true }
      try waitUntil("it is finished") { directory.exists("s-1.sidecar") && directory.exists("s-1.bin") }
    }
  }

  @Test("a search at the time of a removal on a full disk leaves no sidecar without its recording")
  func removal() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      try directory.write("r-1.txt", Array("abc".utf8))
      var sidecar = RecordingSidecar(file: "r-1.txt")
      (sidecar.ended, sidecar.isClockSynchronized) = ("2020-01-01T00:00:00.000Z", true)
      sidecar.stored = RecordingSidecar.Content(bytes: 3, sha256: "0")
      sidecar.received = sidecar.stored
      try directory.write("r-1.sidecar", Array(sidecar.text.utf8))
      let retention = RetentionState(
        RecordingRetention(longestAge: .seconds(1)), RetentionState.Clock(isSynchronized: { true }))
      let store = try FileStore(in: directory, hasSidecars: true, retention: retention)
      // There is no space for the directory into which the recording would be moved.
      disk_faults_begin(directory.path)
      disk_faults_fail(DISK_MAKE_DIRECTORY, 1, ENOSPC)
      unlink_gate_close("/r-1.txt")
      let ends = try EventLog<String>()
      store.beginRetention { event in
        if event.kind == .removed { ends.append("removal") }
      }
      try waitUntil("the recording is about to be removed") { unlink_gate_waiters() == 1 }
      try require(directory.exists(".r-1.sidecar"), "its sidecar is not hidden")
      try NamedThread("search") {
        try? store.findUnfinished { _, _ in }
        ends.append("search")
      }.detach()
      // Only a search that does not wait for the worker ends in this time.
      poll(nil, 0, 100)
      unlink_gate_open()
      for end in ["search", "removal"] { try ends.first("the end of the \(end)") { $0 == end } }
      let left = try allNames(in: directory.path).filter { $0.contains("r-1") }
      try require(left.isEmpty, "left: \(left)")
    }
  }

  @Test("a search that gets no thread is reported once, and begins with a later round of maintenance")
  func noThread() throws {
    guard call_counter_works() else { return }
    let directory = TemporaryDirectory()
    try directory.write("k-a.part", Array("abc".utf8))
    let store = try FileStore(
      path: directory.path, durability: .none, closedLifetime: .zero, hasSidecars: true, files: OpenFiles(),
      UploadUsage(.init()))
    let (found, errors) = (try EventLog<String>(), try EventLog<String>())
    let search = RecordingSearch(
      store, found: { name, _ in found.append(name.partial) }, gone: { found.append("gone: \($0)") },
      failed: { errors.append("\($0)") })
    refuse_next_thread_of_this_thread()
    search.begin(SearchPlan.Search.allCases)
    #expect(errors.all.count == 1)
    refuse_next_thread_of_this_thread()
    search.maintain()
    #expect(errors.all.count == 1 && found.all.isEmpty)
    // The pause has grown to two rounds.
    search.maintain()
    search.maintain()
    #expect(try found.first("the recording") { _ in true } == "k-a.part")
    #expect(errors.all.count == 1)
  }

  // MARK: The plan

  /// The searches of one attempt, of which some fail.
  private func attempt(_ plan: inout SearchPlan, failing: [SearchPlan.Search]) -> [SearchPlan.Search] {
    var performed: [SearchPlan.Search] = []
    while let search = plan.next() {
      performed.append(search)
      if failing.contains(search) { _ = plan.fail(search, "error") }
    }
    return performed
  }

  @Test("what has failed is repeated after pauses that grow up to the longest, and what has succeeded is not")
  func pauses() {
    var plan = SearchPlan()
    let begins = plan.request(SearchPlan.Search.allCases)
    let first = attempt(&plan, failing: [.unfinished])
    #expect(begins && first == [.removed, .unfinished])
    var pauses: [Int] = []
    for _ in 0..<8 {
      var rounds = 1
      while !plan.round() { rounds += 1 }
      pauses.append(rounds)
      let performed = attempt(&plan, failing: [.unfinished])
      #expect(performed == [.unfinished])
    }
    #expect(pauses == [1, 2, 4, 8, 16, 32, 32, 32])
    while !plan.round() {}
    let last = attempt(&plan, failing: [])
    #expect(last == [.unfinished])
    // Nothing is due, and the shortest pause follows the next failure.
    for _ in 0..<100 {
      let isEarly = plan.round()
      #expect(!isEarly)
    }
    let beginsAgain = plan.request([.removed])
    let next = attempt(&plan, failing: [.removed])
    let isRepeated = plan.round()
    #expect(beginsAgain && next == [.removed] && isRepeated)
  }

  @Test("a search that is requested during an attempt belongs to it, and only one attempt runs at a time")
  func requested() {
    var plan = SearchPlan()
    let begins = plan.request([.unfinished])
    let first = plan.next()
    #expect(begins && first == .unfinished)
    let others = [plan.request([.removed]), plan.round()]
    #expect(others == [false, false])
    let rest = [plan.next(), plan.next()]
    #expect(rest == [.removed, nil])
  }

  @Test("an error is reported once, until its search has succeeded or another error follows")
  func reports() {
    var plan = SearchPlan()
    var reports: [Bool] = []
    for error in ["a", "a", "b", nil, "b"] as [String?] {
      _ = plan.request([.removed])
      while let search = plan.next() { if let error { reports.append(plan.fail(search, error)) } }
    }
    #expect(reports == [true, false, true, true])
  }

  @Test("without a thread, all searches stay due")
  func threadless() {
    var plan = SearchPlan()
    _ = plan.request(SearchPlan.Search.allCases)
    let first = [plan.fail("no thread"), plan.round()]
    #expect(first == [true, true])
    let second = [plan.fail("no thread"), plan.round(), plan.round()]
    #expect(second == [false, false, true])
    let performed = attempt(&plan, failing: [])
    #expect(performed == SearchPlan.Search.allCases)
  }
}
