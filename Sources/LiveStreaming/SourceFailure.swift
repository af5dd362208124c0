// The failure of a source, visible to the stream's loop before the end of the source's bytes.

internal import EventLoops

/// The error with which a source has failed. Any thread.
///
/// A source reports its failure before it finishes its producer. So a loop that sees the end also sees the failure, and
/// does not mistake the end for that of the stream.
final class SourceFailure: Sendable {
  private let first = Lock<LiveStreamError?>(nil)

  /// The first failure. Nil if there was none.
  var error: LiveStreamError? { first.withLock { $0 } }

  /// Returns false if there was an earlier one.
  func note(_ error: LiveStreamError) -> Bool {
    first.withLock { first in
      guard first == nil else { return false }
      first = error
      return true
    }
  }
}
