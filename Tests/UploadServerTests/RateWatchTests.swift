// Tests the watch over the rate of a client by itself. Tests of the limits use it with real clients.

import EventLoops
import StreamServing
import Testing

@Suite("The watch over the rate of a client")
struct RateWatchTests {
  @Test("a watch that was ended reports nothing, and another one still reports its client")
  func ended() throws {
    let loop = try EventLoop()
    let (ended, running) = (RateWatch(loop), RateWatch(loop))
    var reports: [String] = []
    ended.watch(minimum: 1, window: .milliseconds(1), received: { 0 }, tooSlow: { reports.append("ended") })
    running.watch(
      minimum: 1, window: .milliseconds(2), received: { 0 },
      tooSlow: { [unowned loop] in
        reports.append("running")
        loop.stop()
      })
    ended.end()
    // The timer of the first one would be the earlier one.
    loop.run()
    #expect(reports == ["running"])
  }
}
