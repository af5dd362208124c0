// The clocks of one transfer: when progress is told, whether bytes come fast enough.

internal import EventLoops
internal import ResumableUploads
internal import StreamServing

/// The timers of the transfer at work. Each runs only while there is something for it to do.
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
  ///   - limit: how many times progress may be told.
  ///   - interval: the least time between two of them that the client asks for, in nanoseconds.
  func begin(limit: Int?, interval: Int64?) {
    end()
    schedule = ProgressSchedule(limit: limit, interval: interval)
  }

  /// Nothing is told any more.
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

  /// Calls `tooSlow` when within a window fewer than `minimum` bytes a second have come.
  ///
  /// - Parameter received: how many bytes have come in all.
  func watchRate(
    minimum: UInt64, window: Duration, received: @escaping () -> UInt64, tooSlow: @escaping () -> Void
  ) {
    rate.watch(minimum: minimum, window: window, received: received, tooSlow: tooSlow)
  }
}
