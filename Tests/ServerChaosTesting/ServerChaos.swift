// Many batches at the same time: the plan, the failures with their shortest sequences, and the count of each
// combination.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import PropertyTesting

/// A run of many seeded sequences.
package struct ServerChaos: Sendable {
  package struct Options: Sendable {
    package var seed: UInt64
    package var sequences: Int
    /// Only the sequence of this index.
    package var only: Int?
    package var copies = 50
    package var jobs = 4
    package var stopsAtFirst = true
    /// The combinations to run. The others' sequences are omitted.
    package var isWanted: @Sendable (ChaosCell) -> Bool = { _ in true }
    /// The program that runs servers.
    package var program: String

    package init(seed: UInt64, sequences: Int, program: String? = nil) {
      self.seed = seed
      self.sequences = sequences
      self.program = program ?? Self.ownProgram
    }

    /// The program `chaos-server` that was built beside a test bundle.
    private static var ownProgram: String {
      var buffer = [CChar](repeating: 0, count: 4096)
      let count = readlink("/proc/self/exe", &buffer, buffer.count)
      let path = String(decoding: buffer.prefix(max(0, count)).map(UInt8.init(bitPattern:)), as: UTF8.self)
      return String(path[..<(path.lastIndex(of: "/") ?? path.startIndex)]) + "/chaos-server"
    }
  }

  /// Sequences on one server.
  private static let batchSize = 64
  /// For power failures: one stream's syncs also cover others' data, so small batches reveal more than large ones.
  private static let powerCutBatchSize = 8

  private let options: Options
  private let say: @Sendable (String) -> Void

  package init(_ options: Options, _ say: @escaping @Sendable (String) -> Void = { _ in }) {
    (self.options, self.say) = (options, say)
  }

  private func sequence(_ index: Int) -> ChaosSequence {
    ChaosSequence(seed: options.seed, index: index, cell: ChaosCell.all[index % ChaosCell.all.count])
  }

  package func run() throws -> ServerChaosReport {
    say("chaos-server --seed \(options.seed) --sequences \(options.sequences)")
    if let only = options.only { return try runOne(sequence(only)) }
    let batches = plan()
    let planned = batches.map(\.count).reduce(0, +)
    let progress = Lock(Progress(batches: batches))
    let start = MonotonicInstant.now
    let threads = try (0..<max(1, options.jobs)).map { job in
      try NamedThread("chaos-job-\(job)") {
        while let batch = progress.withLock({ $0.next(stopsAtFirst: options.stopsAtFirst) }) {
          do {
            let runs = try ChaosBatch(sequences: batch.map(sequence), program: options.program).run()
            let line = progress.withLock { $0.add(runs.map(Outcome.init), of: planned) }
            if let line { say(line + ", \(Int((MonotonicInstant.now - start).seconds)) s") }
          } catch {
            progress.withLock { $0.errors.append("\(error)") }
          }
        }
      }
    }
    for thread in threads { thread.join() }
    let result = progress.withLock { $0 }
    if let error = result.errors.first { throw TestFailure(error) }
    var report = ServerChaosReport(options: options, duration: MonotonicInstant.now - start)
    report.count = result.count
    report.coverage = result.coverage
    report.tally = result.tally
    // A run with each index of the matrix has all of its combinations, unless it stopped at a failure.
    if options.sequences >= ChaosCell.all.count, result.count == planned {
      report.missing = result.coverage.missing(of: ChaosCell.all.filter(options.isWanted))
    }
    for (kind, found) in result.violations.sorted(by: { $0.value.count > $1.value.count }) {
      report.findings.append(
        .init(
          kind: kind, count: found.count, sequences: Array(found.indices.prefix(5)), text: found.first,
          places: found.places))
    }
    // The shortest sequence that still fails is the most informative. Each kind has its own.
    for index in report.findings.indices.prefix(options.stopsAtFirst ? 1 : 0) {
      if let first = report.findings[index].sequences.first {
        say("making sequence \(first) shorter: \(report.findings[index].kind)")
        report.findings[index].shortest = try shorten(sequence(first), report.findings[index].kind)
      }
    }
    return report
  }

  /// The indices of each batch: sequences with one setting and one event.
  private func plan() -> [[Int]] {
    var groups: [String: [Int]] = [:]
    for index in 0..<options.sequences {
      let cell = ChaosCell.all[index % ChaosCell.all.count]
      guard options.isWanted(cell) else { continue }
      let event = cell.operation.isRequest ? "" : cell.operation.rawValue
      groups["\(cell.setting) \(event)", default: []].append(index)
    }
    var batches: [[Int]] = []
    for (_, indices) in groups.sorted(by: { $0.key < $1.key }) {
      let cell = ChaosCell.all[indices[0] % ChaosCell.all.count]
      // With a log, nothing is lost, synced or not.
      let losesData = cell.operation == .powerCut && !cell.setting.storage.isLog
      let size = losesData ? Self.powerCutBatchSize : Self.batchSize
      for start in stride(from: 0, to: indices.count, by: size) {
        batches.append(Array(indices[start..<min(indices.count, start + size)]))
      }
    }
    // Mixes sequences that wait for a timeout with those that compute.
    var random = SplitMix64(state: options.seed)
    return batches.shuffled(using: &random)
  }

  // MARK: One sequence

  /// Runs copies of one sequence on one server. The failure depends on the timing, so a single copy may not show it.
  private func copies(of sequence: ChaosSequence, _ count: Int) throws -> [Outcome] {
    let copies = (0..<count).map { number in
      var copy = sequence
      copy.copy = number
      return copy
    }
    return try ChaosBatch(sequences: copies, program: options.program).run().map(Outcome.init)
  }

  private func runOne(_ sequence: ChaosSequence) throws -> ServerChaosReport {
    let start = MonotonicInstant.now
    let outcomes = try copies(of: sequence, options.copies)
    var report = ServerChaosReport(options: options, duration: MonotonicInstant.now - start)
    report.count = outcomes.count
    for outcome in outcomes { report.coverage.add(outcome.coverage) }
    for (kind, failed) in Dictionary(
      grouping: outcomes.filter { $0.violation != nil }, by: { $0.violation?.kind ?? "" })
    {
      report.findings.append(
        .init(kind: kind, count: failed.count, sequences: [sequence.index], text: failed[0].text))
    }
    for index in report.findings.indices {
      report.findings[index].shortest = try shorten(sequence, report.findings[index].kind)
    }
    if report.findings.isEmpty { say(outcomes[0].text) }
    return report
  }

  /// The transcript of the shortest sequence found that fails in the same way; nil if it does not fail again.
  private func shorten(_ sequence: ChaosSequence, _ kind: String) throws -> String? {
    func failing(_ sequence: ChaosSequence) throws -> String? {
      try copies(of: sequence, options.copies).first { $0.violation?.kind == kind }?.text
    }
    guard var text = try failing(sequence) else { return nil }
    var shortest = sequence
    var isShorter = true
    while isShorter {
      isShorter = false
      for index in shortest.steps.indices.reversed() {
        for dropsStep in [true, false] where index < shortest.steps.count {
          var candidate = shortest
          if dropsStep {
            guard shortest.steps[index].operation.isRequest, shortest.steps.count > 1 else { continue }
            candidate.steps.remove(at: index)
          } else {
            guard shortest.steps[index].second != .none else { continue }
            candidate.steps[index].second = .none
          }
          guard let found = try failing(candidate) else { continue }
          (shortest, text, isShorter) = (candidate, found, true)
        }
      }
    }
    return text
  }
}

