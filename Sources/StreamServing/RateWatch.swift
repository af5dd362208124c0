// Whether bytes come fast enough: who brings less than the least rate holds a place that others need.

package import EventLoops

/// Looks once in each window how many bytes have come. Only on the loop's thread.
package final class RateWatch {
  private let loop: EventLoop
  private var timer: EventLoop.Timer?

  package init(_ loop: EventLoop) { self.loop = loop }

  /// Calls `tooSlow` when within a window fewer than `minimum` bytes a second have come.
  ///
  /// - Parameter received: how many bytes have come in all.
  package func watch(
    minimum: UInt64, window: Duration, received: @escaping () -> UInt64, tooSlow: @escaping () -> Void
  ) {
    let before = received()
    timer = loop.schedule(after: window) { [self] in
      timer = nil
      let came = received() - min(before, received())
      let (least, overflow) = minimum.multipliedReportingOverflow(by: UInt64(max(1, window.components.seconds)))
      guard !overflow, came >= least else { return tooSlow() }
      watch(minimum: minimum, window: window, received: received, tooSlow: tooSlow)
    }
  }

  package func end() {
    if let timer { loop.cancel(timer) }
    timer = nil
  }
}
