// An output end and an input end around a small buffer: what is written into one is read from the other.

internal import Synchronization

/// A bound pair of streams, as `Stream.getBoundStreams(withBufferSize:inputStream:outputStream:)` gives them on Apple's
/// systems ("Uploading streams of data").
///
/// The writer writes only after it was told that there is space, and once for each such signal; writing early is
/// refused, not blocked. Each end is told what happened by a handler given when it is opened.
///
/// **Threads.** Each end belongs to one thread; the two may differ. A handler is called on the thread that caused the
/// event, after the pair's lock was let go: mostly the *other* end's thread, but its own when the end is opened and
/// when a write leaves room, and then before that call has returned. So it may call its own end only if both ends live
/// on one thread, and is best content to note the event. Events that the two threads cause at the same moment may be
/// told at the same moment, or in either order: after `endEncountered` or `errorOccurred` a late signal of the others
/// may come. With both ends on one loop a signal is a plain call: no descriptor, no system call. An owner on another
/// thread lets its handler wake that thread.
public enum BoundPair {
  /// What the output end is told.
  public enum OutputEvent: Equatable, Sendable {
    /// The output end may write, once.
    case spaceAvailable
    /// The input end was closed: nobody reads any more. The output end is closed.
    case endEncountered
    /// The input end failed, e.g. with the upload that read from it. The output end is closed.
    case errorOccurred(StreamError)
  }

  /// What the input end is told.
  public enum InputEvent: Equatable, Sendable {
    /// There are bytes where there were none.
    case bytesAvailable
    /// The output end was closed when all of its bytes had been read. If some had not, no event tells the end, but
    /// ``ReadResult/end`` follows the last of them: so read until ``ReadResult/empty`` or an end.
    case endEncountered
    /// The output end broke the stream off.
    case errorOccurred(StreamError)
  }

  /// Why one end broke the stream off, in words for the owner of the other.
  public struct StreamError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The reason, in words.
    public let description: String
    /// An error with a reason in words.
    public init(_ description: String) { self.description = description }
  }

  /// Why a call was refused. Nothing was written or read.
  public enum Refusal: Error, Equatable, Sendable {
    /// The end was not opened yet.
    case notOpen
    /// The end is closed.
    case closed
    /// Written again before the next ``OutputEvent/spaceAvailable``.
    case noSpaceSignalled
  }

  /// What became of a write.
  public enum WriteResult: Equatable, Sendable {
    /// This number of bytes was taken, which may be fewer than were offered: offer the rest after the next signal.
    case accepted(Int)
    /// Nothing was written; why.
    case refused(Refusal)
  }

  /// What became of a read.
  public enum ReadResult: Equatable, Sendable {
    /// This number of bytes was read, at least one.
    case bytes(Int)
    /// Nothing at the moment; ``InputEvent/bytesAvailable`` follows.
    case empty
    /// The output end was closed and everything was read.
    case end
    /// The output end broke the stream off.
    case failed(StreamError)
    /// Nothing was read; why.
    case refused(Refusal)
  }

  /// The two ends. Both have to be opened before anything flows.
  @frozen
  public struct Ends: ~Copyable, Sendable {
    /// The end to write into.
    public var output: Output
    /// The end to read from.
    public var input: Input
  }

  /// The buffer size that Apple's article uses, in bytes.
  public static let defaultBufferSize = 4096

  /// - Parameter bufferSize: in bytes, at least 1. What is in it is out of the writer's hands, so keep it small.
  public static func make(bufferSize: Int = defaultBufferSize) -> Ends {
    precondition(bufferSize > 0, "a bound pair needs a buffer")
    let storage = BoundPairStorage(capacity: bufferSize)
    return Ends(output: Output(storage: storage), input: Input(storage: storage))
  }

  /// The end that is written to. Dropping it without ``close()`` breaks the stream off.
  public struct Output: ~Copyable, Sendable {
    let storage: BoundPairStorage

    deinit { storage.apply { $0.failOutput(StreamError("the writer went away without closing the stream")) } }

    /// Opens this end. `handler` is called, first with ``OutputEvent/spaceAvailable``, on whichever thread causes the
    /// event, and let go when this end is over. An end that was opened before keeps its first handler.
    public borrowing func open(_ handler: @escaping @Sendable (OutputEvent) -> Void) {
      storage.openOutput(handler)
    }

    /// Writes as much of `bytes` as fits, if there was a signal since the last write.
    public borrowing func write(_ bytes: borrowing RawSpan) -> WriteResult { storage.write(bytes) }

    /// Ends the stream: bytes already written can still be read.
    public borrowing func close() { storage.apply { $0.closeOutput() } }

    /// Breaks the stream off: the input end fails instead of ending.
    public borrowing func fail(_ error: StreamError) { storage.apply { $0.failOutput(error) } }
  }

  /// The end that is read from. Dropping it closes it.
  public struct Input: ~Copyable, Sendable {
    let storage: BoundPairStorage

    deinit { storage.apply { $0.closeInput() } }

    /// Opens this end. `handler` is called on whichever thread causes the event, and let go when this end is over. An
    /// end that was opened before keeps its first handler.
    public borrowing func open(_ handler: @escaping @Sendable (InputEvent) -> Void) {
      storage.openInput(handler)
    }

    /// Reads what there is, at most the target's size, to the target's start. What the output end writes when it is
    /// told within this call that there is space goes straight to the target's rest.
    public borrowing func read(into target: inout MutableRawSpan) -> ReadResult { storage.read(into: &target) }

    /// Says that no more will be read; the output end sees the end.
    public borrowing func close() { storage.apply { $0.closeInput() } }

    /// Says that reading failed; the output end fails with `error`.
    public borrowing func fail(_ error: StreamError) { storage.apply { $0.failInput(error) } }
  }
}
