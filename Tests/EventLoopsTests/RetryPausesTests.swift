// The pauses between attempts grow up to a limit, and begin anew after a success.

import Testing

@testable import EventLoops

@Suite("Pauses between attempts")
struct RetryPausesTests {
  @Test("each pause is twice as long as the one before, up to the longest")
  func growth() {
    var pauses = RetryPauses(.seconds(2)...(.seconds(120)))
    #expect(pauses.isFirst && pauses.shortest == .seconds(2))
    let found = (0..<8).map { _ in pauses.next() }
    #expect(found == [2, 4, 8, 16, 32, 64, 120, 120].map { Duration.seconds($0) })
    #expect(!pauses.isFirst && pauses.shortest == .seconds(2))
    let (constant, last) = (pauses.next(grows: false), pauses.next())
    #expect(constant == .seconds(2) && last == .seconds(120))
  }

  @Test("after a success they begin anew", arguments: [0, 1, 5, 20])
  func success(count: Int) {
    var pauses = RetryPauses(.milliseconds(50)...(.seconds(2)))
    for _ in 0..<count { _ = pauses.next() }
    pauses.reset()
    let isFirst = pauses.isFirst
    let (first, second) = (pauses.next(), pauses.next())
    #expect(isFirst && first == .milliseconds(50) && second == .milliseconds(100))
  }
}
