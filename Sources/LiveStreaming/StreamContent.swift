// What a stream's requests carry, whether it is being captured or lies in a file.

internal import Digests
internal import EventLoops
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// The bytes of a stream, by stream offset, and the body that carries them at the moment. On the network loop's thread
/// only.
protocol StreamContent: AnyObject {
  /// How many bytes it can hold; 0 where that means nothing.
  var capacity: Int { get }
  /// Stream offset of the oldest byte that can still be sent.
  var oldest: UInt64 { get }
  /// One past the newest byte.
  var head: UInt64 { get }
  /// Whether ``head`` is final. Look here first and at ``head`` afterwards.
  var isFinished: Bool { get }
  /// Why what was sent is not what it was to be: a file changed meanwhile. Nil for content that cannot change.
  var fault: LiveStreamError? { get }
  /// What can be sent.
  var supply: Supply { get }
  /// One past the newest byte, also behind a pause that must not be passed yet.
  var newest: UInt64 { get }
  /// How many bytes are kept from `offset` on.
  func byteCount(from offset: UInt64) -> UInt64
  /// The pause of the source that was passed last: stream offsets that no byte has.
  var pause: Range<UInt64>? { get }
  /// The lengths of all pauses that were passed.
  var pausedByteCount: UInt64 { get }

  /// Begins a body with `header`, and then at `offset`, which ends with the stream, after `maximum` bytes, or at
  /// ``endBody(atLeast:)``.
  ///
  /// - Throws: when the process lacks what that takes.
  func openBody(_ header: [UInt8], from offset: UInt64, maximum: UInt64?) throws(SystemError) -> UploadBody
  /// Lets the body under way end with what is in it, or at stream offset `end` if that is further; false if it cannot,
  /// because its length was announced.
  func endBody(atLeast end: UInt64) -> Bool
  /// The body under way is of no use any more.
  func dropBody()
  /// Gives up all bytes before `offset`.
  func release(upTo offset: UInt64)
  /// Asks for one call of the data handler once there is a byte at `offset - 1`, or the stream has ended; false when
  /// that is so already.
  func requestWakeUp(at offset: UInt64) -> Bool
  /// A representation begins at this offset: so does its digest.
  func restartDigest(at offset: UInt64)
  /// The digest of all bytes that went into bodies since stream offset `start`, if one is kept and begins there, and
  /// the stream offset that it reaches to.
  func digest(since start: UInt64) -> (value: Digest, upTo: UInt64)?
}

extension StreamContent {
  var fault: LiveStreamError? { nil }
  var pause: Range<UInt64>? { nil }
  var pausedByteCount: UInt64 { 0 }
  var supply: Supply { Supply(oldest: oldest, head: head, isFinished: isFinished) }
  var newest: UInt64 { head }
  func byteCount(from offset: UInt64) -> UInt64 { head - min(head, offset) }
}
