// An output end and an input end around a small buffer. Bytes that are written to the output end are read from the
// input end.

internal import Synchronization

/// A bound pair of streams, like `Stream.getBoundStreams(withBufferSize:inputStream:outputStream:)` on Apple's
/// platforms ("Uploading streams of data").
///
/// The writer writes only after a signal that there is space, and once for each signal. An earlier write is refused and
/// does not block. Each end reports its events to the handler that was passed when it was opened.
///
/// **Threads.** Each end belongs to one thread. The two threads may differ. A handler is called on the thread that
/// caused the event, after the pair's lock was released. This is usually the *other* end's thread. It is the end's own
/// thread when the end is opened and when a write leaves room, and then the handler is called before that call returns.
/// So a handler may call its own end only if both ends are on one thread, and should only record the event otherwise.
/// Simultaneous events of the two threads may be reported at the same time, or in either order. After `endEncountered`
/// or `errorOccurred`, a late signal of the others may arrive. With both ends on one loop, a signal is a plain call
/// without a descriptor or a system call. An owner on another thread lets its handler wake that thread.
public enum BoundPair {
  /// The events of the output end.
  public enum OutputEvent: Equatable, Sendable {
    /// The output end may write, once.
    case spaceAvailable
    /// The input end was closed, and nothing more will be read. The output end is closed.
    case endEncountered
    /// The input end failed, for example together with the upload that read from it. The output end is closed.
    case errorOccurred(StreamError)
  }

  /// The events of the input end.
  public enum InputEvent: Equatable, Sendable {
    /// Bytes are available after there were none.
    case bytesAvailable
    /// The output end was closed after all of its bytes were read. If some were unread, no event reports the end.
    /// Instead, ``ReadResult/end`` follows the last bytes, so read until ``ReadResult/empty`` or an end.
    case endEncountered
    /// The output end aborted the stream.
    case errorOccurred(StreamError)
  }

  /// The reason why one end aborted the stream, in words for the owner of the other end.
  public struct StreamError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The reason, in words.
    public let description: String
    /// Creates an error with a reason in words.
    public init(_ description: String) { self.description = description }
  }

  /// The reason why a call was refused. Nothing was written or read.
  public enum Refusal: Error, Equatable, Sendable {
    /// The end is not open yet.
    case notOpen
    /// The end is closed.
    case closed
    /// A second write before the next ``OutputEvent/spaceAvailable``.
    case noSpaceSignalled
  }

  /// The result of a write.
  public enum WriteResult: Equatable, Sendable {
    /// This number of bytes was accepted, which may be less than offered. Offer the rest after the next signal.
    case accepted(Int)
    /// Nothing was written, for this reason.
    case refused(Refusal)
  }

  /// The result of a read.
  public enum ReadResult: Equatable, Sendable {
    /// This number of bytes was read, at least one.
    case bytes(Int)
    /// No bytes at the moment. ``InputEvent/bytesAvailable`` follows.
    case empty
    /// The output end was closed, and everything was read.
    case end
    /// The output end aborted the stream.
    case failed(StreamError)
    /// Nothing was read, for this reason.
    case refused(Refusal)
  }

  /// The two ends. Open both before bytes can flow.
  @frozen
  public struct Ends: ~Copyable, Sendable {
    /// The end to write to.
    public var output: Output
    /// The end to read from.
    public var input: Input
  }

  /// The buffer size in Apple's article, in bytes.
  public static let defaultBufferSize = 4096

  /// - Parameter bufferSize: in bytes, at least 1. The writer has no control over bytes in the buffer, so keep it
  ///   small.
  public static func make(bufferSize: Int = defaultBufferSize) -> Ends {
    precondition(bufferSize > 0, "a bound pair requires a buffer")
    let storage = BoundPairStorage(capacity: bufferSize)
    return Ends(output: Output(storage: storage), input: Input(storage: storage))
  }

  /// The writing end. Dropping it without ``close()`` aborts the stream.
  public struct Output: ~Copyable, Sendable {
    let storage: BoundPairStorage

    deinit { storage.apply { $0.failOutput(StreamError("the writer was dropped without closing the stream")) } }

    /// Opens this end. `handler` is called on the thread that causes an event, first with
    /// ``OutputEvent/spaceAvailable``. It is released when this end is over. An end that is already open keeps its
    /// first handler.
    public borrowing func open(_ handler: @escaping @Sendable (OutputEvent) -> Void) {
      storage.openOutput(handler)
    }

    /// Writes as many bytes of `bytes` as fit, if there was a signal since the last write.
    public borrowing func write(_ bytes: borrowing RawSpan) -> WriteResult { storage.write(bytes) }

    /// Ends the stream. Bytes that were written before can still be read.
    public borrowing func close() { storage.apply { $0.closeOutput() } }

    /// Aborts the stream. The input end fails instead of ending.
    public borrowing func fail(_ error: StreamError) { storage.apply { $0.failOutput(error) } }
  }

  /// The reading end. Dropping it closes it.
  public struct Input: ~Copyable, Sendable {
    let storage: BoundPairStorage

    deinit { storage.apply { $0.closeInput() } }

    /// Opens this end. `handler` is called on the thread that causes an event, and released when this end is over. An
    /// end that is already open keeps its first handler.
    public borrowing func open(_ handler: @escaping @Sendable (InputEvent) -> Void) {
      storage.openInput(handler)
    }

    /// Reads the available bytes to the start of the target, at most its size. If the output end writes when it is
    /// signalled within this call, these bytes go directly to the rest of the target.
    public borrowing func read(into target: inout MutableRawSpan) -> ReadResult { storage.read(into: &target) }

    /// Ends reading. The output end receives the end.
    public borrowing func close() { storage.apply { $0.closeInput() } }

    /// Reports that reading failed. The output end fails with `error`.
    public borrowing func fail(_ error: StreamError) { storage.apply { $0.failInput(error) } }
  }
}
