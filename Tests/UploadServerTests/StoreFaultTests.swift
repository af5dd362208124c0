// Lets each disk call of the server's store fail once, as SQLite does (see "How SQLite Is Tested", section 3).

import ExitTesting
import Glibc
import NetworkTesting
import Recordings
import SyncGate
import Testing

@testable import StreamStore
@testable import UploadServer

@Suite(
  "Each disk call of the server's store fails once", .serialized,
  .enabled(if: disk_faults_are_possible() != 0))
struct StoreFaultTests {
  /// A kind of call, and the error with which one call of this kind fails.
  struct Fault: Sendable, CustomTestStringConvertible {
    var call: disk_call
    var name: String
    var errors: [Int32]
    /// The calls to fail in a short test, unless they are distributed over all calls.
    var calls: [Int]?
    var testDescription: String { name }

    static let all = [
      Fault(call: DISK_OPEN, name: "open", errors: [EIO, EINTR, ENOSPC]),
      Fault(call: DISK_WRITE, name: "write", errors: [ENOSPC, Int32(DISK_SHORT), EIO, EINTR]),
      Fault(call: DISK_READ, name: "read", errors: [EIO, EINTR]),
      Fault(call: DISK_SYNC, name: "sync", errors: [EIO, ENOSPC, EINTR]),
      Fault(call: DISK_RENAME, name: "rename", errors: [EIO, ENOSPC, EINTR]),
      Fault(call: DISK_TRUNCATE, name: "truncate", errors: [EIO, ENOSPC, EINTR]),
      Fault(call: DISK_UNLINK, name: "unlink", errors: [EIO, EINTR]),
      Fault(call: DISK_MAKE_DIRECTORY, name: "make a directory", errors: [ENOSPC, EIO, EINTR]),
      Fault(call: DISK_LIST, name: "list", errors: [EIO, EINTR]),
      Fault(call: DISK_STATUS, name: "status", errors: [EIO, EINTR]),
      Fault(call: DISK_LOCK, name: "lock", errors: [EIO, ENOLCK, EINTR]),
      Fault(call: DISK_ACCESS, name: "access", errors: [EIO, EINTR]),
      Fault(call: DISK_SEEK, name: "seek", errors: [EIO, EINTR]),
      Fault(call: DISK_GET_ATTRIBUTE, name: "get an attribute", errors: [EIO, EINTR, ENOTSUP]),
      Fault(call: DISK_SET_ATTRIBUTE, name: "set an attribute", errors: [ENOSPC, EIO, EINTR, ENOTSUP]),
      // The first one is of a file that one loop has written. Nearly all others are of files that do not exist.
      Fault(call: DISK_OPEN_AGES, name: "open ages", errors: [EIO, EINTR, ENOSPC], calls: [1]),
    ]
  }

  /// The configuration of the server.
  struct Setting {
    var durability: Durability
    var isSplit: Bool
    static let all = Durability.allCases.flatMap { durability in
      [false, true].map { Setting(durability: durability, isSplit: $0) }
    }
  }

  /// Whether to test all errors of all calls, instead of one error of some calls in each setting.
  private static var isLong: Bool { getenv("SLUICE_STORE_FAULTS") != nil }
  /// The kinds of calls to fail, to repeat failed runs.
  private static var kinds: [Int] {
    let only = getenv("SLUICE_STORE_KIND").map { String(cString: $0) }
    return Fault.all.indices.filter { only ?? Fault.all[$0].name == Fault.all[$0].name }
  }
  /// The only call to fail, to repeat failed runs. Nil for all.
  private static var onlyCall: Int? { getenv("SLUICE_STORE_CALL").flatMap { Int(String(cString: $0)) } }

