// Whether the peer accepts what a request has to send: judged for each request, by what it leaves unanswered.
//
// TCP_USER_TIMEOUT (tcp(7)) judges the connection. It sees nothing when HTTP/2's flow control holds a request up: all
// bytes that went out are acknowledged, and the rest waits in this process for a window that never comes.

internal import EventLoops

/// Takes looks at a request, and tells when nothing has moved for too long. No I/O, no clock.
struct StallWatch {
  struct Look: Equatable {
    /// Whether the request has work for the peer: bytes that libcurl holds, or a body that it has not begun to ask for.
    var isWaiting: Bool
    /// Body bytes that libcurl has passed on to the connection.
    var passedOn: UInt64
    /// Bytes of response heads so far: who says something is alive.
    var heard: Int
    /// What the kernel has of the connection; nil where the connection carries other requests too.
    var kernel: Kernel?
  }

  /// Bytes under way, and all that the peer's TCP has ever acknowledged.
  struct Kernel: Equatable {
    var queued: UInt64
    var acknowledged: UInt64
  }

  private let limit: Duration
  private var last: Look
  private var lastProgress: MonotonicInstant

  /// How long until the next look: a stall is noticed at most a quarter of its limit late.
  var interval: Duration { max(limit / 4, .milliseconds(1)) }

  init(limit: Duration, _ look: Look, now: MonotonicInstant) {
    self.limit = limit
    last = look
    lastProgress = now
  }

  /// Whether nothing has moved for as long as the limit, although the request waits.
  mutating func isStalled(_ look: Look, now: MonotonicInstant) -> Bool {
    defer { last = look }
    if !look.isWaiting || hasMoved(look) { lastProgress = now }
    return now - lastProgress >= limit
  }

  private func hasMoved(_ look: Look) -> Bool {
    if look.passedOn != last.passedOn || look.heard != last.heard { return true }
    // A slow line takes long for what the kernel holds. Without anything queued, what the peer acknowledges is no part
    // of the body but HTTP/2's own, such as the answer to a ping.
    guard let before = last.kernel, let now = look.kernel, before.queued > 0 else { return false }
    return now.acknowledged != before.acknowledged || now.queued < before.queued
  }
}
