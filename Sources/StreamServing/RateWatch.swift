// Detects clients that send less than the minimum rate, because they occupy places that others need.

package import EventLoops

/// Checks once per window how many bytes have arrived. Only on the loop's thread.
package final class RateWatch {
  private let loop: EventLoop
  private var timer: EventLoop.Timer?

  package init(_ loop: EventLoop) { self.loop = loop }

  /// Calls `tooSlow` when fewer than `minimum` bytes per second have arrived within a window.
  ///
  /// - Parameter received: returns how many bytes have arrived in total.
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
