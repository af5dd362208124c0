// How long complete recordings are kept: what an operator may ask for, and nothing else ever removes one.

internal import StreamServing

/// When a server removes complete recordings, the oldest first.
///
/// Only recordings that this software has completed and described in a sidecar are removed, and none while the
/// machine's clock is not synchronized (adjtimex(2)). Sizes count per credential, so that no client can have another's
/// recordings removed. Where the server asks for no credentials, all recordings count together.
public struct RecordingRetention: Equatable, Sendable {
  /// How much of the disk has to be free.
  public enum FreeSpace: Equatable, Sendable {
    /// This number of bytes.
    case bytes(UInt64)
    /// Of the disk's size, 0 to 100.
    case percent(Double)

    /// - Parameter size: the size of the disk, in bytes.
    func bytes(of size: UInt64) -> UInt64 {
      switch self {
      case .bytes(let bytes): bytes
      // NaN requests nothing, and rounding never exceeds 64 bits.
      case .percent(let percent): UInt64(exactly: (max(0, percent) / 100 * Double(size)).rounded(.down)) ?? 0
      }
    }
  }

  /// Recordings that ended longer ago are removed; whole seconds.
  public var longestAge: Duration?
  /// How many bytes of recordings one credential may store.
  public var largestSize: UInt64?
  /// If less is free, the oldest recordings of the credential with the most bytes are removed.
  public var freeSpace: FreeSpace?
  /// How many bytes of recordings each credential keeps, regardless of the other rules.
  public var leastSize: UInt64 = 0

  /// Creates rules. Nil and 0 mean that there is no such rule.
  public init(
    longestAge: Duration? = nil, largestSize: UInt64? = nil, freeSpace: FreeSpace? = nil, leastSize: UInt64 = 0
  ) {
    (self.longestAge, self.largestSize) = (longestAge, largestSize)
    (self.freeSpace, self.leastSize) = (freeSpace, leastSize)
  }
}
