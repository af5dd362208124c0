// The body of a request as an asynchronous sequence, with backpressure.

internal import EventLoops

/// The bytes of a request's content, in pieces of any size. Only one task may read it, once.
///
/// Reading throws ``RequestAborted`` if the body will never be complete. The handler's response ends a body that is
/// incomplete.
public struct RequestBody: AsyncSequence, Sendable {
  /// A piece of the content, at least one byte.
  public typealias Element = [UInt8]

  /// Reads the body.
  public struct AsyncIterator: AsyncIteratorProtocol {
    fileprivate var pieces: AsyncStream<[UInt8]>.Iterator
    fileprivate let channel: RequestBodyChannel

    /// The next bytes. Nil after the last.
    ///
    /// - Throws: ``RequestAborted``.
    public mutating func next() async throws -> [UInt8]? {
      channel.accept()
      guard let piece = await pieces.next() else {
        // A task that was cancelled while it waited receives nothing either, and later bytes were discarded.
        guard channel.isRead else { throw channel.error ?? RequestAborted(reason: .uploadEnded("cancelled")) }
        return nil
      }
      channel.taken(piece.count)
      return piece
    }
  }

  let channel: RequestBodyChannel

  /// Begins to read. Only one task may read, once.
  public func makeAsyncIterator() -> AsyncIterator {
    AsyncIterator(pieces: channel.pieces.makeAsyncIterator(), channel: channel)
  }
}

/// The reason why the body of a request, or the request itself, was aborted.
public struct RequestAborted: Error, Equatable, Sendable, CustomStringConvertible {
  /// The reason why it was aborted.
  public let reason: AbortReason
  /// The reason, in words.
  public var description: String { reason.description }
}

/// The buffer between the loop that receives a body and the task that reads it.
final class RequestBodyChannel: Sendable {
  /// How many bytes may wait for the task before the connection pauses the sender.
  static let capacity = 256 * 1024

  /// What the task asks the connection to do.
  enum Demand: Sendable { case accept, resume }

  private struct State {
    var isAccepted = false
    var isPaused = false
    var waiting = 0
    var isComplete = false
    var error: RequestAborted?
  }

  let pieces: AsyncStream<[UInt8]>
  private let input: AsyncStream<[UInt8]>.Continuation
  private let state = Lock(State())
  private let ask: @Sendable (Demand) -> Void

  /// - Parameter ask: called on the task's thread.
  init(_ ask: @escaping @Sendable (Demand) -> Void) {
    self.ask = ask
    (pieces, input) = AsyncStream.makeStream()
  }

  // MARK: From the loop

  /// Takes bytes. Returns whether the connection must pause until the channel asks for more.
  func received(_ bytes: [UInt8]) -> Bool {
    let isFull = state.withLock { state in
      state.waiting += bytes.count
      state.isPaused = state.waiting >= Self.capacity
      return state.isPaused
    }
    input.yield(bytes)
    return isFull
  }

  /// The body is complete.
  func end() {
    state.withLock { $0.isComplete = true }
    input.finish()
  }

  /// The body will never be complete. From now on, reading throws this error, in a task that is cancelled.
  func end(_ error: RequestAborted, cancelling task: Task<Void, Never>?) {
    state.withLock { $0.error = error }
    task?.cancel()
    input.finish()
  }

  // MARK: From the task

  /// Whether the body was read to its end.
  var isRead: Bool { state.withLock { $0.isComplete && $0.waiting == 0 } }
  var error: RequestAborted? { state.withLock { $0.error } }

  /// The handler accepts the body. Only now does a sender that waits receive `100 Continue`.
  func accept() {
    let isFirst = state.withLock { state in
      defer { state.isAccepted = true }
      return !state.isAccepted
    }
    if isFirst { ask(.accept) }
  }

  func taken(_ count: Int) {
    let resumes = state.withLock { state in
      state.waiting -= count
      guard state.isPaused, state.waiting < Self.capacity / 2 else { return false }
      state.isPaused = false
      return true
    }
    if resumes { ask(.resume) }
  }
}
