// The interface of a handler that keeps the body's bytes itself, so that a resumable upload need not store them twice.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import HTTPServer

/// A handler whose own files determine an upload's offset. It can be abandoned at any time. Another instance or another
/// process then continues behind the bytes that it has kept.
///
/// All calls are made on the loop's thread. ``beginKeeping(_:for:)`` or ``restoreKeeping(_:for:at:)`` replaces `begin`,
/// ``keep(_:pieces:)`` replaces `receive`, and ``end(sha256:)`` replaces `end`.
package protocol KeepingRequestHandler: RequestHandler {
  /// Examines the request without changing anything. Returns the fields that the answer to the creation contains and
  /// that every later beginning of this request must have, such as a generated identifier. For a request that cannot be
  /// served, returns the response.
  func settle() -> Settlement
  /// How many bytes of the body are kept. Stops any other request that is adding to them.
  func measureKept() throws(SystemError) -> KeptExtent
  /// Whether the body of this request, which has not begun, can be kept at its offset. Others may have continued the
  /// stream since the request was settled.
  ///
  /// - Returns: `.bytes(0)` if it can, and the reason otherwise.
  func measureUnbegun() throws(SystemError) -> KeptExtent
  /// Syncs the kept bytes of a handler that was not begun. `completion` is called on the loop's thread.
  func synchronizeKept(_ completion: @escaping (SystemError?) -> Void)
  /// Like `begin`.
  func beginKeeping(_ exchange: any Exchange, for holder: any RecordingHolder)
  /// Like `begin`, for a request that was begun before.
  ///
  /// - Parameter count: how many bytes of the body have arrived. Bytes stored behind them belong to others.
  func restoreKeeping(_ exchange: any Exchange, for holder: any RecordingHolder, at count: UInt64)
  /// Whether `action` will be called later, because the kept bytes are being completed or removed at the moment.
  func isEnding(_ action: @escaping () -> Void) -> Bool
  /// Why the end could not be written to the disk; nil if it was written, or was not requested.
  var endError: SystemError? { get }
  /// The disk error that caused the answer; nil if it has another cause.
  var diskError: SystemError? { get }
  /// Why the stream does not accept the body, if that caused the answer.
  var streamRefusal: StreamRefusal? { get }
  /// Whether something else has changed or replaced the file, so that acknowledged bytes may be lost.
  var hasLostFile: Bool { get }
  /// How many bytes of the body are kept, from its beginning.
  var keptCount: UInt64 { get }
  /// Whether the kept bytes end before the stored ones, because others have stored the bytes behind them.
  var isInside: Bool { get }
  /// What the end of the body means for the stream if it comes after the kept bytes. Also valid after the response.
  var bodyEnd: BodyEnd { get }
  /// Checks that nothing else has changed, replaced or removed the file.
  ///
  /// - Throws: ``SystemError``, `ESTALE` if something has.
  func checkFile() throws(SystemError)
  /// Like `receive`, but returns the reason to the caller if bytes are not kept, instead of responding.
  func keep(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError?
  /// Like `end`. The stored bytes are compared with the digest later.
  ///
  /// - Parameter sha256: the SHA-256 of the whole body, computed from the bytes as they arrived or stated by the
  ///   sender. Nil if it is unknown.
  func end(sha256: [UInt8]?)
  /// Records what a later request of the same upload states about the stream.
  func describe(_ fields: HeaderFields)
  /// Syncs the kept bytes. `completion` is called on the loop's thread with their number.
  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void)
  /// From now on, arriving bytes may be dropped again, until ``release()`` is called.
  func hold()
  func release()
  /// Drops the bytes of this instance beyond `count`.
  func drop(to count: UInt64) throws(SystemError)
  /// The bytes of this instance were dropped that the disk has refused to sync. Returns whether later syncs can be
  /// relied on again, because all bytes before them are on the disk.
  func droppedRefused() -> Bool
  /// Where the next bytes of the body will be stored; nil if they cannot be read again.
  var keptPlace: FilePlace? { get }
  /// Where the bytes of a range of the body are, in one file or several; nil if some cannot be read, because nothing is
  /// kept or a file was moved away.
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]?
  /// Releases everything except the bytes on the disk. After that, only ``end(_:for:)`` is called.
  func park()
  /// The upload was begun under an earlier server.
  func restoreHolding(_ holder: any RecordingHolder)
  /// The upload will never be complete.
  ///
  /// - Parameter removal: called after each attempt to remove the recording, with the error or, after success, with
  ///   nil.
  func end(
    _ end: RecordingEnd, for holder: any RecordingHolder, _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome
  /// An event about the stream of this request.
  func describe(_ kind: ServerEvent.Kind) -> ServerEvent
}

extension KeepingRequestHandler {
  /// Like ``end(_:for:_:)``, for a caller that does not wait for the removal of the recording.
  @discardableResult
  package func end(_ end: RecordingEnd, for holder: any RecordingHolder) -> RecordingOutcome {
    self.end(end, for: holder) { _ in }
  }
}

/// How many bytes of an upload are kept.
package enum KeptExtent {
  case bytes(UInt64)
  /// The stream is complete with this many bytes. The response belongs to the request that completes it.
  case complete(UInt64, Response)
  /// Nothing is kept any more.
  case gone
  /// The recording was closed, so nothing can be added.
  case closed
  /// A newer request has stored bytes behind others that never arrived, so nothing can be added.
  case overtaken
  /// The stream has ended before the body's offset, or continues too far ahead of it.
  case misplaced
}

/// Why a stream does not accept a body, although the disk works.
package enum StreamRefusal {
  /// The stream has no place for the body, or now belongs to another owner.
  case misplaced
  /// Different bytes are stored there, or the stream is complete and ends before these.
  case contradicted
  /// Ending here would leave a gap that others may still fill.
  case early
}

package enum Settlement {
  /// - Parameter needed: the names of all request fields that later beginnings need (lower case). The record of the
  ///   upload contains no others.
  case fields(HeaderFields, needed: Set<String>)
  case response(Response)
}
