// The delay before the next attempt.

internal import EventLoops

/// Decides when a stream retries after a failure, and when it gives up.
///
/// A delay is drawn uniformly from the upper half of a range that grows with the outage. The range ends at a quarter of
/// the outage's duration so far. So a stream returns quickly after a short outage, and a thousand streams do not return
/// at once after a long one.
public struct RetryPolicy: Equatable, Sendable {
  /// The longest delay at the start of an outage.
  public var initialCeiling = Duration.milliseconds(250)
  /// The longest delay. A server's `Retry-After` is honored up to this value. If it requests more, the delay is between
  /// four fifths of this value and this value.
  public var maximumCeiling = Duration.seconds(15)
  /// The time without progress after which the stream gives up, if at least three attempts have failed. Nil means
  /// never.
  public var giveUpAfter: Duration?
  /// The time of refusals (401, 403, an untrusted certificate) after which the stream gives up. Nil means ten minutes
  /// once the server has acknowledged data, and at once before that.
  ///
  /// Before the server has acknowledged data, a time other than zero also applies to any other refusal (a redirect,
  /// 404, 405, …), and to a success that does not follow the protocol (a 201 without `Location`, …). A portal may have
  /// answered instead of the server. Exceptions are a 413, and a 409 or 410 about the stored bytes.
  public var giveUpOnRefusalAfter: Duration?
  /// Whether ``giveUpAfter`` counts only after the first connection.
  package var waitsForConnectivity = false

  /// Creates the default policy: retry for as long as the stream lives.
  public init() {}

  /// The delay before the next attempt.
  ///
  /// - Parameters:
  ///   - outage: the time since the first failed attempt.
  ///   - retryAfter: the delay that the server requested (RFC 9110, section 10.2.3).
  ///   - draw: 64 random bits, new ones for each attempt, which select the delay within the range.
  package func delay(outage: Duration, retryAfter: Duration?, draw: UInt64) -> Duration {
    let ceiling = max(0, min(max(outage.nanoseconds / 4, initialCeiling.nanoseconds), maximumCeiling.nanoseconds))
    var (least, most) = (ceiling / 2, ceiling)
    if let retryAfter {
      let (asked, longest) = (max(0, retryAfter.nanoseconds), max(0, maximumCeiling.nanoseconds))
      // The server gave all clients the same delay, so up to a quarter of jitter is added. If the maximum limits the
      // delay, the jitter is subtracted instead.
      least = max(least, min(asked, asked > longest ? longest - longest / 5 : longest))
      most = max(most, min(asked.addingSaturated(asked / 4), longest))
    }
    // The draw as a fraction of 2^64. The range cannot overflow, because both ends are at least 0.
    let range = UInt64(most - least) &+ 1
    return .nanoseconds(least + Int64(range.multipliedFullWidth(by: draw).high))
  }

  /// Whether any refusal before the first acknowledged byte is retried for a time.
  var retriesRefusals: Bool { giveUpOnRefusalAfter ?? .zero > .zero }

  /// The longest time that a server may refuse a stream.
  ///
  /// - Parameter hasAcknowledged: whether it has acknowledged data before.
  func refusalLimit(hasAcknowledged: Bool) -> Duration {
    giveUpOnRefusalAfter ?? (hasAcknowledged ? .seconds(600) : .zero)
  }
}
