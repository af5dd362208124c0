// Remembers what the disk has refused to sync. The kernel reports such an error once, and drops the pages that it could
// not write. Every later sync succeeds without them (fsync(2), "Errors").

internal import DiskFiles
internal import EventLoops
internal import StreamServing

/// The recordings that the disk has refused to sync. Nothing about their streams may be acknowledged until the unsynced
/// bytes are dropped, or until the recording is closed and the stream continues in a next part. Any thread.
final class SyncRefusals: Sendable {
  /// For each stream, by the base of its name: the errors of its recordings, by the names of their files without
  /// extension.
  private let streams = Lock<[String: [String: SystemError]]>([:])

  /// A file that something else has changed has lost no pages.
  func add(_ error: SystemError, _ name: StreamName) {
    guard !error.isForeignChange else { return }
    streams.withLock { $0[name.base, default: [:]][name.fileBase] = error }
  }

  /// The result of a sync of the recording: its own error, or an earlier one. Its own is remembered, except for a
  /// shortage: then the sync has not begun, and the next one includes the same bytes.
  ///
  /// Two requests may wait for syncs of one file at the same time. If the first one gets the error, the second one must
  /// not count on its own success.
  func result(_ error: SystemError?, of name: StreamName) -> SystemError? {
    if let error, !error.isShortage { add(error, name) }
    return error ?? ofAny(name)
  }

  /// Why the disk refused a recording of the stream, the growing one or one before; nil if it did not.
  func ofAny(_ name: StreamName) -> SystemError? { streams.withLock { $0[name.base]?.values.first } }

  /// Why the disk refused this recording; nil if it did not.
  func ofRecording(_ name: StreamName) -> SystemError? { streams.withLock { $0[name.base]?[name.fileBase] } }

  /// The bytes of this recording that were not synced are removed.
  func forgetRecording(_ name: StreamName) {
    streams.withLock { streams in
      streams[name.base]?[name.fileBase] = nil
      if streams[name.base]?.isEmpty == true { streams[name.base] = nil }
    }
  }

  /// The stream does not depend on these recordings any more.
  func forgetAll(_ name: StreamName) { streams.withLock { $0[name.base] = nil } }
}
