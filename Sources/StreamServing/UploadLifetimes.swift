// How long an upload is left alone before it is over.

internal import EventLoops

/// The lifetimes of uploads of known length and of live streams, which have no announced length.
package struct UploadLifetimes: Sendable {
  package let sized: Duration
  package let live: Duration

  package init(sized: Duration, live: Duration) {
    (self.sized, self.live) = (max(sized, Self.least), max(live, Self.least))
  }

  /// No upload is over as soon as its request ends.
  private static let least = Duration.milliseconds(1)

  package func of(isLive: Bool) -> Duration { isLive ? live : sized }

  package var shortest: Duration { min(sized, live) }

  /// The same as it is announced to clients (`max-age`).
  package func told(isLive: Bool) -> UInt64 { Self.wholeSeconds(of(isLive: isLive)) }

  /// A lifetime that every upload has at least, because it is announced before the kind of an upload is known.
  package var toldOfAll: UInt64 { Self.wholeSeconds(shortest) }

  private static func wholeSeconds(_ duration: Duration) -> UInt64 {
    UInt64(max(1, duration.nanoseconds / 1_000_000_000))
  }
}
