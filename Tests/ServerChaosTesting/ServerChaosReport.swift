// What a run found, in numbers and transcripts.

/// The result of a run.
package struct ServerChaosReport: Sendable, CustomStringConvertible {
  package struct Finding: Sendable {
    package var kind: String
    package var count: Int
    package var sequences: [Int]
    /// The first sequence that failed in this way.
    package var text: String
    /// The shortest that still does; nil if it did not fail again.
    package var shortest: String?
  }

  package var options: ServerChaos.Options
  package var duration: Duration
  package var count = 0
  package var coverage = ChaosCoverage()
  package var findings: [Finding] = []
  /// Whether every combination must have come about.
  package var isFull = false

  package var isClean: Bool { findings.isEmpty && (!isFull || coverage.missing.isEmpty) }

  package var description: String {
    var lines = ["", "combinations, as the fewest of one server setting / all of them:", coverage.table]
    for finding in findings {
      lines += ["", "FAILED \(finding.count) times: \(finding.kind)"]
      lines.append(finding.shortest ?? finding.text)
      if finding.shortest == nil { lines.append("  (did not fail again)") }
      for index in finding.sequences {
        lines.append("  again: chaos-server --seed \(options.seed) --only \(index)")
      }
    }
    if isFull, !coverage.missing.isEmpty {
      lines.append("FAILED: \(coverage.missing.count) combinations did not come about: \(coverage.missing.prefix(5))")
    }
    lines.append(
      "seed \(options.seed): \(count) sequences in \(duration.components.seconds) s, \(coverage.counts.count) of "
        + "\(ChaosCell.all.count) combinations, \(findings.map(\.count).reduce(0, +)) sequences failed")
    return lines.joined(separator: "\n")
  }
}
