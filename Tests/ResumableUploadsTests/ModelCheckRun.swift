// One run of the model checker: events and faults until the client is done, and what to show of a run that fails.

import HTTPMessages
import PropertyTesting

@testable import ResumableUploads

enum ModelFault: CaseIterable {
  /// The client gives up; of what is under way a part arrives, late or never, and then the connection's end or nothing.
  case loss
  /// The server sees the connection's end, the client sees nothing.
  case serverSideLoss
  case lostInterims
  case lostAnswer
  /// Somebody in between answers with a 5xx or the like, before the server saw the request or instead of its answer.
  case gatewayError
  /// 400 or 409 without an offset.
  case refusal
  /// An offset in an answer is changed: too low, too high, or beyond what was ever sent.
  case lie
  /// A request of before arrives once more, whole or in part.
  case replay
  /// The upload resource's last final answer comes once more, for another request.
  case duplicate
  case restart
  case powerFailure
  case expiry
  case earlyResponse
}

struct ModelRun {
  struct Plan {
    var seed: UInt64
    /// Faults beyond that many are left out, to find out which are needed.
    var maximumFaults = Int.max
    var leftOut: Set<Int> = []
    var traces = false
    var sabotage: Sabotage?
  }

  private let plan: Plan
  private(set) var world: ModelWorld
  private var faults: SplitMix64
  private(set) var faultCount = 0
  private(set) var stepCount = 0
  private(set) var applied: [ModelFault] = []
  /// Steps that the run took after the last fault.
  private(set) var quietSteps = 0
  private(set) var violation: String?

  private var former: [(request: ModelRequest, sent: [Upstream])] = []
  /// As it left the server, with the upload resource that it is about.
  private var lastAnswer: (url: String?, answer: ServerAnswer)?
  /// The exchange whose answer is a lie.
  private var spoiled: Int?
  /// Faults since the last progress for which a client is right to lose patience.
  private var provocations = 0
  private var progress: UInt64 = 0
  private var liesWereTold = false
  /// Faults that wait for an answer which they can spoil, with the number that they draw from.
  private var armed: [(fault: ModelFault, random: SplitMix64)] = []

  /// So long faults go on, if the client does not come to its end in spite of them.
  private static let noisySteps = 1500
  /// Percent of steps.
  private static let faultRate = 7

  private init(_ plan: Plan) {
    self.plan = plan
    world = ModelWorld(seed: plan.seed, traces: plan.traces, sabotage: plan.sabotage)
    // Of their own, so that the events before a fault are the same without it.
    faults = SplitMix64(state: ~plan.seed)
  }

  static func run(_ plan: Plan) -> ModelRun {
    var run = ModelRun(plan)
    run.run()
    return run
  }

  /// How many steps a client and a server may need when nothing goes wrong any more.
  private var patience: Int { 2000 + 10 * Int(world.conditions.length) }

  private mutating func run() {
    world.collect()
    while violation == nil, world.outcome == nil, stepCount < Self.noisySteps {
      if faults.chance(Self.faultRate) { fault() }
      step()
    }
    while violation == nil, world.outcome == nil, quietSteps < patience {
      quietSteps += 1
      step()
    }
    if violation != nil { return }
    violation =
      world.outcome == nil
      ? "no end within \(patience) steps after the last fault: \(world.machine.state)"
      : world.finalViolation(liesWereTold: liesWereTold, mayEndEarly: applied.contains(.earlyResponse))
  }

  private mutating func step() {
    stepCount += 1
    if world.outcome == nil, !world.step() { violation = "nothing can happen any more, and it is not over" }
    if let current = world.current, let place = world.place(current) {
      let exchange = world.exchanges[place]
      if former.last?.request != exchange.request { former.append((exchange.request, [])) }
      former[former.count - 1].sent = exchange.sent
      // A final refusal that is taken for another's answer ends an upload, and rightly so.
      if case .final(let answer)? = exchange.down.last, answer.status < 400 || answer.status == 409,
        exchange.number != spoiled
      {
        lastAnswer = (exchange.request.url ?? answer.fields["Location"], answer)
      }
    }
    if var waiting = armed.first, apply(waiting.fault, &waiting.random) {
      armed = []
      note(waiting.fault)
    }
    if world.released > progress { (progress, provocations) = (world.released, 0) }
    if violation == nil { violation = world.violation }
  }

  // MARK: Faults

  private mutating func fault() {
    // All that a fault draws comes from one number, so that leaving it out changes nothing of the next.
    var random = SplitMix64(state: faults.next())
    faultCount += 1
    if faultCount > plan.maximumFaults || plan.leftOut.contains(faultCount) { return }
    guard let kind = ModelFault.allCases.randomElement(using: &random) else { return }
    if kind == .lie || kind == .lostAnswer {
      if armed.isEmpty { armed.append((kind, random)) }
      return
    }
    if apply(kind, &random) { note(kind) }
  }

  private mutating func note(_ kind: ModelFault) {
    applied.append(kind)
    world.log("*** fault \(faultCount): \(kind)")
    world.collect()
    if violation == nil { violation = world.violation }
  }

