// The attempts of a stream that waits become rare only if each of them is costly.

import Testing

@testable import LogCollecting

@Suite("The pauses of a stream that waits")
struct RetryPausesTests {
  @Test("costly attempts follow after growing pauses of at most two minutes, and others every two seconds")
  func pauses() {
    var pauses = RetryPauses()
    let growing = (0..<8).map { _ in pauses.next(grows: true) }
    let expected = [2, 4, 8, 16, 32, 64, 120, 120].map { Duration.seconds($0) }
    #expect(growing == expected)
    let (constant, last) = (pauses.next(grows: false), pauses.next(grows: true))
    #expect(constant == .seconds(2) && last == .seconds(120))
  }
}
