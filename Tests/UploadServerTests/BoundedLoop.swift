// Event loops of tests, which end even if nothing stops them.

import EventLoops

extension EventLoop {
  /// Runs until it is stopped, but not for longer than a minute, so that a test fails instead of hanging.
  func runAtMostAMinute() {
    let end = schedule(after: .seconds(60)) { [unowned self] in stop() }
    run()
    cancel(end)
  }
}
