// How long an upload has been idle, in this server and for the next one.

internal import EventLoops

/// The time of an upload's last request. The written age lags behind.
struct UploadAge {
  private(set) var lastActivity: MonotonicInstant
  private var lastWritten: MonotonicInstant
  /// Whether the written age states that the upload was idle for a while.
  private var isAged: Bool

  /// - Parameter age: how long earlier servers have seen it idle.
  init(_ age: Duration, now: MonotonicInstant) {
    lastActivity = MonotonicInstant(nanoseconds: now.nanoseconds - age.nanoseconds)
    lastWritten = lastActivity
    isAged = age > .zero
  }

  /// The upload is alive. Returns whether to write that for the next server, which is not necessary with every request.
  mutating func touch(now: MonotonicInstant) -> Bool {
    lastActivity = now
    guard isAged || lastActivity - lastWritten > .seconds(30) else { return false }
    isAged = false
    lastWritten = lastActivity
    return true
  }

  /// How long it has been idle, for the file.
  mutating func written(now: MonotonicInstant) -> Duration {
    isAged = true
    return now - lastActivity
  }
}
