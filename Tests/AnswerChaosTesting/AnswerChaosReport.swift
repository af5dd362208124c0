// The results of a run, in numbers and transcripts.

/// The result of a run.
package struct AnswerChaosReport: Sendable, CustomStringConvertible {
  package struct Finding: Sendable {
    package var kind: String
    package var count = 0
    package var cases: [Int] = []
    /// The cases with the real command.
    package var commands: [Int] = []
    package var cells: [String: Int] = [:]
    package var first = ""
  }

  package let options: AnswerChaos.Options
  package var duration = Duration.zero
  package var count = 0
  /// Cases with the real command.
  package var commands = 0
  /// How often a command ended with each exit code.
  private var codes: [Int32: Int] = [:]
  package var coverage = AnswerCoverage()
  package var findings: [String: Finding] = [:]
  /// How streams ended.
  package var ends: [String: Int] = [:]
  /// Whether every combination must have occurred.
  package var isFull = false

  init(options: AnswerChaos.Options) { self.options = options }

  package var failed: Int { findings.values.map(\.count).reduce(0, +) }
  package var isClean: Bool { findings.isEmpty && (!isFull || coverage.missing.isEmpty) }

  /// - Returns: whether this kind of failure is new.
  mutating func add(_ outcome: CaseOutcome) -> Bool {
    count += 1
    ends[outcome.end, default: 0] += 1
    coverage.add(outcome.cell, wasReached: outcome.wasReached, statuses: outcome.statuses)
    guard let violation = outcome.violation else { return false }
    var finding = findings[violation.kind] ?? Finding(kind: violation.kind)
    finding.count += 1
    if finding.cases.count < 6 { finding.cases.append(outcome.index) }
    finding.cells["\(outcome.cell)", default: 0] += 1
    if finding.first.isEmpty { finding.first = outcome.text }
    findings[violation.kind] = finding
    return finding.count == 1
  }

  /// - Returns: whether this kind of failure is new.
  mutating func add(command index: Int, _ code: Int32?, _ violation: AnswerViolation?) -> Bool {
    commands += 1
    if let code { codes[code, default: 0] += 1 }
    guard let violation else { return false }
    var finding = findings[violation.kind] ?? Finding(kind: violation.kind)
    finding.count += 1
    finding.commands.append(index)
    if finding.first.isEmpty { finding.first = violation.detail }
    findings[violation.kind] = finding
    return finding.count == 1
  }

  package var description: String {
    var lines: [String] = []
    if options.only == nil { lines = ["", "odd answers given, in each phase:", coverage.table] }
    for finding in findings.values.sorted(by: { $0.count > $1.count }) {
      lines += ["", "FAILED \(finding.count) times: \(finding.kind)"]
      lines += finding.cells.sorted { $0.value > $1.value }.prefix(8).map { "  \($0.value) times: \($0.key)" }
      lines.append(finding.first)
      lines += finding.cases.map { "  again: chaos-answers --seed \(options.seed) --only \($0)" }
      lines += finding.commands.prefix(6).map {
        "  again: chaos-answers --seed \(options.seed) --only \($0) --repeat 1 --command-every 1"
      }
    }
    if isFull, !coverage.missing.isEmpty {
      lines.append("FAILED: \(coverage.missing.count) possible combinations were not reached:")
      lines += coverage.missing.prefix(30).map { "  \($0), planned \(coverage.counts[$0] ?? 0) times" }
    }
    if options.only == nil { lines.append(coverage.sum) }
    if commands > 0 {
      let counts = codes.sorted { $0.key < $1.key }.map { "\($0.key) \($0.value) times" }
      lines.append("commands ended with exit code " + counts.joined(separator: ", "))
    }
    lines.append(
      "streams ended: " + ends.sorted { $0.value > $1.value }.map { "\($0.key) \($0.value)" }.joined(separator: ", "))
    lines.append(
      "seed \(options.seed): \(count) cases and \(commands) commands in \(Int(duration / .seconds(1))) s, "
        + "\(coverage.statuses.count) statuses, \(failed) failed")
    return lines.joined(separator: "\n")
  }
}
