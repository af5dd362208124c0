// How long to wait before the next attempt.

internal import EventLoops

/// When a stream tries again after a failure, and when it gives up.
///
/// A pause is drawn evenly from the upper half of a range that grows with the outage: it ends at a quarter of what the
/// outage has lasted so far. After a short outage the stream is soon back, and after a long one a thousand streams do
/// not return at once.
public struct RetryPolicy: Equatable, Sendable {
  /// The longest pause while the outage has only begun.
  public var initialCeiling = Duration.milliseconds(250)
  /// The longest pause. A server's `Retry-After` is honored up to here; where it asks for more, the pause is between
  /// four fifths of this and this.
  public var maximumCeiling = Duration.seconds(15)
  /// Give up when there was no progress for this long, and not before three attempts have failed; nil to try for as
  /// long as the stream lives.
  public var giveUpAfter: Duration?
  /// Give up when the server has refused the stream for this long (401, 403, an untrusted certificate); nil for ten
  /// minutes once it has acknowledged data, and at once before.
  public var giveUpOnRefusalAfter: Duration?
  /// Whether ``giveUpAfter`` counts only once a connection has stood.
  package var waitsForConnectivity = false

  /// The defaults: retry for as long as the stream lives.
  public init() {}

  /// The delay before the next attempt.
  ///
  /// - Parameters:
  ///   - outage: how long ago the first attempt failed.
  ///   - retryAfter: what the server asked for (RFC 9110, section 10.2.3).
  ///   - draw: 64 random bits, new ones for each attempt: which place of the range it is.
  package func delay(outage: Duration, retryAfter: Duration?, draw: UInt64) -> Duration {
    let ceiling = max(0, min(max(outage.nanoseconds / 4, initialCeiling.nanoseconds), maximumCeiling.nanoseconds))
    var (least, most) = (ceiling / 2, ceiling)
    if let retryAfter {
      let (asked, longest) = (max(0, retryAfter.nanoseconds), max(0, maximumCeiling.nanoseconds))
      // Everybody was asked to wait equally long, so a quarter of jitter comes on top. A pause that the ceiling cuts
      // short has its jitter below it.
      least = max(least, min(asked, asked > longest ? longest - longest / 5 : longest))
      most = max(most, min(asked.addingSaturated(asked / 4), longest))
    }
    // The draw as a fraction of 2^64. The range cannot overflow: both ends are from 0 up.
    let range = UInt64(most - least) &+ 1
    return .nanoseconds(least + Int64(range.multipliedFullWidth(by: draw).high))
  }

  /// How long a server may refuse a stream.
  ///
  /// - Parameter hasAcknowledged: whether it has acknowledged data before.
  func refusalLimit(hasAcknowledged: Bool) -> Duration {
    giveUpOnRefusalAfter ?? (hasAcknowledged ? .seconds(600) : .zero)
  }
}
