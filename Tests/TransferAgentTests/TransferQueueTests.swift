// The queue under random orders, ends and kills, and the content of its database.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@testable import TransferAgent

@Suite("The queue of transfers")
struct TransferQueueTests {
  @Test(
    "in any order of events, no accepted transfer is lost, started twice, or reported with a wrong end",
    arguments: Seed.several(60))
  func anyOrder(seed: Seed) throws {
    var world = QueueWorld(random: seed.generator)
    for _ in 0..<300 { try world.step() }
    try world.drain()
  }

  @Test("a reopened database has the same queue", arguments: Seed.several(4))
  func database(seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    var database: TransferDatabase? = try TransferDatabase(directory: "\(directory.path)/state")
    var queue = try #require(database).load()
    for number in 1...60 {
      var request = TransferRequest(key: "\(number / 2)", url: "http://h/\(number)", path: "/\(number)")
      request.token = "secret"
      if random.chance(50) { (request.kind, request.path, request.part) = (.download, "", "/part\(number)") }
      let id = Int64.random(in: 1...20, using: &random)
      let events: [TransferQueue.Event] = [
        .submitted(request, version: "v\(number)", size: request.kind == .upload ? UInt64(number) : nil), .pause(id),
        .resume(id), .cancel(id), .cancel(id, keeps: true), .acknowledge(id), .abandoned(id, isDone: random.chance(50)),
        .created(id, resumeData: "r\(number)"),
        .finished(id, .failed(TransferResult(.failed, cause: "refused", message: "no\u{1F}"))),
        .finished(id, .stopped(resumeData: nil)), .clockSet(by: Int64(number) * 1000),
      ]
      let actions = queue.handle(events.randomElement(using: &random)!, now: Int64(number))
      try #require(database).apply(actions)
      guard random.chance(30) else { continue }
      database = nil
      database = try TransferDatabase(directory: "\(directory.path)/state")
      let loaded = try #require(database).load()
      #expect(loaded.transfers == queue.transfers.mapValues(\.stored))
      #expect(loaded.lastID == queue.lastID, "a number is not given twice")
      #expect(loaded.acknowledged == queue.acknowledged)
      #expect(loaded.abandoned == queue.abandoned)
      queue = loaded
    }
  }

  @Test("a database that was moved, removed or replaced stores nothing until it is back", arguments: [false, true])
  func movedDatabase(isReplaced: Bool) throws {
    let directory = try TemporaryDirectory()
    let database = try TransferDatabase(directory: "\(directory.path)/state")
    var queue = try database.load()
    let request = TransferRequest(key: "k", url: "http://h/", path: "/x")
    let actions = queue.handle(.submitted(request, version: "v", size: 1), now: 1)
    let path = "\(directory.path)/state/transfers.db"
    try #require(rename(path, "\(path).moved") == 0)
    if isReplaced { close(open(path, O_RDWR | O_CREAT, 0o600)) }
    #expect(throws: AgentError.databaseMoved("transfers.db")) { try database.apply(actions) }
    #expect(throws: AgentError.databaseMoved("transfers.db")) { try database.check() }
    try #require(rename("\(path).moved", path) == 0)
    try database.check()
    try database.apply(actions)
    #expect(try database.load().transfers == queue.transfers.mapValues(\.stored))
    // Nothing can bring back a file without a name.
    unlink(path)
    #expect(throws: AgentError.databaseMoved("transfers.db")) { try database.apply(actions) }
  }

  /// A request with a secret in every possible place.
  private static func secretRequest() -> TransferRequest {
    var request = TransferRequest(key: "k", url: "http://user:s3cret-url@h/", path: "/x")
    (request.token, request.fields) = ("s3cret-token", ["Authorization: s3cret-field"])
    request.proxy = "http://user:s3cret-proxy@h:1"
    return request
  }