  @Test(
    "acknowledged bytes are on the disk, files that look complete are complete, and no file is left over",
    arguments: kinds)
  func product(index: Int) async throws {
    // Each setting has a process of its own, because the calls are counted per process. They mostly wait.
    let results = await withTaskGroup(of: (String, ExitTest.Result?).self) { group in
      for number in Setting.all.indices {
        group.addTask {
          let result = await #expect(processExitsWith: .success) { [index = index as Int, number = number as Int] in
            reportingErrors { try StoreFaultTests.fail(Fault.all[index], Setting.all[number], number) }
          }
          return ("\(Setting.all[number])", result)
        }
      }
      return await group.reduce(into: []) { $0.append($1) }
    }
    for (setting, result) in results where result?.exitStatus != .exitCode(EXIT_SUCCESS) {
      Issue.record("\(setting): its process failed, and another issue has the reason or the signal")
    }
  }

  private static func fail(_ fault: Fault, _ setting: Setting, _ number: Int) throws {
    var failures: [String] = []
    let plain = try StoreRun(setting, nil)
    try plain.run()
    // Threads change the order, so a run may have some calls more.
    let count = plain.calls(fault.call) + 2
    let errors = isLong ? fault.errors : [fault.errors[(Int(fault.call.rawValue) + number) % fault.errors.count]]
    for error in errors {
      for call in calls(of: fault, count, number) where onlyCall ?? call == call {
        do { try StoreRun(setting, (fault.call, UInt(call), error)).run() } catch { failures.append("\(error)") }
      }
    }
    try require(failures.isEmpty, "\(failures.count) runs failed: \(failures.prefix(5).joined(separator: "\n"))")
  }

  /// The numbers of the calls to fail: all, or some that differ from setting to setting.
  private static func calls(of fault: Fault, _ count: Int, _ number: Int) -> [Int] {
    if isLong { return Array(1...count) }
    if let calls = fault.calls { return calls }
    let step = max(1, count / 4)
    // The remainder, because a kind may have fewer calls than there are settings.
    return Array(stride(from: 1 + number % step, through: count, by: step))
  }
}

/// A server, a live stream, an upload of a file, a cancelled upload, and a stream that begins late.
final class StoreRun {
  private let setting: StoreFaultTests.Setting
  private let fault: (call: disk_call, number: UInt, error: Int32)?
  // In memory, where a sync takes no time. The bytes that no sync has covered are known without a disk.
  private let directory = TemporaryDirectory(in: "/dev/shm")
  private let head = StreamedHead.all[0]
  private let stream: [UInt8]
  private var counts: [UInt] = []
  /// The upload that will be cancelled.
  private var cancelled: String?

  init(_ setting: StoreFaultTests.Setting, _ fault: (call: disk_call, number: UInt, error: Int32)?) throws {
    (self.setting, self.fault) = (setting, fault)
    stream = head.bytes + (0..<2000).map { UInt8(truncatingIfNeeded: ($0 &* 2_654_435_761) >> 11) | 1 }
  }

  func calls(_ call: disk_call) -> Int { Int(counts[Int(call.rawValue)]) }

  private var context: String {
    guard let fault else { return "no fault" }
    let place = String(cString: disk_faults_place()).dropFirst(directory.path.count)
    let cell = "\(setting.durability)\(setting.isSplit ? ", split" : "")"
    return "\(cell), call \(fault.number) of kind \(fault.call.rawValue) fails with \(fault.error) at \(place)"
  }

  /// A server that does not start has reported the reason, which is never an interrupt. The next one starts.
  private func server() throws -> TestServer {
    do {
      return try start()
    } catch {
      let reason = fault.map { String(cString: strerror($0.error)) } ?? "no fault"
      try require(fault?.error != EINTR && "\(error)".contains(reason), "no start: \(error): \(context)")
      return try start()
    }
  }

  private func start() throws -> TestServer {
    try TestServer(in: directory) {
      ($0.durability, $0.threads, $0.maintenancePause) = (setting.durability, 1, .milliseconds(5))
      // After this time the server closes recordings that the disk did not let it remove after a cancellation.
      $0.finishAfter = .seconds(1)
      guard setting.isSplit else { return }
      $0.split = RecordingSplit(size: UInt64(head.bytes.count) + 400)
      $0.split?.leastLength = 0
    }
  }

