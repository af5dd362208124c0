// The seam between what a stream's requests do and where its bytes are: files of a directory, or nowhere.

internal import EventLoops

/// What is kept of one stream while a request is at work on it.
///
/// Only on the loop's thread. Nothing of it outlives the request but what the store keeps: the next one finds that by name.
protocol StoredStream: AnyObject {
  var name: StreamName { get }
  /// Whether it has its final name. Bytes are only compared then.
  var isComplete: Bool { get }
  /// Whether this request began it.
  var isNew: Bool { get }
  /// How many bytes are stored.
  var length: UInt64 { get set }
  /// How many of them lie in holes.
  var missing: UInt64 { get }
  /// Where the bytes can be read again, if they can.
  var file: OpenFile? { get }

  /// Stores the bytes of `pieces`, without the first `skipped` of them, one after another at `offset`. Returns how many were
  /// stored, and the error that kept the rest from it.
  func write(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], skipping skipped: Int, at offset: UInt64
  ) -> (written: Int, error: SystemError?)
  /// Whether the first `count` bytes of `pieces` are what is stored at `offset`.
  func matches(
    _ bytes: Span<UInt8>, _ pieces: [Range<Int>], count: Int, at offset: UInt64
  ) throws(SystemError) -> Bool
  /// Takes back what is stored beyond `length`.
  func truncate(to length: UInt64) throws(SystemError)
  /// Makes a hole at the end, after noting it.
  func makeHole(length: UInt64) throws(SystemError)
  /// Has the disk take what is stored; `completion` is called on the loop's thread.
  func synchronize(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
  /// The stream is complete. `completion` is called on the loop's thread, when that is as durable as it is to be.
  func finish(on loop: EventLoop, _ completion: @escaping (SystemError?) -> Void)
}

extension StoredStream {
  var fileName: String { isComplete ? name.final : name.partial }
}

/// Where streams are found by their names.
protocol StreamStore {
  /// Whether a credential may go on with the stream of that name: it began it, or nobody has, or no credential was asked for.
  func admits(_ credential: [UInt8]?, to name: StreamName) -> Bool
  /// Finds the stream of that name, growing or complete, or begins it.
  ///
  /// - Parameter credential: whose stream it is from now on, unless it is somebody's already.
  func open(_ name: StreamName, for credential: [UInt8]?) throws(SystemError) -> any StoredStream
  /// How many bytes of the stream are stored, growing or complete; nil if there is none of that name.
  ///
  /// - Parameter syncing: whether the disk must have them before this returns.
  func measure(_ name: StreamName, syncing: Bool) throws(SystemError) -> UInt64?
  /// Forgets a stream that is not complete.
  func remove(_ name: StreamName)
}
