// The model checker runs both state machines against each other under all faults of networks, crashes and other
// software.
//
// It checks these invariants after every step: the server keeps exactly the stream's bytes, in order, none lost or
// doubled (1); the client releases no byte that the server has not durably kept (2); the server announces no offset
// beyond the bytes that it has kept (3); the next PATCH may begin at any offset that HEAD returns; only one request at
// a time is under way. After the last fault the upload completes within a bounded number of steps.

import Glibc
import PropertyTesting
import Testing

@testable import ResumableUploads

@Suite("Model checking of client and server") struct ModelCheckTests {
  /// `SLUICE_MODEL_STEPS` in the environment asks for more.
  static let steps = getenv("SLUICE_MODEL_STEPS").flatMap { Int(String(cString: $0)) } ?? 100_000

  @Test("no byte is lost, repeated or discarded too early, and every upload completes", arguments: Seed.several(1))
  func invariants(seed: Seed) {
    var seeds = seed.generator
    var plan = ModelRun.Plan(seed: seed.value)
    var total = Tally()
    while total.steps < Self.steps {
      let run = ModelRun.run(plan)
      total.add(run)
      if run.violation != nil {
        Issue.record(Comment(rawValue: Shrinking(plan).report))
        return
      }
      plan.seed = seeds.next()
    }
    print(total.summary)
    // A check under faults that do not happen would be worthless.
    for fault in ModelFault.allCases { #expect(total.faults[fault, default: 0] > 0, "\(fault) never happened") }
  }

  /// A false answer to HEAD came again as the answer to an append. No client can detect such a false acknowledgement.
  @Test("a response that was changed on its way is not repeated as another's", arguments: [3_509_950_163_444_664_056])
  func lieOfHEAD(seed: UInt64) { #expect(ModelRun.run(ModelRun.Plan(seed: seed)).violation == nil) }

  @Test("a server that breaks the protocol is detected, with a short trace", arguments: Sabotage.allCases)
  func sabotage(sabotage: Sabotage) throws {
    for seed in UInt64(1)...2000 {
      var plan = ModelRun.Plan(seed: seed)
      plan.sabotage = sabotage
      guard ModelRun.run(plan).violation != nil else { continue }
      let shrunk = Shrinking(plan)
      #expect(shrunk.run.applied.count <= 6, "\(shrunk.report)")
      return
    }
    Issue.record("2000 runs against it found nothing")
  }
}

private struct Tally {
  var runs = 0
  var steps = 0
  var longestQuiet = 0
  var faults: [ModelFault: Int] = [:]

  mutating func add(_ run: ModelRun) {
    runs += 1
    steps += run.stepCount
    longestQuiet = max(longestQuiet, run.quietSteps)
    for fault in run.applied { faults[fault, default: 0] += 1 }
  }

  var summary: String {
    let kinds = ModelFault.allCases.map { "\($0) \(faults[$0, default: 0])" }.joined(separator: ", ")
    return """
      model: \(runs) runs, \(steps) steps, \(faults.values.reduce(0, +)) faults (\(kinds)); \
      at most \(longestQuiet) steps to the end after the last fault
      """
  }
}

/// Searches for a failing run with as few faults as possible.
private struct Shrinking {
  private(set) var plan: ModelRun.Plan
  private(set) var run: ModelRun

  init(_ failing: ModelRun.Plan) {
    plan = failing
    run = ModelRun.run(failing)
    // Another seed may fail sooner.
    var seeds = SplitMix64(state: failing.seed)
    for _ in 0..<100 {
      var other = failing
      other.seed = seeds.next()
      let found = ModelRun.run(other)
      if found.violation != nil, found.applied.count < run.applied.count { (plan, run) = (other, found) }
    }
    // First by bisection: how many of the faults are enough.
    var (enough, few) = (run.faultCount, -1)
    while enough - few > 1 {
      let middle = (enough + few + 1) / 2
      var shorter = plan
      shorter.maximumFaults = middle
      let found = ModelRun.run(shorter)
      if found.violation != nil { (plan, run, enough) = (shorter, found, middle) } else { few = middle }
    }
    // Then one by one, beginning with the last, until all remaining faults are needed.
    var spared = true
    while spared {
      spared = false
      for fault in stride(from: enough, to: 0, by: -1) where !plan.leftOut.contains(fault) {
        var shorter = plan
        shorter.leftOut.insert(fault)
        let found = ModelRun.run(shorter)
        guard found.violation != nil else { continue }
        // A fault that had nothing to spoil can be left out without any effect.
        spared = spared || found.applied.count < run.applied.count
        (plan, run) = (shorter, found)
      }
    }
    plan.traces = true
    run = ModelRun.run(plan)
  }

  var report: String {
    let trace = run.world.trace?.lines ?? []
    let shown = trace.suffix(150)
    return """
      \(run.violation ?? "not seen again")
      SLUICE_SEED=\(plan.seed), \(run.applied.count) faults needed: \(run.applied)
      \(run.world.conditions)
      \(trace.count - shown.count) lines before these:
      \(shown.joined(separator: "\n"))
      """
  }
}
