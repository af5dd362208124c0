// A short version of the simulated week. `make soak` runs the long one.

import PropertyTesting
import SoakTesting
import Testing

/// Serialized, because each has two programs with accelerated time.
@Suite("Soak", .serialized)
struct SoakTests {
  @Test(
    "a microphone with every fault twice and clock changes, split or not: every loss is reported, and nothing grows",
    arguments: Seed.several(1), [nil, "5min"] as [String?])
  func compressed(seed: Seed, split: String?) throws {
    var options = SoakRun.Options.compressed(seed: seed.value, cycles: 19)
    options.split = split
    let report = try SoakRun(options, tell: { _ in }).perform()
    #expect(report.violations == [], "\(seed)")
  }

  @Test(
    "if both programs leak, stored audio disappears and no loss is reported, the run fails for each of these reasons",
    arguments: Seed.several(1))
  func planted(seed: Seed) throws {
    var options = SoakRun.Options.compressed(seed: seed.value, cycles: 10)
    options.planted = Set(PlantedDefect.allCases)
    let report = try SoakRun(options, tell: { _ in }).perform()
    for process in ["sluice mic", "sluice serve"] {
      for figure in ["resident memory", "anonymous memory", "descriptors", "timers", "threads"] {
        #expect(
          report.violations.contains { $0.hasPrefix("\(process): \(figure) grows") }, "\(seed) \(report.violations)")
      }
    }
    #expect(report.violations.contains { $0.hasPrefix("missing at the server") })
    #expect(report.unreported.ranges.contains { (4096...4100).contains($0.count) }, "\(seed): \(report.unreported)")
    // All of it, except frames at the edges in which the microphone recorded silence.
    let overlooked = report.forgotten.subtracting(report.unreported).ranges
    #expect(!report.forgotten.ranges.isEmpty && overlooked.allSatisfy { $0.count <= 4 }, "\(seed): \(overlooked)")
  }
}
