// The times of the queue when the clock is set, in one process and between two.

import EventLoops
import NetworkTesting
import Testing
import TransferClient

@testable import TransferAgent

@Suite("The queue and a clock that is set")
struct QueueClockTests {
  @Test("if the clock is set back, a transfer and a deletion that wait for their next attempt do not wait longer")
  func clockSetBack() {
    var queue = TransferQueue()
    for key in ["cancelled", "resting"] {
      let request = TransferRequest(key: key, url: "http://h/", path: "/x")
      _ = queue.handle(.submitted(request, version: "v", size: 1), now: 1_000_000_000)
    }
    _ = queue.handle(.created(1, resumeData: "r"), now: 1_000_000_000)
    _ = queue.handle(.cancel(1), now: 1_000_000_000)
    _ = queue.handle(.finished(1, .stopped(resumeData: "r")), now: 1_000_000_000)
    _ = queue.handle(.abandoned(1, isDone: false), now: 1_000_000_000)
    _ = queue.handle(.finished(2, .postponed("no descriptor")), now: 1_000_000_000)
    #expect(queue.running.isEmpty, "both wait")
    let actions = queue.handle(.timeCame, now: 1_000_000_000 - 3_600_000 + 11_000)
    #expect(actions.contains { if case .start(let transfer) = $0 { transfer.id == 2 } else { false } })
    #expect(actions.contains { if case .abandon(let transfer) = $0 { transfer.id == 1 } else { false } })
  }

  @Test(
    "if the clock is set, transfers have the same time left, and results stay as long",
    arguments: [1_500_000_000_000, -300_000_000_000] as [Int64])
  func clockSet(by step: Int64) {
    let (start, hour): (Int64, Int64) = (1_000_000_000_000, 3_600_000)
    var queue = TransferQueue()
    func submit(_ key: String, at now: Int64, deadline: Int64? = nil) {
      var request = TransferRequest(key: key, url: "http://h/", path: "/x")
      request.deadline = deadline
      _ = queue.handle(.submitted(request, version: "v", size: 1), now: now)
    }
    submit("unawaited", at: start)
    _ = queue.handle(.finished(1, .completed(TransferResult(.completed))), now: start)
    submit("acknowledged", at: start)
    _ = queue.handle(.finished(2, .completed(TransferResult(.completed))), now: start)
    _ = queue.handle(.acknowledge(2), now: start)
    submit("limited", at: start, deadline: start + hour)
    submit("cancelled", at: start)
    _ = queue.handle(.created(4, resumeData: "r"), now: start)
    _ = queue.handle(.cancel(4), now: start)
    _ = queue.handle(.finished(4, .stopped(resumeData: "r")), now: start)

    let now = start + step
    #expect(!queue.handle(.clockSet(by: step), now: now).contains(.stop(3)))
    submit("next", at: now + 1)
    #expect(queue.transfers[1]?.result?.ended == now && queue.id(ofKey: "acknowledged") == 2)
    _ = queue.handle(.abandoned(4, isDone: false), now: now + 1)
    #expect(queue.abandoned[4]?.time == now)
    _ = queue.handle(.timeCame, now: now + hour - 1)
    #expect(queue.transfers[3]?.hasEnded == false)
    _ = queue.handle(.timeCame, now: now + hour)
    #expect(queue.transfers[3]?.result?.cause == "timedOut")
    submit("last", at: now + TransferQueue.resultAge)
    #expect(queue.transfers[1] == nil, "after the same time")
  }

  @Test(
    "if the clock is set, times that were recorded in an earlier boot stay",
    arguments: [1_500_000_000_000, -2_592_000_000] as [Int64])
  func clockSetAfterRestart(by step: Int64) {
    let (start, hour): (Int64, Int64) = (1_000_000_000_000, 3_600_000)
    var first = TransferQueue()
    for key in ["unawaited", "acknowledged", "limited", "cancelled"] {
      var request = TransferRequest(key: key, url: "http://h/", path: "/x")
      request.deadline = start + hour
      _ = first.handle(.submitted(request, version: "v", size: 1), now: start)
    }
    for id in [1, 2] as [Int64] {
      _ = first.handle(.finished(id, .completed(TransferResult(.completed))), now: start)
    }
    _ = first.handle(.acknowledge(2), now: start)
    _ = first.handle(.created(4, resumeData: "r"), now: start)
    _ = first.handle(.cancel(4), now: start)
    _ = first.handle(.finished(4, .stopped(resumeData: "r")), now: start)
    var queue = TransferQueue(
      Array(first.transfers.values), acknowledged: Array(first.acknowledged.values),
      abandoned: Array(first.abandoned.values))
    // This machine has started without the time.
    let old = start - step
    var request = TransferRequest(key: "new", url: "http://h/", path: "/x")
    request.deadline = old + hour
    _ = queue.handle(.submitted(request, version: "v", size: 1), now: old)
    // It ends with the clock of this process, although it began with another one.
    _ = queue.handle(.finished(3, .failed(TransferResult(.failed))), now: old)

    let before = queue
    let actions = queue.handle(.clockSet(by: step), now: start)
    #expect(queue.transfers[1] == before.transfers[1])
    #expect(queue.acknowledged == before.acknowledged)
    #expect(queue.abandoned[4]?.time == start)
    #expect(queue.transfers[3]?.request.deadline == start + hour)
    #expect(queue.transfers[3]?.result?.ended == old + step)
    #expect(queue.transfers[5]?.request.deadline == start + hour)
    #expect(!actions.contains { if case .store(let transfer) = $0 { transfer.id == 1 } else { false } })
  }

  @Test(
    "times that an earlier process has stored in the same boot move with the clock, and stay after a reboot",
    arguments: [false, true])
  func clockSetBetweenProcesses(isRebooted: Bool) throws {
    let directory = try TemporaryDirectory()
    let day: Int64 = 86_400_000
    func load(_ boot: String) throws -> (TransferDatabase?, TransferQueue) {
      let database = try TransferDatabase(directory: "\(directory.path)/state", boot: boot)
      return (database, try database.load())
    }
    /// Stores a transfer in a boot in which nothing was stored before.
    func submit(_ key: String, in boot: String, at clocks: ClockReading) throws {
      let (database, loaded) = try load(boot)
      let isFirst = database?.start == nil
      #expect(isFirst)
      var queue = loaded
      let request = TransferRequest(key: key, url: "http://h/", path: "/x")
      let actions = queue.handle(.submitted(request, version: "v", size: 1), now: clocks.wall)
      try #require(database).apply(actions, at: clocks)
    }
    try submit("old", in: "first", at: ClockReading(wall: 5000, sinceBoot: 100))
    try submit("new", in: "second", at: ClockReading(wall: 7000, sinceBoot: 50))

    var (database, queue) = try load(isRebooted ? "third" : "second")
    let now = ClockReading(wall: 8000 + day, sinceBoot: 1050)
    func step() throws -> Int64? { try #require(database).start.map { now.step(since: $0) } }
    func created() -> [Int64?] { [queue.transfers[1]?.created, queue.transfers[2]?.created] }
    let (found, wanted): (Int64?, Int64?) = (try step(), isRebooted ? nil : day)
    #expect(found == wanted)
    let actions = queue.handle(.clockSet(by: day), now: now.wall)
    try #require(database).apply(actions, at: now)
    let expected: [Int64?] = [5000, isRebooted ? 7000 : 7000 + day]
    #expect(created() == expected)
    guard !isRebooted else { return }
    // The step is over, for the next process too.
    database = nil
    (database, queue) = try load("second")
    let rest = try step()
    #expect(rest == 0)
    #expect(created() == expected)
  }
}
