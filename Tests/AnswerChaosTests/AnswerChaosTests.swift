// The matrix of `make chaos-answers`, once each.

import AnswerChaosTesting
import PropertyTesting
import Testing

@Suite("Answer chaos", .serialized)
struct AnswerChaosTests {
  @Test("a stream recovers from each odd answer in each phase, or ends for a reason", arguments: Seed.several(1))
  func everyCombination(_ seed: Seed) throws {
    let options = AnswerChaos.Options(seed: seed.value, count: AnswerChaos.roundSize)
    let report = try AnswerChaos(options).run()
    #expect(report.isClean, "\(report)")
  }
}