  @Test("no secret of a transfer stays in the agent's files after its end, however it ends", arguments: 0..<3)
  func secrets(_ end: Int) throws {
    let directory = try TemporaryDirectory()
    let database = try TransferDatabase(directory: "\(directory.path)/state")
    var queue = try database.load()
    func happen(_ event: TransferQueue.Event) throws { try database.apply(queue.handle(event, now: 1)) }
    func secretsInFiles() throws -> Int {
      try ["transfers.db", "transfers.db-wal"].reduce(0) { count, name in
        count
          + String(decoding: try fileContents("\(directory.path)/state/\(name)"), as: UTF8.self)
          .ranges(of: "s3cret").count
      }
    }
    try happen(.submitted(Self.secretRequest(), version: "v", size: 1))
    try happen(.created(1, resumeData: "s3cret-location"))
    #expect(try secretsInFiles() >= 5, "there is something to be forgotten")
    switch end {
    case 0: try happen(.finished(1, .completed(TransferResult(.completed))))
    case 1: try happen(.finished(1, .failed(TransferResult(.failed, cause: "refused"))))
    default:
      try happen(.cancel(1))
      try happen(.finished(1, .stopped(resumeData: "s3cret-location")))
      #expect(try secretsInFiles() > 0, "the deletion at the server needs them")
      try happen(.abandoned(1, isDone: true))
    }
    #expect(queue.transfers[1]?.hasEnded == true && queue.abandoned.isEmpty)
    #expect(try secretsInFiles() == 0)
  }

  @Test("for a day after its end was acknowledged, a request that is submitted again is not a new transfer")
  func repeatedSubmission() throws {
    let day = AcknowledgedTransfer.age
    var queue = TransferQueue()
    func submit(_ key: String, _ now: Int64) -> Int64? {
      let request = TransferRequest(key: key, url: "http://h/", path: "/x")
      let actions = queue.handle(.submitted(request, version: "v", size: 1), now: now)
      for case .accept(let id) in actions { return id }
      return nil
    }
    func endAndAcknowledge(_ id: Int64, _ now: Int64) {
      _ = queue.handle(.finished(id, .completed(TransferResult(.completed))), now: now)
      _ = queue.handle(.acknowledge(id), now: now)
    }
    #expect(submit("a", 0) == 1)
    endAndAcknowledge(1, 1)
    #expect(queue.transfers.isEmpty && queue.id(ofKey: "a") == 1)
    #expect(submit("a", day) == 1 && queue.transfers.isEmpty && queue.running.isEmpty)
    #expect(submit("b", day) == 2)
    endAndAcknowledge(2, day + 2)
    #expect(queue.id(ofKey: "a") == nil && queue.id(ofKey: "b") == 2)
    for number in 0..<(AcknowledgedTransfer.limit + 5) {
      let id = try #require(submit("key \(number)", day + 3))
      endAndAcknowledge(id, day + 3)
    }
    #expect(queue.acknowledged.count == AcknowledgedTransfer.limit && queue.id(ofKey: "b") == nil)
  }

  @Test("results that no program awaits are removed after 90 days, or when there are too many, the oldest first")
  func unawaited() {
    var queue = TransferQueue()
    queue.resultLimit = 20
    func submit(_ number: Int, at now: Int64) -> [Int64] {
      var request = TransferRequest(key: "\(number)", url: "http://h/", path: "/x")
      if number % 2 == 0 { (request.kind, request.path, request.part) = (.download, "", "/part\(number)") }
      let actions = queue.handle(.submitted(request, version: "v", size: 1), now: now)
      return actions.compactMap { if case .remove(let id, _) = $0 { id } else { nil } }.sorted()
    }
    for number in 1...20 {
      #expect(submit(number, at: Int64(number)).isEmpty)
      _ = queue.handle(.finished(Int64(number), .completed(TransferResult(.completed))), now: Int64(number))
    }
    var open = TransferRequest(key: "open", url: "http://h/", path: "/x")
    open.earliestBegin = .max
    _ = queue.handle(.submitted(open, version: "v", size: 1), now: 21)
    #expect(submit(22, at: 22).isEmpty)
    _ = queue.handle(.finished(22, .completed(TransferResult(.completed))), now: 22)
    #expect(submit(23, at: 23) == [1])
    #expect(submit(24, at: TransferQueue.resultAge + 4) == [2, 3, 4])
    #expect(queue.abandoned.keys.sorted() == [2, 4], "what the agent kept of them is removed")
    #expect(submit(25, at: TransferQueue.resultAge * 2) == Array(5...20) + [22])
    #expect(queue.transfers.keys.sorted() == [21, 23, 24, 25], "what has not ended stays")
  }