  func run() throws {
    disk_faults_begin(directory.path)
    if let fault { disk_faults_fail(fault.call, fault.number, fault.error) }
    let number = fault?.number ?? 0
    let client = ContinuingClient(
      try server(), stream, number % 2 == 0 ? 8 : 5, awaitsProgress: (number / 2) % 2 == 1)
    try sendFile(client.test)
    try cancel(client.test)
    try beginLate(client.test)
    for round in 0..<100 where !client.isComplete {
      try client.attempt()
      if round == 2 {
        client.test.stop()
        client.test = try server()
      }
      poll(nil, 0, 5)
    }
    try require(client.isComplete, "it never ends: \(context): \(client.trace)")
    client.test.stop()
    // The next server has finished its work by then.
    let last = try server()
    try waitUntil("all is finished: \(context): \(directory.names) \(client.trace)") {
      directory.names.allSatisfy { !$0.hasSuffix(".part") }
        && directory.names.filter { $0.hasSuffix(".wav") || $0.hasSuffix(".txt") }
          .allSatisfy { directory.exists(String($0.prefix { $0 != "." }) + ".sidecar") }
    }
    last.stop()
    counts = (0..<UInt32(DISK_CALLS.rawValue)).map { disk_faults_calls(disk_call(rawValue: $0)) }
    let context = "\(context): \(client.trace)"
    disk_faults_fail(DISK_OPEN, 0, 0)
    try judge(client, context)
    disk_faults_begin("")
  }

  // MARK: What clients do

  private func sendFile(_ test: TestServer) throws {
    try repeated("a file") {
      let client = try test.connect()
      try client.request("POST", "/file.txt", ["Stream-ID: f"], body: "whole")
      return (200..<300).contains(try client.final().answer.status)
    }
  }

  private func cancel(_ test: TestServer) throws {
    try repeated("an upload to cancel") {
      let client = try test.connect()
      if cancelled == nil {
        try client.request("POST", "/gone.txt", ["Upload-Complete: ?0", "Stream-ID: g"], body: "abc")
        let answer = try client.final().answer
        cancelled = answer.status == 201 ? answer["location"] : nil
        return false
      }
      try client.request("DELETE", cancelled ?? "", version: 8)
      return [204, 404, 410].contains(try client.final().answer.status)
    }
  }

  private func beginLate(_ test: TestServer) throws {
    try repeated("a stream that begins late") {
      let client = try test.connect()
      try client.request("POST", "/late.txt", ["Stream-ID: l", "Stream-Offset: 500"], body: "late")
      return (200..<300).contains(try client.final().answer.status)
    }
  }

  /// Repeats the requests of a client that is refused or loses its connection.
  private func repeated(_ what: String, _ attempt: () throws -> Bool) throws {
    for _ in 0..<20 where (try? attempt()) != true { poll(nil, 0, 5) }
  }

  // MARK: What must be there

  private func judge(_ client: ContinuingClient, _ context: String) throws {
    // Bytes that the disk refused to sync are in a recording that was closed, and its gaps record this. They were not
    // acknowledged, and the client has sent them again, into the next part.
    let closed = Set(directory.names.filter { isMarkedAsUnsynced($0) })
    var dropped: [String] = []
    if setting.durability != .none {
      for name in directory.names where !closed.contains(name) {
        let count = disk_faults_drop("\(directory.path)/\(name)")
        if count > 0 { dropped.append("\(count) bytes of \(name)") }
      }
    }
    // With a durability below `always`, unsynced bytes may be lost, and the client learns this.
    let mayLose = setting.durability == .interval && fault?.call == DISK_SYNC
    if !dropped.isEmpty {
      try require(mayLose, "\(dropped) were never synced: \(context) \(directory.names)")
    } else {
      var problems: [String] = []
      _ = try RecordingVerification(directory: directory.path).run { problems.append($0.jsonLine) }
      try require(problems.isEmpty, "\(problems): \(context)")
      // The acknowledged bytes of a closed recording are there even without the unsynced ones.
      if setting.durability == .always { for name in closed { _ = disk_faults_drop("\(directory.path)/\(name)") } }
      try client.requireStored(in: directory, head: head.bytes.count, unreliable: closed, context)
    }
    let file = closed.contains("file-f.txt") ? "file-f~2.txt" : "file-f.txt"
    try require(try directory.text(file) == "whole", "the file: \(context)")
    // Faults may prevent the others' requests from succeeding, and nothing else may.
    guard fault == nil else { return }
    let names = directory.names
    try require(names.contains("late-l.txt") && !names.contains { $0.hasPrefix("gone-") }, "\(names): \(context)")
  }

  private func isMarkedAsUnsynced(_ name: String) -> Bool {
    let gaps = String(name.prefix { $0 != "." }) + ".gaps"
    guard name != gaps, directory.exists(gaps) else { return false }
    return (try? directory.text(gaps))?.contains("not-synced") == true
  }
}
