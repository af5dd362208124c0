// Which received bytes are progress, although a download may start over.

/// How far a download has come. Bytes that replace the same ones are no progress, and those of a new version are.
struct DownloadReach {
  /// The largest number of bytes that ever existed.
  private(set) var furthest: UInt64 = 0
  /// The number of bytes beyond which the next ones are progress.
  private var known: UInt64 = 0
  /// How often the resource has changed since more bytes existed than ever before.
  private var changes = 0
  /// The number of these changes whose bytes are progress. Otherwise a download of a resource that changes with each
  /// request would never give up.
  private static let changeLimit = 3

  init() {}

  /// The reach of a download that begins with these bytes of an earlier one.
  init(resuming count: UInt64) { (furthest, known) = (count, count) }

  /// Notes how many bytes exist now. Returns whether that is progress.
  mutating func received(upTo count: UInt64) -> Bool {
    guard count > known else { return false }
    known = count
    if count > furthest { (furthest, changes) = (count, 0) }
    return true
  }

  /// Notes that the existing bytes were discarded.
  mutating func startedOver(_ reason: DownloadRestart) {
    // If the new version is shorter, a server that ignores If-Range does not have the requested range.
    guard reason == .changed || reason == .range, changes < Self.changeLimit else { return }
    (known, changes) = (0, changes + 1)
  }
}