  @Test("transfers that wait for their next attempt let others run, and continue later")
  func room() {
    var queue = TransferQueue()
    func started(_ actions: [TransferQueue.Action]) -> [Int64] {
      actions.compactMap { if case .start(let transfer) = $0 { transfer.id } else { nil } }
    }
    func stopped(_ actions: [TransferQueue.Action]) -> [Int64] {
      actions.compactMap { if case .stop(let id) = $0 { id } else { nil } }
    }
    for number in 1...6 {
      let request = TransferRequest(key: "\(number)", url: "http://h/", path: "/x")
      let actions = queue.handle(.submitted(request, version: "v", size: 1), now: 0)
      #expect(started(actions) == (number <= TransferQueue.limit ? [Int64(number)] : []))
    }
    for id in 1...3 { queue.note(Int64(id), trouble: .some("no server")) }
    #expect(stopped(queue.handle(.timeCame, now: 1)) == [1, 2], "as many as others wait")
    #expect(stopped(queue.handle(.timeCame, now: 1)).isEmpty)
    #expect(started(queue.handle(.finished(1, .stopped(resumeData: nil)), now: 2)) == [5])
    #expect(queue.transfers[1]?.trouble == "no server" && queue.transfers[1]?.state == .active)
    #expect(started(queue.handle(.finished(2, .stopped(resumeData: nil)), now: 2)) == [6])
    #expect(started(queue.handle(.finished(5, .completed(TransferResult(.completed))), now: 3)).isEmpty, "1 rests")
    #expect(started(queue.handle(.resume(1), now: 4)) == [1], "at once, if the program requests it")
    #expect(started(queue.handle(.finished(6, .completed(TransferResult(.completed))), now: 5)).isEmpty)
    #expect(started(queue.handle(.timeCame, now: 10_001)) == [2])
    #expect(queue.running.count == TransferQueue.limit)
  }

  @Test("a transfer that this machine cannot run now is retried with growing pauses")
  func postponement() {
    var queue = TransferQueue()
    let request = TransferRequest(key: "k", url: "http://h/", path: "/x")
    _ = queue.handle(.submitted(request, version: "v", size: 1), now: 0)
    var now: Int64 = 0
    var pauses: [Int64] = []
    for _ in 0..<10 {
      let actions = queue.handle(.finished(1, .postponed("no descriptor")), now: now)
      #expect(queue.running.isEmpty && queue.transfers[1]?.trouble == "no descriptor")
      guard case .wake(let time)? = actions.last else { break }
      pauses.append(time - now)
      now = time
      #expect(queue.handle(.timeCame, now: now).contains { if case .start = $0 { true } else { false } })
    }
    #expect(pauses == [10, 20, 40, 80, 160, 320, 640, 900, 900, 900].map { $0 * 1000 })
  }

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

