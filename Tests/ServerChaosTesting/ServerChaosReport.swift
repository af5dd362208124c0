// The results of a run, in numbers and transcripts.

/// The result of a run.
package struct ServerChaosReport: Sendable, CustomStringConvertible {
  package struct Finding: Sendable {
    package var kind: String
    package var count: Int
    package var sequences: [Int]
    /// The first sequence that failed in this way.
    package var text: String
    /// How often it occurred in each setting, with each event.
    package var places: [String: Int] = [:]
    /// The shortest sequence that still fails; nil if it did not fail again.
    package var shortest: String?
  }

  package var options: ServerChaos.Options
  package var duration: Duration
  package var count = 0
  package var coverage = ChaosCoverage()
  package var tally = ChaosTally()
  package var findings: [Finding] = []
  /// Combinations that should have occurred and did not.
  package var missing: [ChaosCell] = []

  package var isClean: Bool { findings.isEmpty && missing.isEmpty }

  package var description: String {
    var lines: [String] = []
    if options.only == nil {
      lines = ["", "combinations, as the fewest of one server setting / all of them:", coverage.table]
    }
    for finding in findings {
      lines += ["", "FAILED \(finding.count) times: \(finding.kind)"]
      lines += finding.places.sorted { $0.value > $1.value }.prefix(6).map { "  \($0.value) times: \($0.key)" }
      lines.append(finding.shortest ?? finding.text)
      for index in finding.sequences {
        lines.append("  again: chaos-server --seed \(options.seed) --only \(index)")
      }
    }
    if !missing.isEmpty {
      lines.append("FAILED: \(missing.count) combinations did not come about: \(missing.prefix(5))")
    }
    if options.only == nil { lines.append(tally.description) }
    lines.append(
      "seed \(options.seed): \(count) sequences in \(duration.components.seconds) s, \(coverage.counts.count) of "
        + "\(ChaosCell.all.count) combinations, \(findings.map(\.count).reduce(0, +)) sequences failed")
    return lines.joined(separator: "\n")
  }
}
