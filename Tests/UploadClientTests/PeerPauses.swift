// How long the thread of a slow peer pauses, for tests whose peer must not be silent for long. A busy machine may stop
// it for as long as a peer that has stalled.

import EventLoops
import NetworkTesting

/// The time between the moments that a test and its peer note.
final class PeerPauses: Sendable {
  private let state = Lock<(last: MonotonicInstant?, longest: Duration)>((nil, .zero))

  func note() {
    let now = MonotonicInstant.now
    state.withLock { state in
      if let last = state.last { state.longest = max(state.longest, now - last) }
      state.last = now
    }
  }

  /// The longest pause, including the present one.
  var longest: Duration {
    let now = MonotonicInstant.now
    return state.withLock { state in
      guard let last = state.last else { return state.longest }
      return max(state.longest, now - last)
    }
  }
}

/// Repeats `isTolerated` while the request fails and its peer has paused for longer than this.
func withSlowPeer(pausingAtMost limit: Duration, _ isTolerated: (PeerPauses) throws -> Bool) throws {
  for _ in 0..<5 {
    let pauses = PeerPauses()
    if try isTolerated(pauses) { return }
    let longest = pauses.longest
    guard longest > limit else { throw TestFailure("the request failed, although no pause was longer than \(longest)") }
  }
  throw TestFailure("the request failed, and its peer paused for longer than \(limit) each time")
}