  @Test("a transfer that waits because the kind of network cannot be determined states the reason")
  func unknownNetwork() throws {
    var queue = TransferQueue()
    func obstacle() throws -> String? { queue.obstacle(try #require(queue.transfers[1])) }
    var request = TransferRequest(key: "k", url: "http://h/", path: "/x")
    request.allowsExpensive = false
    _ = queue.handle(.submitted(request, version: "v", size: 1), now: 0)
    #expect(queue.handle(.networkUnknown("no descriptor"), now: 0) == [.tell(1)])
    #expect(try obstacle()?.contains("no descriptor") == true)
    #expect(queue.handle(.networkUnknown("no descriptor"), now: 0) == [], "it is told once")
    let metered = NetworkConditions(isExpensive: true)
    #expect(queue.handle(.network(metered), now: 0) == [.tell(1)])
    #expect(queue.handle(.networkUnknown("no descriptor"), now: 0) == [])
    #expect(try obstacle()?.contains("not metered") == true, "the known network stays")
    queue.forgetNetwork()
    #expect(try obstacle()?.contains("no descriptor") == false)
    _ = queue.handle(.networkUnknown("no descriptor"), now: 0)
    _ = queue.handle(.network(NetworkConditions()), now: 0)
    #expect(queue.running[1] == .running)
  }

  @Test("the upload of a cancelled transfer is deleted with its token, even after it was acknowledged")
  func abandonment() throws {
    for isAcknowledged in [false, true] {
      var request = TransferRequest(key: "k", url: "http://h/", path: "/x")
      request.token = "secret"
      var queue = TransferQueue()
      _ = queue.handle(.submitted(request, version: "v", size: 1), now: 0)
      _ = queue.handle(.cancel(1), now: 1)
      #expect(queue.transfers[1]?.request.token == nil)
      if isAcknowledged { _ = queue.handle(.acknowledge(1), now: 2) }
      let actions = queue.handle(.finished(1, .stopped(resumeData: "r")), now: 3)
      func abandoned(_ actions: [TransferQueue.Action]) -> [Transfer] {
        actions.compactMap { if case .abandon(let transfer) = $0 { transfer } else { nil } }
      }
      let transfer = try #require(abandoned(actions).first)
      #expect(transfer.request.token == "secret" && transfer.resumeData == "r")
      // A server that does not answer is asked again for a day, at growing intervals, and at once after a kill.
      #expect(abandoned(queue.handle(.abandoned(1, isDone: false), now: 4)).isEmpty)
      #expect(abandoned(queue.handle(.timeCame, now: 10_003)).isEmpty)
      #expect(abandoned(queue.handle(.timeCame, now: 10_004)).count == 1)
      var next = TransferQueue([], lastID: 1, abandoned: Array(queue.abandoned.values))
      #expect(abandoned(next.handle(.timeCame, now: 10_005)) == [transfer])
      _ = next.handle(.abandoned(1, isDone: true), now: 10_006)
      #expect(next.abandoned.isEmpty)
      _ = queue.handle(.abandoned(1, isDone: false), now: AbandonedTransfer.age + 3)
      #expect(queue.abandoned.isEmpty)
    }
  }

  @Test("two agents cannot use one database")
  func lock() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/state"
    let first = try TransferDatabase(directory: path)
    #expect(throws: AgentError.inUse("\(path)/agent.lock")) { try TransferDatabase(directory: path) }
    withExtendedLifetime(first) {}
  }
}

/// A queue, its database, and the running transfers, with the conditions that must hold after each event.
private struct QueueWorld {
  var random: SplitMix64
  var queue = TransferQueue()
  var now: Int64 = 1000
  /// The content of the database.
  var disk: [Int64: Transfer] = [:]
  var lastID: Int64 = 0
  /// The keys of acknowledged transfers in the database.
  var past: [String: AcknowledgedTransfer] = [:]
  /// The transfers with remains in the database, and those that are being deleted.
  var left: [Int64: AbandonedTransfer] = [:]
  var deleting: Set<Int64> = []
  /// The transfers that the engine runs, and whether each was asked to stop.
  var engine: [Int64: Bool] = [:]
  /// Results that were on disk, which must never change.
  var results: [Int64: TransferResult] = [:]
  /// Those that an earlier queue has recorded.
  var earlierResults: Set<Int64> = []
  var accepted: [String: Int64] = [:]
  var acknowledged: Set<Int64> = []
  var wake: Int64?
  var keys = 0
  /// Nil until it is known.
  var network: NetworkConditions?
  /// By how much the clock was set, as long as the queue has not heard of it.
  var clockStep: Int64 = 0

  init(random: SplitMix64) { self.random = random }

