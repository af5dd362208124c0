// The bytes of one upload, wherever they are kept, as an upload resource counts, syncs and reads them.

internal import DiskFiles
internal import EventLoops
internal import HTTPServer
internal import StreamServing

/// Keeps the bytes of a representation as they arrive, and passes them to the request's handler. Only on the loop's
/// thread.
protocol KeptBody: AnyObject {
  /// How many bytes are kept.
  var keptCount: UInt64 { get }
  /// Keeps the bytes of `pieces`, as many as the limits and the disk allow. Returns the reason if any are not kept.
  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError?
  /// Holds back bytes that arrive from now on, so that the handler receives them only after ``release()``.
  func hold()
  func release()
  /// Takes back the bytes beyond `count`, which arrived while bytes were held back.
  func drop(to count: UInt64) throws(SystemError)
  /// Syncs the bytes kept so far. Calls `completion` on the loop's thread with their number.
  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void)
  /// Reports the end to the handler once it has received everything.
  ///
  /// - Parameter sha256: the SHA-256 of the whole body; nil if it is unknown. Only a handler that keeps its bytes needs
  ///   it.
  func end(sha256: [UInt8]?)
  /// Where the next bytes will be stored; nil if they cannot be read again.
  var place: FilePlace? { get }
  /// Where the bytes of a range are, for reading them again; nil if some cannot be read, because nothing is kept or a
  /// file was moved away.
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]?
}

/// A body whose bytes the handler keeps itself.
final class HandlerKeptBody: KeptBody {
  private let handler: any KeepingRequestHandler

  init(_ handler: any KeepingRequestHandler) { self.handler = handler }

  var keptCount: UInt64 { handler.keptCount }
  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError? { handler.keep(bytes, pieces: pieces) }
  func hold() { handler.hold() }
  func release() { handler.release() }
  func drop(to count: UInt64) throws(SystemError) { try handler.drop(to: count) }
  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) { handler.synchronize(completion) }
  func end(sha256: [UInt8]?) { handler.end(sha256: sha256) }
  var place: FilePlace? { handler.keptPlace }
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]? { try handler.stretches(of: range) }
}
