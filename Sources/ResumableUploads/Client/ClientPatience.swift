// How long the client keeps trying without progress, and how far it has come.

extension UploadClientStateMachine {
  /// The furthest places that the stream has reached. Stream offsets.
  struct HighWater: Sendable {
    /// The largest offset that was ever acknowledged. Bytes before it need not be kept, even if the server later
    /// reports a lower one.
    var acknowledged: UInt64 = 0
    /// The largest offset that any answer has shown, be it an acknowledgement or HEAD.
    var shown: UInt64 = 0
    /// The furthest offset of the upload resource that followed a missing one.
    var sinceRestart: UInt64 = 0
    /// The offset up to which gaps were reported, whichever upload resource the client then returned to.
    var reported: UInt64 = 0
    /// The newest of these gaps, with those right before it.
    private(set) var gap: Range<UInt64> = 0..<0

    /// A gap was reported, and the next upload resource begins after it.
    mutating func report(_ new: Range<UInt64>) {
      gap = (gap.upperBound == new.lowerBound ? gap.lowerBound : new.lowerBound)..<new.upperBound
      reported = new.upperBound
    }

    /// The client returns to a former upload resource, and has reported gaps since then.
    mutating func keepReports(of newer: HighWater) { (reported, gap) = (newer.reported, newer.gap) }
  }

  /// What has gone wrong in a row. Each number has a limit, so that no answer makes the client repeat a request
  /// forever.
  struct Patience: Sendable {
    /// Answers since the last progress that made the client ask again at once.
    var detours = 0
    /// Refusals of an append's size since the last progress. They make appends smaller.
    var shrinks = 0
    /// Whether all sizes were refused since the last progress. Then the client no longer tries them at once.
    var hasShrunkInVain = false
    /// How often a new upload resource followed one that was gone, since the last progress.
    var restarts = 0
    /// How often in a row the server refused bytes where a new upload begins.
    var placeRefusals = 0
    /// How often in a row the upload resource was reported missing.
    var missing = 0
    /// Successive unbelievable answers to HEAD.
    var disbelieved = 0
    /// How often the answer to an append to a complete upload reported it incomplete.
    var denials = 0
    /// How many appends in a row made progress although the server stored only a small part of each.
    var shortAppends = 0

    /// The server has stored more bytes than ever before.
    mutating func renew() {
      (detours, shrinks, restarts) = (0, 0, 0)
      hasShrunkInVain = false
    }
  }
}