  mutating func step() throws {
    let id = Int64.random(in: 1...max(1, lastID + 1), using: &random)
    switch Int.random(in: 0..<15, using: &random) {
    case 14:
      let step = Int64.random(in: -min(now, 10_000)...10_000, using: &random)
      now += step
      clockStep += step
      try happen(.clockSet(by: clockStep))
    case 13:
      if let id = deleting.sorted().randomElement(using: &random) {
        try happen(.abandoned(id, isDone: random.chance(60)))
      }
    case 12:
      // An attempt has failed or succeeded.
      if let id = engine.keys.sorted().randomElement(using: &random) {
        queue.note(id, trouble: .some(random.chance(70) ? "no server" : nil))
        try happen(.timeCame)
      }
    case 0, 1, 2: try submit()
    case 3: try happen(.pause(id))
    case 4: try happen(.resume(id))
    case 5 where random.chance(20): try happen(.networkUnknown("no bus \(now % 2)"))
    case 5 where random.chance(40): try setNetwork()
    case 5: if random.chance(30) { try happen(.cancel(id, keeps: random.chance(50))) }
    case 6: try happen(.acknowledge(id))
    case 7:
      if let id = engine.keys.sorted().randomElement(using: &random) { try happen(.created(id, resumeData: "r\(now)")) }
    case 8, 9: try finishOne()
    case 10:
      now += Int64.random(in: 0...50, using: &random)
      try happen(.timeCame)
    default:
      if random.chance(20) {
        kill()
        try happen(.timeCame)
      }
    }
  }

  private mutating func setNetwork(isGood: Bool = false) throws {
    let isConstrained = !isGood && random.chance(40)
    let conditions = NetworkConditions(
      isExpensive: !isGood && (isConstrained || random.chance(40)), isConstrained: isConstrained)
    network = conditions
    try happen(.network(conditions))
  }

  private mutating func submit() throws {
    keys += 1
    let key = "\(random.chance(20) ? Int.random(in: 1...keys, using: &random) : keys)"
    var request = TransferRequest(key: key, url: "http://h/", path: "/x")
    if random.chance(30) { request.earliestBegin = now + Int64.random(in: 0...100, using: &random) }
    request.allowsExpensive = random.chance(80)
    request.allowsConstrained = random.chance(80)
    request.isDiscretionary = random.chance(30)
    if random.chance(20) { request.deadline = now + Int64.random(in: 0...200, using: &random) }
    if random.chance(40) {
      request.kind = .download
      if random.chance(50) { request.path = "" }
    }
    try happen(.submitted(request, version: "v", size: request.kind == .upload ? 1 : nil), key: key)
  }

  private mutating func finishOne() throws {
    guard let id = engine.keys.sorted().randomElement(using: &random), let isStopping = engine[id] else { return }
    engine[id] = nil
    // A transfer that was asked to stop may have ended differently just before.
    let ending: TransferQueue.Ending =
      isStopping && random.chance(80)
      ? .stopped(resumeData: random.chance(50) ? "s" : nil)
      : random.chance(10)
        ? .postponed("no descriptor")
        : random.chance(70)
          ? .completed(TransferResult(.completed)) : .failed(TransferResult(.failed, cause: "refused"))
    try happen(.finished(id, ending))
  }

  /// The process is killed. Only the data on disk remains.
  private mutating func kill() {
    (engine, deleting) = ([:], [])
    (wake, network, clockStep) = (nil, nil, 0)
    earlierResults = Set(disk.values.filter(\.hasEnded).map(\.id))
    queue = TransferQueue(
      disk.values.map { $0 }, lastID: lastID, acknowledged: past.values.map { $0 }, abandoned: left.values.map { $0 })
  }

