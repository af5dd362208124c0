// The bytes of one upload, wherever they are kept: what an upload resource counts, syncs and gives back.

internal import DiskFiles
internal import EventLoops
internal import HTTPServer
internal import StreamServing

/// Keeps the bytes of a representation while they come, and hands them to the request's handler. Only on the loop's
/// thread.
protocol UploadBody: AnyObject {
  /// How many bytes are kept.
  var keptCount: UInt64 { get }
  /// Keeps the bytes of `pieces`, as many as the limits and the disk allow, and says what kept the rest from it.
  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError?
  /// Whether the handler is to be given bytes that come from now on only when ``release()`` is called.
  func hold()
  func release()
  /// Takes back what came while bytes were held: all beyond `count`.
  func drop(to count: UInt64) throws(SystemError)
  /// Has the disk take what is kept by now; calls `completion` on the loop's thread with how many bytes that is.
  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void)
  /// Tells the handler the end, when it has everything.
  func end()
  /// Where the bytes come that are kept from now on; nil if they cannot be read again.
  var place: FilePlace? { get }
  /// Where the bytes of a range lie, for whoever has to read them again; nil if some cannot be read: nothing is kept, or
  /// somebody has moved a file away.
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]?
}

/// The bytes are kept by the handler itself.
final class HandlerKeptBody: UploadBody {
  private let handler: any KeepingRequestHandler

  init(_ handler: any KeepingRequestHandler) { self.handler = handler }

  var keptCount: UInt64 { handler.keptCount }
  func append(_ bytes: Span<UInt8>, pieces: [Range<Int>]) -> KeepingError? { handler.keep(bytes, pieces: pieces) }
  func hold() { handler.hold() }
  func release() { handler.release() }
  func drop(to count: UInt64) throws(SystemError) { try handler.drop(to: count) }
  func synchronize(_ completion: @escaping (UInt64, SystemError?) -> Void) { handler.synchronize(completion) }
  func end() { handler.end() }
  var place: FilePlace? { handler.keptPlace }
  func stretches(of range: Range<UInt64>) throws(SystemError) -> [FileStretch]? { try handler.stretches(of: range) }
}
