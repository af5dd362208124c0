// The clocks of one transfer: when progress is reported, and whether bytes arrive fast enough.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

/// The timers of the active transfer. Each runs only while it is needed.
final class UploadProgress {
  private let loop: EventLoop
  var schedule = ProgressSchedule()
  var isSyncing = false
  private var announcement: EventLoop.Timer?
  private let rate: RateWatch

  init(_ loop: EventLoop) {
    self.loop = loop
    rate = RateWatch(loop)
  }

  var now: Int64 { MonotonicInstant.now.nanoseconds }

  /// - Parameters:
  ///   - limit: the maximum number of progress reports.
  ///   - interval: the minimum time between two of them that the client requests, in nanoseconds.
  func begin(limit: Int?, interval: Int64?) {
    end()
    schedule = ProgressSchedule(limit: limit, interval: interval)
  }

  /// No progress is reported any more.
  func end() {
    if let announcement { loop.cancel(announcement) }
    announcement = nil
    rate.end()
  }

  func setTimer(at nanoseconds: Int64, _ work: @escaping () -> Void) {
    announcement = loop.schedule(at: MonotonicInstant(nanoseconds: nanoseconds)) { [self] in
      announcement = nil
      work()
    }
  }

  /// Calls `tooSlow` when fewer than `minimum` bytes per second have arrived within a window.
  ///
  /// - Parameter received: returns how many bytes have arrived in total.
  func watchRate(
    minimum: UInt64, window: Duration, received: @escaping () -> UInt64, tooSlow: @escaping () -> Void
  ) {
    rate.watch(minimum: minimum, window: window, received: received, tooSlow: tooSlow)
  }
}
