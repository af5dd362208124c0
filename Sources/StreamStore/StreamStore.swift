// The seam between what a stream's requests do and where its bytes are: files of a directory, or nowhere.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import StreamServing

/// What is kept of one stream while a request is at work on it.
///
/// Only on the loop's thread. Nothing of it outlives the request but what the store keeps: the next one finds that by
/// name.
package protocol StoredStream: AnyObject {
  var name: StreamName { get }
  /// Whether it has its final name. Bytes are only compared then.
  var isComplete: Bool { get }
  /// Whether this request began it.
  var isNew: Bool { get }
  /// Whether only its final name was refused when it ended: the disk has taken its bytes as far as it is to.
  var isNameRefused: Bool { get }
  /// The stream offset of the recording's first byte: not 0 where it is the next part of a stream.
  var start: UInt64 { get }
  /// The stream offset from which on uploads are continued: that of the first recording of a series which was divided
  /// into files while it came.
  var seriesStart: UInt64 { get }
  /// Whether the stream may be divided into files now: it is live, and nothing of what comes will be taken back.
  var maySplit: Bool { get set }
  /// Why it could not be divided; nil if it could.
  var splitFailure: SystemError? { get }
  /// The recordings that are to be finished because the stream has continued in others since the last call.
  func takeSplits() -> [SplitRecording]
  /// The stream offset behind the last byte that is stored.
  var length: UInt64 { get set }
  /// What the record of its gaps says of them.
  var gaps: GapRecord.Summary { get }
  /// How many bytes came for it, from whatever request.
  var contentCount: UInt64 { get }
  /// Where the bytes can be read again, if they can.
  var file: OpenFile? { get }
  /// Where the byte at a stream offset lies in ``file``.
  func position(of offset: UInt64) -> UInt64
  /// Checks that nothing else has changed, replaced or removed what is stored.
  ///
  /// - Throws: ``SystemError``, `ESTALE` if something has.
  func check() throws(SystemError)

  /// Stores the bytes of `pieces`, without the first `skipped` of them, one after another at `offset`. Returns how many
  /// were stored, and the error that kept the rest from it.
  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64
  ) -> (written: Int, error: SystemError?)
  /// Whether the first `count` bytes of `pieces` are what is stored at `offset`.
  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool
  /// Takes back what is stored beyond `length`, and the notes of holes there.
  func truncate(to length: UInt64) throws(SystemError)
  /// Makes a hole at the end, after noting it.
  func makeHole(length: UInt64) throws(SystemError)
  /// Has the disk take what is stored; `completion` is called on the loop's thread.
  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// Keeps what the sender says of its stream, for the sidecar of the recording.
  func describe(_ description: StreamDescription) throws(SystemError)
  /// The stream is complete. `completion` is called on the loop's thread, when that is as durable as it is to be.
  ///
  /// - Parameter isLive: whether nobody had said how long it would be.
  func finish(isLive: Bool, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// As ``finish(isLive:on:_:)``, of a stream that nobody has ended: that is noted beside it, and whose it was.
  ///
  /// - Parameter isTrusted: whether what is stored can be counted on. If not, the next part is to bring it again.
  func closeInterrupted(
    for owner: UploadOwner?, isTrusted: Bool, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
}

extension StoredStream {
  /// How many of the stored bytes lie in holes.
  package var missing: UInt64 { gaps.missing }
  package var fileName: String { isComplete ? name.final : name.partial }
  /// Whether nothing came for it: holes are no content.
  package var isEmpty: Bool { contentCount == 0 }
}

/// How much is stored of a stream's recording.
package enum StreamExtent: Equatable {
  case absent
  /// The recording is closed, and the stream continues in a next part.
  case closed
  /// From `start` on, up to the stream offset `length`.
  case stored(start: UInt64, length: UInt64, GapRecord.Summary)
  /// As much, and the recording has its final name.
  case complete(StreamName, start: UInt64, length: UInt64, GapRecord.Summary)

  /// What the record of its gaps says of them.
  package var gaps: GapRecord.Summary? {
    switch self {
    case .stored(_, _, let gaps), .complete(_, _, _, let gaps): gaps
    case .absent, .closed: nil
    }
  }
}

/// Where streams are found by their names.
package protocol StreamStore {
  /// Whether a credential may go on with the stream of that name: it began it, or nobody has, or no credential was
  /// asked for.
  func admits(_ credential: [UInt8]?, to name: StreamName) throws(SystemError) -> Bool
  /// Finds the stream of that name, growing or complete, or begins it. Where its recording was closed, begins the next
  /// one.
  ///
  /// - Parameters:
  ///   - credential: whose stream it is from now on, unless it is somebody's already.
  ///   - offset: where the request begins in the stream.
  ///   - creating: whether a recording may be begun; else its absence is an error.
  func open(
    _ name: StreamName, for credential: [UInt8]?, at offset: UInt64, creating: Bool
  ) throws(SystemError) -> any StoredStream
  /// The recording of that stream that still grows; nil if there is none.
  func openUnfinished(_ name: StreamName) throws(SystemError) -> (any StoredStream)?
  /// How much is stored of the stream's recording, growing or complete.
  func measure(_ name: StreamName) throws(SystemError) -> StreamExtent
  /// Gives a recording its final name whose stream continues in another. `completion` is called on the loop's thread,
  /// with the error and whether the disk has refused bytes of the recording.
  func finishSplit(
    _ split: SplitRecording, loop: EventLoop, completion: @escaping (SystemError?, _ isDataLost: Bool) -> Void
  )
  /// Has the disk take what is stored of a stream that no request has open; `completion` is called on the loop's
  /// thread.
  func synchronize(_ name: StreamName, on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// Forgets a stream's recording that still grows. One that is complete stays.
  func remove(_ name: StreamName)
  /// What is stored of a stream's recording, and nobody is known for, counts against the quota of that owner.
  func attribute(_ name: StreamName, to owner: UploadOwner)
  /// Remembers for a server that comes after this one that the disk has refused bytes of an unfinished recording.
  func noteDistrusted(_ name: StreamName) throws(SystemError)
  /// Remembers for a server that comes after this one what an unfinished recording is to be called.
  func noteUnfinished(_ name: StreamName, owner: UploadOwner?)
  /// Forgets what is known of a stream whose recordings were all removed.
  func forgetClosed(_ name: StreamName)
}
