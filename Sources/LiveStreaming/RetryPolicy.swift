// How long to wait before the next attempt.

internal import EventLoops

/// Exponential backoff with full jitter: a delay drawn evenly between nothing and a ceiling that doubles with each failure
/// in a row. After an outage that hit a thousand streams at once, they do not come back at once.
public struct RetryPolicy: Equatable, Sendable {
  /// The ceiling of the first delay.
  public var initialCeiling = Duration.milliseconds(500)
  /// The ceiling never exceeds this.
  public var maximumCeiling = Duration.seconds(15)
  /// Give up when nothing was acknowledged for this long in spite of trying; nil to try for as long as the stream lives.
  public var giveUpAfter: Duration?
  /// A `Retry-After` beyond this is not believed.
  public var maximumRetryAfter = Duration.seconds(3600)

  public init() {}

  /// The delay before the next attempt.
  ///
  /// - Parameters:
  ///   - failures: attempts that failed in a row, at least 1.
  ///   - retryAfter: what the server asked for (RFC 9110, section 10.2.3): waited for in full.
  ///   - draw: 64 random bits, new ones for each attempt: which place between nothing and the ceiling it is.
  package func delay(failures: Int, retryAfter: Duration?, draw: UInt64) -> Duration {
    let doublings = min(max(failures, 1) - 1, 30)
    let doubled = initialCeiling.nanoseconds.multipliedReportingOverflow(by: 1 << Int64(doublings))
    let ceiling = doubled.overflow ? maximumCeiling.nanoseconds : min(doubled.partialValue, maximumCeiling.nanoseconds)
    // The draw as a fraction of 2^64, of a range that has the ceiling in it. At 15 s no place is preferred by more than
    // one in a billion.
    let range = UInt64(max(ceiling, 0)) + 1
    let jittered = Duration.nanoseconds(Int64(range.multipliedFullWidth(by: draw).high))
    guard let retryAfter else { return jittered }
    // The jitter on top: everybody was asked to wait equally long.
    return min(retryAfter, maximumRetryAfter) + jittered
  }
}
