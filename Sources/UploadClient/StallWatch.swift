// Judges for each request whether the peer accepts its data, by unanswered data.
//
// TCP_USER_TIMEOUT (tcp(7)) judges the connection. It notices nothing when HTTP/2's flow control blocks a request: all
// sent bytes are acknowledged, and the rest waits in this process for a window update that never arrives.

internal import EventLoops

/// Examines a request periodically, and reports when there has been no progress for too long. No I/O, no clock.
struct StallWatch {
  struct Look: Equatable {
    /// Whether the request has data for the peer: bytes that libcurl retains, or a body that libcurl has not begun to
    /// read.
    var isWaiting: Bool
    /// The number of body bytes that libcurl has passed to the connection.
    var passedOn: UInt64
    /// The number of bytes of response heads so far. A peer that sends something is alive.
    var heard: Int
    /// The kernel's counts for the connection. Nil if the connection also carries other requests.
    var kernel: Kernel?
  }

  /// The number of bytes in flight, and the number of all bytes that the peer's TCP has acknowledged.
  struct Kernel: Equatable {
    var queued: UInt64
    var acknowledged: UInt64
  }

  private let limit: Duration
  private var last: Look
  private var lastProgress: MonotonicInstant

  /// The time until the next look. A stall is noticed at most a quarter of its limit late.
  var interval: Duration { max(limit / 4, .milliseconds(1)) }

  init(limit: Duration, _ look: Look, now: MonotonicInstant) {
    self.limit = limit
    last = look
    lastProgress = now
  }

  /// Whether there has been no progress for the limit, although the request waits.
  mutating func isStalled(_ look: Look, now: MonotonicInstant) -> Bool {
    defer { last = look }
    if !look.isWaiting || hasMoved(look) { lastProgress = now }
    return now - lastProgress >= limit
  }

  private func hasMoved(_ look: Look) -> Bool {
    if look.passedOn != last.passedOn || look.heard != last.heard { return true }
    // A slow line takes long for the bytes in the kernel. If nothing is queued, the acknowledged bytes are not of the
    // body but of HTTP/2 itself, such as the response to a ping.
    guard let before = last.kernel, let now = look.kernel, before.queued > 0 else { return false }
    return now.acknowledged != before.acknowledged || now.queued < before.queued
  }
}
