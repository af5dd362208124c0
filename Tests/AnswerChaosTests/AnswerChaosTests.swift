// The matrix of `make chaos-answers`, with each cell once.

import AnswerChaosTesting
import PropertyTesting
import Testing

@Suite("Answer chaos", .serialized)
struct AnswerChaosTests {
  @Test(
    "a stream recovers from each unexpected response in each phase, or ends with a reason", arguments: Seed.several(1))
  func everyCombination(_ seed: Seed) throws {
    let options = AnswerChaos.Options(seed: seed.value, count: AnswerChaos.roundSize)
    let report = try AnswerChaos(options).run()
    if !report.isClean { Issue.record("\(report)") }
  }

  @Test("the real command ends as the responses require, and its reports are true", arguments: Seed.several(1))
  func commands(_ seed: Seed) throws {
    var options = AnswerChaos.Options(seed: seed.value, count: 36)
    options.isCommandOnly = true
    options.commandEvery = 1
    let report = try AnswerChaos(options).run()
    if !report.isClean || report.commands != 36 { Issue.record("\(report)") }
  }
}
