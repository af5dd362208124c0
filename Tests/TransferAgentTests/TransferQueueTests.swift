// The queue under random orders, ends and kills, and with transfers that wait.

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
}
