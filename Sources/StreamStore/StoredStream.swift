// One stream of a store, as the request sees it that is at work on it.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import StreamServing

/// What is kept of one stream while a request is at work on it.
///
/// Only on the loop's thread. Nothing of it outlives the request but what the store keeps: the next one finds that by
/// name.
package protocol StoredStream: AnyObject {
  /// Of the recording that the stream is in now: it may continue in another one.
  var name: StreamName { get }
  var standing: StreamStanding { get }
  var extent: RecordingExtent { get }
  /// How many bytes came for its recording, from whatever request.
  var contentCount: UInt64 { get }
  /// How much room its recording takes, in bytes.
  var size: UInt64 { get }
  /// The file of its recording; nil if what comes cannot be read again.
  var place: FilePlace? { get }
  /// Where the bytes of a range of stream offsets lie, in one file or in several; nil if some cannot be read: nothing is
  /// kept, or somebody has moved a file away.
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]?
  /// Checks that nothing else has changed, replaced or removed what is stored.
  ///
  /// - Throws: ``SystemError``, `ESTALE` if something has.
  func check() throws(SystemError)

  /// Whether the first `count` bytes of `pieces` are what is stored at `offset`.
  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool
  /// Stores the bytes of `pieces`, without the first `skipped` of them, one after another at `offset`.
  ///
  /// If that is behind the end, a hole precedes them. It is noted before it is made, and is not there if none of the
  /// bytes can be stored.
  ///
  /// - Parameter maySplit: whether the stream may be divided into files now: it is live, and nothing of what comes will
  ///   be taken back.
  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64, maySplit: Bool
  ) -> StoredBytes
  /// Makes a hole at the end, after noting it.
  func makeHole(length: UInt64) throws(SystemError)
  /// Takes back what is stored beyond `length`, and the notes of holes there.
  func truncate(to length: UInt64) throws(SystemError)
  /// Keeps what the sender says of its stream, for the sidecar of the recording.
  func describe(_ description: StreamDescription) throws(SystemError)
  /// Has the disk take what is stored; `completion` is called on the loop's thread.
  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// Nothing follows. `completion` is called on the loop's thread, when that is as durable as it is to be.
  func finish(_ ending: StreamEnding, on loop: EventLoop, _ completion: @escaping (UnfinishedStream?) -> Void)
}

/// How a request finds the recording of its stream.
package enum StreamStanding {
  /// This request begins it.
  case new
  case growing
  /// It has its final name. Bytes are only compared then.
  case complete
}

/// Where a recording lies in its stream, in stream offsets.
package struct RecordingExtent {
  /// Of the recording's first byte: not 0 where it is the next part of a stream.
  package var start: UInt64
  /// From where on uploads are continued: that of the first recording of a series which was divided into files while it
  /// came.
  package var seriesStart: UInt64
  /// Behind the last byte that is stored.
  package var length: UInt64
  /// What the record of its gaps says of them.
  package var gaps: GapRecord.Summary

  package init(start: UInt64 = 0, seriesStart: UInt64 = 0, length: UInt64, gaps: GapRecord.Summary) {
    (self.start, self.seriesStart, self.length, self.gaps) = (start, seriesStart, length, gaps)
  }
}

/// What became of bytes that were to be stored.
package struct StoredBytes {
  /// How many were stored.
  package var count: Int
  /// What kept the rest from it.
  package var error: SystemError?
  /// The recordings that are to be finished because the stream has continued in others.
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
  /// The stream offsets of its first byte and behind its last one.
  package var start: UInt64
  package var length: UInt64
  /// How many of its bytes lie in holes.
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

/// What became of a recording whose stream continues in the next one.
package enum SplitOutcome: Sendable {
  /// It has its final name.
  case finished
  /// It was discarded with its stream, or is being finished for another caller.
  case discarded
  /// - Parameter isDataLost: whether the disk has refused bytes of it.
  case failed(SystemError, isDataLost: Bool)
}

/// How a stream ends.
package enum StreamEnding {
  /// Its sender has ended it. It is live if nobody had said how long it would be.
  case complete(isLive: Bool)
  /// Nobody has: that is noted beside it, and whose it was.
  ///
  /// - Parameter isTrusted: whether what is stored can be counted on. If not, the next part is to bring it again.
  case interrupted(owner: UploadOwner?, isTrusted: Bool)
}

/// Why a stream did not get its end.
package struct UnfinishedStream: Error {
  package var error: SystemError
  /// Whether only its final name was refused: the disk has taken its bytes as far as it is to.
  package var isNameRefused = false

  package init(error: SystemError, isNameRefused: Bool = false) {
    (self.error, self.isNameRefused) = (error, isNameRefused)
  }
}

extension StoredStream {
  package var isNew: Bool { standing == .new }
  package var isComplete: Bool { standing == .complete }
  package var start: UInt64 { extent.start }
  package var seriesStart: UInt64 { extent.seriesStart }
  package var length: UInt64 { extent.length }
  package var gaps: GapRecord.Summary { extent.gaps }
  /// How many of the stored bytes lie in holes.
  package var missing: UInt64 { extent.gaps.missing }
  /// Whether nothing came for it: holes are no content.
  package var isEmpty: Bool { contentCount == 0 }
  package var fileName: String { isComplete ? name.final : name.partial }
  /// Whether what comes can be read again.
  package var isKept: Bool { place != nil }
}
