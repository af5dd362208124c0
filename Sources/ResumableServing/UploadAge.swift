// How long an upload has been left alone, in this server and as the next one is to know it.

internal import EventLoops

/// When an upload was last asked for something. What is written down of that lags behind.
struct UploadAge {
  private(set) var lastActivity: MonotonicInstant
  private var lastWritten: MonotonicInstant
  /// Whether it is written down that the upload has been left alone for a while.
  private var isAged: Bool

  /// - Parameter age: how long earlier servers have seen it left alone.
  init(_ age: Duration, now: MonotonicInstant) {
    lastActivity = MonotonicInstant(nanoseconds: now.nanoseconds - age.nanoseconds)
    lastWritten = lastActivity
    isAged = age > .zero
  }

  /// The upload is alive. Whether that is to be written down: for the next server, and not with every request.
  mutating func touch(now: MonotonicInstant) -> Bool {
    lastActivity = now
    guard isAged || lastActivity - lastWritten > .seconds(30) else { return false }
    isAged = false
    lastWritten = lastActivity
    return true
  }

  /// How long it has been left alone, to be written down.
  mutating func written(now: MonotonicInstant) -> Duration {
    isAged = true
    return now - lastActivity
  }
}