  private mutating func happen(_ event: TransferQueue.Event, key: String? = nil) throws {
    let before = queue
    var next = queue
    let actions = next.handle(event, now: now)
    func isOnDisk(_ action: TransferQueue.Action) -> Bool {
      switch action {
      case .store, .remove, .storeAcknowledged, .forget, .storeAbandoned, .removeAbandoned: true
      default: false
      }
    }
    if actions.contains(where: isOnDisk), random.chance(5) {
      // The disk refuses, as if nothing had happened. Ends are reported again.
      #expect(queue == before)
      if case .finished(let id, _) = event { engine[id] = before.running[id] == .stopping }
      return
    }
    if case .abandoned(let id, _) = event { deleting.remove(id) }
    if case .clockSet(let step) = event {
      for id in results.keys where !earlierResults.contains(id) { results[id]?.ended += step }
      clockStep = 0
    }
    queue = next
    // Like the shell: stored actions come first.
    for action in actions.filter(isOnDisk) + actions.filter({ !isOnDisk($0) }) {
      switch action {
      case .store(let transfer):
        disk[transfer.id] = transfer
        lastID = max(lastID, transfer.id)
        if let result = transfer.result {
          #expect(results[transfer.id] == nil || results[transfer.id] == result, "a result has changed")
          results[transfer.id] = result
        }
      case .remove(let id, let transfer):
        past[transfer.key] = transfer
        #expect(results[id] != nil, "what has not ended is removed")
        disk[id] = nil
        acknowledged.insert(id)
      case .storeAcknowledged(let transfer): past[transfer.key] = transfer
      case .forget(let key): past[key] = nil
      case .storeAbandoned(let one): left[one.transfer.id] = one
      case .removeAbandoned(let id):
        #expect(!deleting.contains(id), "what is being deleted is forgotten")
        left[id] = nil
      case .accept(let id):
        #expect(disk[id] != nil || acknowledged.contains(id), "accepted before it is on disk")
        if let key {
          #expect(accepted[key] == nil || accepted[key] == id, "a key has two transfers")
          accepted[key] = id
        }
      case .start(let transfer):
        #expect(engine[transfer.id] == nil, "started twice")
        #expect(disk[transfer.id]?.state == .active && transfer.request.earliestBegin ?? 0 <= now)
        if let network {
          #expect(!network.isExpensive || transfer.request.allowsExpensive && !transfer.request.isDiscretionary)
          #expect(!network.isConstrained || transfer.request.allowsConstrained)
        } else {
          #expect(!transfer.request.hasConditions)
        }
        engine[transfer.id] = false
      case .stop(let id):
        #expect(engine[id] == false, "what does not run is stopped")
        engine[id] = true
      case .retry(let id): #expect(engine[id] == false)
      case .abandon(let transfer):
        #expect(engine[transfer.id] == nil && left[transfer.id]?.transfer == transfer)
        #expect(deleting.insert(transfer.id).inserted, "deleted twice at once")
        #expect(transfer.resumeData != nil || transfer.request.kind == .download)
        #expect(results[transfer.id]?.resumeData == nil, "the part that a program has got is removed")
        #expect(
          results[transfer.id]?.outcome != .completed || acknowledged.contains(transfer.id),
          "what a program has not seen is removed")
      case .tell(let id): #expect(disk[id] == queue.transfers[id]?.stored, "reported before it is on disk")
      case .wake(let time): wake = time
      case .done, .refuse: break
      }
    }
    #expect(disk == queue.transfers.mapValues(\.stored) && past == queue.acknowledged && left == queue.abandoned)
    #expect(Set(engine.keys) == Set(queue.running.keys) && engine.count <= TransferQueue.limit)
    for (id, isStopping) in engine { #expect(isStopping || queue.transfers[id]?.state == .active) }
    for id in accepted.values { #expect(disk[id] != nil || acknowledged.contains(id), "transfer \(id) is forgotten") }
  }

  /// Lets all transfers end.
  mutating func drain() throws {
    for id in disk.keys.sorted() { try happen(.resume(id)) }
    try setNetwork(isGood: true)
    for _ in 0..<2000 {
      if queue.isIdle, !queue.transfers.values.contains(where: { $0.state == .paused }) { break }
      now += 10_000
      try happen(.timeCame)
      try finishOne()
      for id in deleting.sorted() { try happen(.abandoned(id, isDone: true)) }
      for transfer in queue.transfers.values where transfer.state == .paused { try happen(.resume(transfer.id)) }
    }
    let open = queue.transfers.values.filter { !$0.hasEnded }
    #expect(open.isEmpty)
    for _ in 0..<100 where !left.isEmpty {
      now += 10_000
      try happen(.timeCame)
      for id in deleting.sorted() { try happen(.abandoned(id, isDone: true)) }
    }
    #expect(left.isEmpty, "something is left forever")
    for id in accepted.values where !acknowledged.contains(id) { #expect(results[id] != nil) }
  }
}