  /// Whether there was anything to spoil.
  private mutating func apply(_ kind: ModelFault, _ random: inout SplitMix64) -> Bool {
    let place = world.current.flatMap { world.place($0) }
    switch kind {
    case .loss:
      guard let place else { return false }
      let arriving = Int.random(in: 0...world.exchanges[place].up.count, using: &random)
      world.exchanges[place].up.removeSubrange(arriving...)
      world.interrupt(closes: random.chance(50))
    case .serverSideLoss:
      guard let place, world.exchanges[place].isServerThere else { return false }
      let arriving = Int.random(in: 0...world.exchanges[place].up.count, using: &random)
      world.exchanges[place].up.replaceSubrange(arriving..., with: [.closed])
    case .lostInterims:
      guard let place else { return false }
      world.exchanges[place].down.removeAll { if case .interim = $0 { true } else { false } }
    case .lostAnswer:
      guard let place, case .final? = world.exchanges[place].down.last else { return false }
      world.exchanges[place].down.removeLast()
      world.exchanges[place].down.append(.closed)
    case .gatewayError:
      guard let place else { return false }
      if random.chance(50) { world.exchanges[place].up = [.closed] }
      let status = [500, 502, 503, 504, 408, 423, 429].randomElement(using: &random) ?? 500
      world.exchanges[place].down = [.final(ServerAnswer(status))]
    case .refusal:
      guard let place, world.exchanges[place].request.url != nil, provoke() else { return false }
      if random.chance(50) { world.exchanges[place].up = [.closed] }
      world.exchanges[place].down = [.final(ServerAnswer(random.chance(50) ? 409 : 400))]
    case .lie: return lie(place, &random)
    case .replay:
      guard !former.isEmpty, world.server.resources.count < 40 else { return false }
      let (request, sent) = former[Int.random(in: 0..<former.count, using: &random)]
      let number = world.replay(Array(sent.prefix(Int.random(in: 1...max(1, sent.count), using: &random))), request)
      world.log("  #\(number) is \(request.method) \(request.url ?? "/") \(ModelWorld.text(request.fields)) again")
    case .duplicate:
      // Another upload resource counts from elsewhere: as an acknowledgement, its offset cannot be found out either.
      guard let place, let url = world.exchanges[place].request.url, let (about, answer) = lastAnswer,
        about == nil || about == url, provoke()
      else { return false }
      checkDuplicate(answer, of: url)
      world.exchanges[place].down.insert(.final(answer), at: 0)
      // What was true then need not be true now.
      liesWereTold = true
    case .restart: world.restartServer(isPowerFailure: false, tells: random.chance(80), &random)
    case .powerFailure: world.restartServer(isPowerFailure: true, tells: random.chance(20), &random)
    case .expiry:
      guard world.conditions.endsUploads, !world.server.resources.isEmpty, provoke() else { return false }
      world.expire(world.server.resources.count - 1)
    case .earlyResponse:
      guard world.conditions.endsUploads, let index = world.server.resources.indices.last,
        world.server.resources[index].transfer != nil, provoke()
      else { return false }
      world.respondEarly(index)
    }
    return true
  }

  private mutating func lie(_ place: Int?, _ random: inout SplitMix64) -> Bool {
    // An answer to HEAD or a refusal. Who acknowledges what it has not kept, in a 104 or a 2xx, cannot be found out;
    // and who calls complete what is not all of it has ended it.
    guard let place, case .final(var answer)? = world.exchanges[place].down.last,
      world.exchanges[place].request.method == "HEAD" || answer.status == 409,
      world.machine.version.completeness(answer.fields) != true,
      let offset = UploadFields.offset(answer.fields), provoke()
    else { return false }
    let sent = world.machine.sent - min(world.machine.sent, world.machine.base)
    let lie: UInt64
    switch Int.random(in: 0..<3, using: &random) {
    case 0: lie = UInt64.random(in: 0...offset, using: &random)
    case 1: lie = UInt64.random(in: offset...max(offset, min(sent, 1_000_000)), using: &random)
    default: lie = min(sent, 1_000_000) + UInt64(random.size(upTo: 1000))
    }
    answer.fields = answer.fields.without([UploadFields.offset])
    answer.fields.append(UploadFields.offset, String(lie))
    world.exchanges[place].down[world.exchanges[place].down.count - 1] = .final(answer)
    liesWereTold = true
    // A lie that is told once must not become an acknowledgement, nor be confirmed by itself.
    spoiled = world.exchanges[place].number
    world.log("  \(offset) becomes \(lie)")
    return true
  }

  /// What comes once more was true before: what the server has told it has kept, so it still has it.
  private mutating func checkDuplicate(_ answer: ServerAnswer, of url: String) {
    guard !world.conditions.losesAcknowledged, plan.sabotage == nil, let told = UploadFields.offset(answer.fields),
      let resource = world.server.resources.first(where: { $0.url == url })
    else { return }
    let kept = UInt64(world.conditions.awaitsDisk ? resource.synced : resource.bytes.count)
    if told > kept { violation = "the model repeats an answer that tells \(told), and \(url) has kept \(kept)" }
  }

  /// Counts what brings a client nearer to giving up; a few in a row are to be endured.
  private mutating func provoke() -> Bool {
    provocations += 1
    return provocations <= 3
  }
}
