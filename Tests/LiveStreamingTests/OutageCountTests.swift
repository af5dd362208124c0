import Testing

@testable import LiveStreaming

@Suite("The number of outages")
struct OutageCountTests {
  /// Notes a failure, and expects this number afterwards.
  private func fail(
    _ acknowledged: UInt64, _ outages: inout OutageCount, count: Int,
    sourceLocation: SourceLocation = #_sourceLocation
  ) {
    let before = outages.count
    let isRepeated = outages.failed(acknowledged: acknowledged)
    #expect(outages.count == count && isRepeated == (before == count), sourceLocation: sourceLocation)
  }

  @Test("failures without an acknowledged byte between them are one outage, also if the server lost some")
  func repeated() {
    var outages = OutageCount()
    #expect(outages.count == 0)
    fail(0, &outages, count: 1)
    fail(0, &outages, count: 1)
    fail(1, &outages, count: 2)
    fail(1, &outages, count: 2)
    // The server has lost bytes, so the next ones are progress.
    fail(0, &outages, count: 2)
    fail(1, &outages, count: 3)
  }

  @Test("skipped bytes are not progress, and bytes behind them are")
  func skipped() {
    var outages = OutageCount()
    // Before the first outage, there is nothing to skip.
    outages.skipped(to: 5)
    fail(3, &outages, count: 1)
    outages.skipped(to: 10)
    outages.skipped(to: 4)
    fail(10, &outages, count: 1)
    fail(11, &outages, count: 2)
    outages.skipped(to: 20)
    fail(21, &outages, count: 3)
  }

  @Test("after a connection that worked, the next failure is another outage")
  func worked() {
    var outages = OutageCount()
    fail(7, &outages, count: 1)
    outages.worked()
    fail(7, &outages, count: 2)
    fail(7, &outages, count: 2)
  }
}
