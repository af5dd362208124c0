// The content of a stream's requests, from a live source or from a file.

internal import Digests
internal import EventLoops
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// The bytes of a stream by stream offset, and the body that currently carries them. On the network loop's thread only.
protocol StreamContent: AnyObject {
  /// The capacity in bytes, or 0 if there is no limit.
  var capacity: Int { get }
  /// The stream offset of the oldest byte that can still be sent.
  var oldest: UInt64 { get }
  /// The offset after the newest byte.
  var head: UInt64 { get }
  /// Whether ``head`` is final. Read this first, and ``head`` afterwards.
  var isFinished: Bool { get }
  /// The error if the sent bytes are not the intended ones, because a file changed. Nil for content that cannot change.
  var fault: LiveStreamError? { get }
  /// The bytes that can be sent.
  var supply: Supply { get }
  /// The offset after the newest byte, even after a pause that must not be passed yet.
  var newest: UInt64 { get }
  /// The number of available bytes from `offset` on.
  func byteCount(from offset: UInt64) -> UInt64
  /// Stream offsets whose bytes are lost although later ones are kept, in order, as far as is known. Those that were
  /// released since may be among them.
  var holes: [Range<UInt64>] { get }
  /// The last passed pause of the source: stream offsets without bytes.
  var pause: Range<UInt64>? { get }
  /// The total length of all passed pauses.
  var pausedByteCount: UInt64 { get }

  /// Begins a body with `header`, followed by the bytes from `offset` on. It ends with the stream, after `maximum`
  /// bytes, or at ``endBody(atLeast:)``.
  ///
  /// - Throws: when the process lacks the required resources.
  func openBody(_ header: [UInt8], from offset: UInt64, maximum: UInt64?) throws(SystemError) -> UploadBody
  /// Ends the current body after its current bytes, or at stream offset `end` if that is further. Returns false if the
  /// body cannot end, because its length was announced.
  func endBody(atLeast end: UInt64) -> Bool
  /// Drops the current body.
  func dropBody()
  /// Releases all bytes before `offset`.
  func release(upTo offset: UInt64)
  /// Requests one call of the data handler once there is a byte at `offset - 1`, or the stream has ended. Returns false
  /// if that is already so.
  func requestWakeUp(at offset: UInt64) -> Bool
  /// A representation begins at this offset, and its digest too.
  func restartDigest(at offset: UInt64)
  /// The digest of all bytes that went into bodies since stream offset `start`, and the stream offset at its end. Nil
  /// if there is no digest that begins there.
  func digest(since start: UInt64) -> (value: Digest, upTo: UInt64)?
}

extension StreamContent {
  var fault: LiveStreamError? { nil }
  var holes: [Range<UInt64>] { [] }
  var pause: Range<UInt64>? { nil }
  var pausedByteCount: UInt64 { 0 }
  var supply: Supply { Supply(oldest: oldest, head: head, isFinished: isFinished) }
  var newest: UInt64 { head }
  func byteCount(from offset: UInt64) -> UInt64 { head - min(head, offset) }
}
