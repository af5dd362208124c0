// Decides when a 104 reports progress: at once if that helps the client. Otherwise, at most five per second, or one
// per 2 MiB or more.

/// Decides when the offset of a transfer is announced. Times are nanoseconds of any clock that does not go back.
///
/// A source that sends something every quarter of a second should have each message acknowledged as it arrives, even if
/// its clock jitters. So the interval is a fifth of a second. libcurl fails a transfer after 300 KB of response heads.
/// With about a hundred bytes each, five per second last for nine minutes, and clients roll over long before. A fast
/// client keeps unacknowledged bytes, and must wait when there are too many. For such a client the schedule counts
/// bytes instead of time, at growing distances, so that ten gigabytes in one request make 600 announcements.
///
/// Each announcement also wakes the client. A client that needs fewer of them requests a longer interval
/// (``UploadFields/progressInterval``).
///
/// Proxies are less tolerant. Those built on Go's `net/http` before 1.23 fail a request at its sixth interim response.
/// So there may be a limit, and then the announcements come at growing distances.
package struct ProgressSchedule: Equatable, Sendable {
  /// The least time between two announcements.
  package static let interval: Int64 = 200_000_000
  /// This many bytes are announced before the end of the interval, or a 128th of the transfer if that is more.
  package static let step: UInt64 = 2 << 20

  package enum Action: Equatable, Sendable {
    case nothing
    case announce
    /// Call ``timerFired(now:)`` at this time.
    case setTimer(at: Int64)
  }

  private let limit: Int?
  /// The minimum time between two announcements of this transfer.
  private let interval: Int64
  /// How many announcements there were.
  private var announcements = 0
  private var last: Int64?
  private var isTimerSet = false
  private var keptCount: UInt64 = 0
  private var announcedCount: UInt64 = 0

  /// - Parameters:
  ///   - limit: the maximum number of announcements; nil for as many as time and bytes require.
  ///   - interval: the interval that the client requests, in nanoseconds, instead of ``interval``. A shorter one is
  ///     ignored.
  package init(limit: Int? = nil, interval: Int64? = nil) {
    self.limit = limit
    self.interval = max(Self.interval, interval ?? 0)
  }

  /// The append was accepted: an announcement shows the client that the offset matched.
  package mutating func accepted(now: Int64) -> Action { announce(now) }

  /// `count` more bytes were kept, or earlier ones can be announced now.
  package mutating func kept(_ count: UInt64, now: Int64) -> Action {
    // Announce the first bytes at once, so that the client learns that bytes arrive.
    let isFirst = keptCount == 0
    keptCount += count
    if let limit, announcements >= limit { return .nothing }
    let isMuch = limit == nil && keptCount - announcedCount >= max(Self.step, keptCount / 128)
    if !isFirst, !isMuch, let last, now - last < distance {
      if isTimerSet { return .nothing }
      isTimerSet = true
      return .setTimer(at: last + distance)
    }
    return announce(now)
  }

  /// Announces the end of a burst too, however short it was.
  package mutating func timerFired(now: Int64) -> Action {
    isTimerSet = false
    return announce(now)
  }

  /// The least time from the last announcement to the next one.
  private var distance: Int64 {
    guard limit != nil else { return interval }
    // After the acceptance and the first bytes: 0.2 s, 1.6 s, 13 s, …
    return max(interval, Self.interval << (3 * Int64(min(max(announcements - 2, 0), 8))))
  }

  private mutating func announce(_ now: Int64) -> Action {
    if let limit, announcements >= limit { return .nothing }
    announcements += 1
    last = now
    announcedCount = keptCount
    return .announce
  }
}
