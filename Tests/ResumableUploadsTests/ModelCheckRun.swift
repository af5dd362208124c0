// One run of the model checker: events and faults until the client ends, and the report of a run that fails.

import HTTPMessages
import PropertyTesting

@testable import ResumableUploads

enum ModelFault: CaseIterable {
  /// The client loses the connection. Messages under way arrive late, in part, or never; the end may not arrive either.
  case loss
  /// The server sees the end of the connection, but the client does not.
  case serverSideLoss
  case lostInterims
  case lostAnswer
  /// An intermediary answers with a 5xx or similar, before the server receives the request, or in place of its answer.
  case gatewayError
  /// A 400 or 409 without an offset.
  case refusal
  /// An offset in an answer is changed: too low, too high, or beyond the bytes that were ever sent.
  case lie
  /// An earlier request arrives again, whole or in part.
  case replay
  /// The upload resource's last final answer arrives again, as the answer to another request.
  case duplicate
  case restart
  case powerFailure
  case expiry
  case earlyResponse
}

struct ModelRun {
  struct Plan {
    var seed: UInt64
    /// Leaves out the faults after this number, to find out which ones are needed.
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
  /// How many steps the run took after the last fault.
  private(set) var quietSteps = 0
  private(set) var violation: String?

  private var former: [(request: ModelRequest, sent: [Upstream])] = []
  /// The answer as it left the server, with its upload resource.
  private var lastAnswer: (url: String?, answer: ServerAnswer)?
  /// The exchange whose answer was falsified.
  private var spoiled: Int?
  /// The number of faults since the last progress that justify that a client gives up.
  private var provocations = 0
  private var progress: UInt64 = 0
  private var liesWereTold = false
  /// Faults that wait for an answer to spoil, with the number that seeds their random choices.
  private var armed: [(fault: ModelFault, random: SplitMix64)] = []

  /// Faults stop after this many steps, if the client has not ended by then.
  private static let noisySteps = 1500
  /// The chance of a fault in each step, in percent.
  private static let faultRate = 7

  private init(_ plan: Plan) {
    self.plan = plan
    world = ModelWorld(seed: plan.seed, traces: plan.traces, sabotage: plan.sabotage)
    // Faults have their own generator, so the events before a fault are the same without it.
    faults = SplitMix64(state: ~plan.seed)
  }

  static func run(_ plan: Plan) -> ModelRun {
    var run = ModelRun(plan)
    run.run()
    return run
  }

  /// How many steps a client and a server may need after the last fault.
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
      // Leaves out final refusals: as the answer to another request, one would rightly end the upload.
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
    // Each fault seeds its own generator with one number, so leaving a fault out does not change the next one.
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

  /// Returns whether there was a message to spoil.
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
      // The offset of another upload resource would count as an acknowledgement, and no client could detect the error.
      // If the answer names none, it is about the only one.
      guard let place, let url = world.exchanges[place].request.url, let (about, answer) = lastAnswer,
        about == url || about == nil && world.server.resources.count == 1, provoke()
      else { return false }
      checkDuplicate(answer, of: url)
      world.exchanges[place].down.insert(.final(answer), at: 0)
      // An offset that was true then may be false now.
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
    // Changes an answer to HEAD or a refusal. No client could detect a false acknowledgement in a 104 or a 2xx, and an
    // answer that calls an incomplete upload complete ends it.
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
    // A lie that occurs once must not become an acknowledgement, nor confirm itself.
    spoiled = world.exchanges[place].number
    world.log("  \(offset) becomes \(lie)")
    return true
  }

  /// A repeated answer was true before: the server has kept the bytes that it reported, so it still stores them.
  private mutating func checkDuplicate(_ answer: ServerAnswer, of url: String) {
    guard !world.conditions.losesAcknowledged, plan.sabotage == nil, let told = UploadFields.offset(answer.fields),
      let resource = world.server.resources.first(where: { $0.url == url })
    else { return }
    let kept = UInt64(world.conditions.awaitsDisk ? resource.synced : resource.bytes.count)
    if told > kept { violation = "the model repeats an answer that reports \(told), and \(url) has kept \(kept)" }
  }

  /// Counts the faults that bring a client closer to giving up. Returns whether it must endure this one.
  private mutating func provoke() -> Bool {
    provocations += 1
    return provocations <= 3
  }
}