/// The result of one sequence.
struct Outcome: Sendable {
  var index: Int
  var violation: Violation?
  var coverage: ChaosCoverage
  var tally: ChaosTally
  /// The event and the setting.
  var place: String
  var text: String

  init(_ run: SequenceRun) {
    index = run.sequence.index
    violation = run.violation
    coverage = run.coverage
    tally = run.tally
    place = "\(run.sequence.event?.rawValue ?? "requests"), \(run.sequence.setting)"
    text =
      "sequence \(run.sequence.index) (\(run.options.setting)):\n"
      + run.transcript.map { "  \($0)\n" }.joined() + "  "
      + (run.violation.map { "VIOLATION: \($0)" } ?? "as it should be")
  }
}

private struct Progress: Sendable {
  struct Found: Sendable {
    var count = 0
    var indices: [Int] = []
    var places: [String: Int] = [:]
    var first = ""
  }

  var batches: [[Int]]
  var count = 0
  var coverage = ChaosCoverage()
  var tally = ChaosTally()
  var violations: [String: Found] = [:]
  var errors: [String] = []
  private var nextLine = 0

  init(batches: [[Int]]) { self.batches = batches }

  mutating func next(stopsAtFirst: Bool) -> [Int]? {
    if !errors.isEmpty || stopsAtFirst && !violations.isEmpty { return nil }
    return batches.popLast()
  }

  /// Occasionally returns a line of progress.
  mutating func add(_ outcomes: [Outcome], of total: Int) -> String? {
    for outcome in outcomes {
      count += 1
      coverage.add(outcome.coverage)
      tally.add(outcome.tally)
      guard let violation = outcome.violation else { continue }
      var found = violations[violation.kind] ?? Found(first: outcome.text)
      found.count += 1
      found.indices.append(outcome.index)
      found.places[outcome.place, default: 0] += 1
      violations[violation.kind] = found
    }
    guard count >= nextLine else { return nil }
    nextLine = count + total / 20
    return "\(count) of \(total) sequences, \(violations.values.map(\.count).reduce(0, +)) failed"
  }
}
