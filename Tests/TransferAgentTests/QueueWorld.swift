// A random world around the queue of transfers, with a model of what must hold in it.

import PropertyTesting
import Testing
import TransferClient

@testable import TransferAgent

/// A queue, its database, and the running transfers, with the conditions that must hold after each event.
struct QueueWorld {
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
