// One stream of a store, as seen by its request in progress.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import StreamServing

/// A stream while one of its requests is in progress.
///
/// Only on the loop's thread. Only the stored contents outlive the request. The next request finds them by name.
package protocol StoredStream: AnyObject {
  /// The name of the stream's present recording. The stream may continue in another one.
  var name: StreamName { get }
  var standing: StreamStanding { get }
  var extent: RecordingExtent { get }
  /// How many bytes its recording has received, from all requests.
  var contentCount: UInt64 { get }
  /// How much space its recording takes, in bytes.
  var size: UInt64 { get }
  /// The file of its recording; nil if bytes cannot be read again.
  var place: FilePlace? { get }
  /// Where the bytes of a range of stream offsets are, in one or several files. nil if some cannot be read, because
  /// nothing is kept or an operator has moved a file away.
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]?
  /// Checks that no other program has changed, replaced or removed the stored bytes.
  ///
  /// - Throws: ``SystemError``, with `ESTALE` if one has.
  func check() throws(SystemError)

  /// Whether the first `count` bytes of `pieces` equal the stored bytes at `offset`.
  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool
  /// Stores the bytes of `pieces` at `offset`, without the first `skipped` of them.
  ///
  /// If the offset is after the end, a hole precedes them. The hole is recorded before it is made, and does not exist
  /// if none of the bytes can be stored.
  ///
  /// - Parameter maySplit: whether the stream may be divided into files now, because it is live and none of the coming
  ///   bytes will be removed.
  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool
  ) -> StoredBytes
  /// Makes a hole at the end, after recording it.
  func makeHole(length: UInt64) throws(SystemError)
  /// Removes the bytes after `length`, and the records of holes there.
  func truncate(to length: UInt64) throws(SystemError)
  /// The bytes that a request has stored since the last sync were removed, because the disk has refused to sync them.
  ///
  /// - Returns: whether later syncs can be relied on again. They cannot if no sync has succeeded since the stream was
  ///   opened, and it contained bytes then.
  func removedRefused() -> Bool
  /// Keeps the sender's description of its stream, for the sidecar of the recording.
  func describe(_ description: StreamDescription) throws(SystemError)
  /// Writes the stored bytes to the disk. `completion` is called on the loop's thread.
  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// Ends the stream. `completion` is called on the loop's thread, when it is as durable as configured.
  func finish(_ ending: StreamEnding, on loop: EventLoop, _ completion: @escaping (UnfinishedStream?) -> Void)
}

/// The state in which a request finds the recording of its stream.
package enum StreamStanding {
  /// This request begins it.
  case new
  case growing
  /// It has its final name. Bytes are only compared then.
  case complete
}

/// The range of a recording in its stream, in stream offsets.
package struct RecordingExtent {
  /// The offset of the recording's first byte, which is not 0 for a next part of a stream.
  package var start: UInt64
  /// The offset from which on uploads are continued: the start of the first recording in a series that was split.
  package var seriesStart: UInt64
  /// The offset after the last stored byte.
  package var length: UInt64
  /// The summary of its gaps.
  package var gaps: GapRecord.Summary
  /// How many lines their record has; 0 if there is no record.
  package var gapLines: Int
  /// The offset after the last byte of the recordings of the stream that were closed before a growing one; 0 if there
  /// are none.
  package var closedEnd: UInt64

  package init(
    start: UInt64 = 0, seriesStart: UInt64 = 0, length: UInt64, gaps: GapRecord.Summary, gapLines: Int = 0,
    closedEnd: UInt64 = 0
  ) {
    (self.start, self.seriesStart, self.length) = (start, seriesStart, length)
    (self.gaps, self.gapLines, self.closedEnd) = (gaps, gapLines, closedEnd)
  }
}

/// The result of storing bytes.
package struct StoredBytes {
  /// How many were stored.
  package var count: Int
  /// The error that prevented the rest.
  package var error: SystemError?
  /// The recordings to finish because the stream has continued in others.
  package var splits: [SplitRecording] = []
  /// Why the stream could not be divided; nil if it could.
  package var splitFailure: SystemError?

  package init(
    count: Int, error: SystemError? = nil, splits: [SplitRecording] = [], splitFailure: SystemError? = nil
  ) {
    (self.count, self.error, self.splits, self.splitFailure) = (count, error, splits, splitFailure)
  }
}

/// A recording whose stream continues in the next one.
package struct SplitRecording {
  package var name: StreamName
  /// The stream offsets of its first byte and after its last one.
  package var start: UInt64
  package var length: UInt64
  /// How many of its bytes are in holes.
  package var missing: UInt64
  /// Gives it its final name. `completion` is called on the loop's thread.
  package var finish: (_ loop: EventLoop, _ completion: @escaping (SplitOutcome) -> Void) -> Void

  package init(
    name: StreamName, start: UInt64, length: UInt64, missing: UInt64,
    finish: @escaping (_ loop: EventLoop, _ completion: @escaping (SplitOutcome) -> Void) -> Void
  ) {
    (self.name, self.start, self.length, self.missing) = (name, start, length, missing)
    self.finish = finish
  }
}

/// The result for a recording whose stream continues in the next one.
package enum SplitOutcome: Sendable {
  /// It has its final name.
  case finished
  /// It was discarded with its stream, or another caller is finishing it.
  case discarded
  /// - Parameter isDataLost: whether the disk has refused bytes of it.
  case failed(SystemError, isDataLost: Bool)
}

/// How a stream ends.
package enum StreamEnding {
  /// The sender has ended it. It is live if its length was never announced.
  ///
  /// - Parameter sha256: the SHA-256 of its whole recording as it was received; nil if it is unknown.
  case complete(isLive: Bool, sha256: [UInt8]?)
  /// The sender has not ended it. This is recorded beside it, with its owner.
  ///
  /// - Parameter isTrusted: whether the stored bytes are reliable. If not, the next part must contain them again.
  case interrupted(owner: UploadOwner?, isTrusted: Bool)
}

/// Why a stream could not be ended.
package struct UnfinishedStream: Error {
  package var error: SystemError
  /// Whether only its final name was refused. Its bytes are then on the disk as far as configured.
  package var isNameRefused = false
  /// Whether the disk may have lost bytes of it.
  package var mayLackBytes = false

  package init(error: SystemError, isNameRefused: Bool = false, mayLackBytes: Bool = false) {
    (self.error, self.isNameRefused, self.mayLackBytes) = (error, isNameRefused, mayLackBytes)
  }
}

extension StoredStream {
  package var isNew: Bool { standing == .new }
  package var isComplete: Bool { standing == .complete }
  package var start: UInt64 { extent.start }
  package var seriesStart: UInt64 { extent.seriesStart }
  package var length: UInt64 { extent.length }
  package var gaps: GapRecord.Summary { extent.gaps }
  /// How many of the stored bytes are in holes.
  package var missing: UInt64 { extent.gaps.missing }
  /// Whether it has received no bytes, and no other recording belongs to it. Holes are not content.
  package var isEmpty: Bool { contentCount == 0 && start == seriesStart }
  package var fileName: String { isComplete ? name.final : name.partial }
  /// Whether bytes can be read again.
  package var isKept: Bool { place != nil }
}
