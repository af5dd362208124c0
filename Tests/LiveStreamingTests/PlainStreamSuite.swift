// What the suites about the state machine of a plain stream share: ends of requests, and supplies.

import EventLoops
import ResumableUploads

@testable import LiveStreaming

/// A suite whose tests report events to the state machine of a plain stream.
protocol PlainStreamSuite {}

extension PlainStreamSuite {
  static var lost: Verdict { .transient(.connectionLost("reset"), retryAfter: nil, serverOffset: nil) }
  static func refused(_ offset: UInt64? = nil) -> Verdict {
    .transient(.response(503), retryAfter: nil, serverOffset: offset)
  }
  /// The supply of a stream that continues.
  static func supply(_ oldest: UInt64, _ head: UInt64 = 1000, headroom: UInt64 = 0, isFinished: Bool = false)
    -> Supply
  {
    Supply(oldest: oldest, head: head, isFinished: isFinished, restart: oldest + headroom)
  }
  static func at(_ seconds: Int64) -> MonotonicInstant { .init(nanoseconds: seconds * 1_000_000_000) }
}
