// What a handler offers that keeps the body's bytes itself, so that a resumable upload need not keep them a second
// time.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import HTTPServer

/// A handler whose own files are what an upload's offset is counted by. It can be given up at any time and begun again,
/// by another instance or another process, and goes on behind what it has kept.
///
/// All calls come on the loop's thread. Instead of `begin` comes ``beginKeeping(_:for:)`` or
/// ``restoreKeeping(_:for:at:)``, and instead of `receive` comes ``keep(_:pieces:)``.
package protocol KeepingRequestHandler: RequestHandler {
  /// Looks at the request without touching anything: the fields that an answer to the creation tells and that every
  /// later beginning of this request must have, such as an identifier that was made up; or the response to a request
  /// that cannot be served.
  func settle() -> Settlement
  /// How many bytes of the body are kept. Whoever adds to them now is made to stop.
  func measureKept() throws(SystemError) -> KeptExtent
  /// Whether a body of this request that has not begun can be kept where it belongs. Others may have continued the
  /// stream since the request was settled.
  ///
  /// - Returns: `.bytes(0)` if it can; else why not.
  func measureUnbegun() throws(SystemError) -> KeptExtent
  /// Has the disk take what is kept, where nobody has begun this handler; `completion` is called on the loop's thread.
  func synchronizeKept(_ completion: @escaping (SystemError?) -> Void)
  /// As `begin`.
  func beginKeeping(_ exchange: any Exchange, for holder: any RecordingHolder)
  /// As `begin`, for a request that was begun before.
  ///
  /// - Parameter count: how many bytes of the body have come. What is stored behind them came from others.
  func restoreKeeping(_ exchange: any Exchange, for holder: any RecordingHolder, at count: UInt64)
  /// Whether `action` will be called later, because what was kept is complete and just gets its final form, or is being
  /// removed.
  func isEnding(_ action: @escaping () -> Void) -> Bool
  /// Why the disk did not take the end of what was kept; nil if it did, or was not asked to.
  var endError: SystemError? { get }
  /// The error of the disk that the answer is about; nil if it is about something else.
  var diskError: SystemError? { get }
  /// Why the stream does not take the body, if the answer is about that.
  var streamRefusal: StreamRefusal? { get }
  /// Whether something else has changed or replaced the file, so that what was acknowledged may not be there any more.
  var hasLostFile: Bool { get }
  /// How many bytes of the body are kept, from its beginning on.
  var keptCount: UInt64 { get }
  /// Whether what is kept ends before the end of what is stored: others have brought the bytes behind it.
  var isInside: Bool { get }
  /// Checks that nothing else has changed, replaced or removed the file.
  ///
  /// - Throws: ``SystemError``, `ESTALE` if something has.
  func checkFile() throws(SystemError)
  /// As `receive`, but what is not kept is told to the caller, and is no response.
  func keep(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError?
  /// Notes what a later request of the same upload says about the stream.
  func describe(_ fields: HeaderFields)
  /// Has the disk take what is kept; `completion` is called on the loop's thread with how many bytes these were.
  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void)
  /// Whether bytes that come from now on may be dropped again, until ``release()`` is called.
  func hold()
  func release()
  /// Forgets bytes of this instance's that were kept beyond `count`.
  func drop(to count: UInt64) throws(SystemError)
  /// Where the bytes of the body come that are kept from now on; nil if they cannot be read again.
  var keptPlace: FilePlace? { get }
  /// Where the bytes of a range of the body lie, in one file or in several; nil if some cannot be read: nothing is kept,
  /// or somebody has moved a file away.
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]?
  /// Lets go of everything but what is on the disk. Nothing more is called but ``end(_:for:)``.
  func park()
  /// The upload is one of an earlier server, and has begun.
  func restoreHolding(_ holder: any RecordingHolder)
  /// The upload will never be complete.
  ///
  /// - Parameter removal: told the end of each attempt to remove the recording, nil of the one that succeeded.
  func end(
    _ end: RecordingEnd, for holder: any RecordingHolder, _ removal: @escaping (SystemError?) -> Void
  ) -> RecordingOutcome
  /// An event about what this request is for.
  func describe(_ kind: ServerEvent.Kind) -> ServerEvent
}

extension KeepingRequestHandler {
  /// As ``end(_:for:_:)``, for a caller that does not wait for the removal of the recording.
  @discardableResult
  package func end(_ end: RecordingEnd, for holder: any RecordingHolder) -> RecordingOutcome {
    self.end(end, for: holder) { _ in }
  }
}

/// What is kept of an upload.
package enum KeptExtent {
  case bytes(UInt64)
  /// As many, and the stream is complete. The response is the one to the request that completes it.
  case complete(UInt64, Response)
  /// It is not there any more.
  case gone
  /// The recording was closed: nothing can be added to it.
  case closed
  /// A newer request has brought bytes behind others that never came: nothing can be added to what is kept.
  case overtaken
  /// The stream has ended before the place of the body, or is continued too far in front of it.
  case misplaced
}

/// Why a stream does not take a body, although nothing is wrong with the disk.
package enum StreamRefusal {
  /// It has no place for it, or belongs to somebody else by now.
  case misplaced
  /// Other bytes are stored there, or the stream is complete and ends before these.
  case contradicted
  /// Its end would leave a gap that others may still fill.
  case early
}

package enum Settlement {
  /// - Parameter needed: the names of all fields of the request that later beginnings need (lower case). The record of
  ///   the upload holds no others.
  case fields(HeaderFields, needed: Set<String>)
  case response(Response)
}
