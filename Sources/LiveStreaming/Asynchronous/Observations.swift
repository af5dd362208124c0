// The asynchronous sequences with which tasks observe a stream or an upload.

/// The events or the progress of a stream or an upload, for any number of tasks at the same time.
///
/// Each loop is a separate observation. Leaving the loop, or cancelling its task, ends only this observation. The
/// sequence ends when the stream or the upload has ended. Memory stays bounded even if an observer is slow. While a
/// loop runs, it keeps the stream or the upload alive.
public struct Observations<Element: Sendable>: AsyncSequence, Sendable {
  /// An observation never fails.
  public typealias Failure = Never

  let broadcast: EventBroadcast<Element>
  /// The object that ends when the last reference to it is dropped.
  let owner: any AnyObject & Sendable
  /// Called after each subscription.
  let observed: @Sendable () -> Void

  /// Begins an observation.
  public func makeAsyncIterator() -> Iterator { Iterator(observation: Observation(self)) }

  /// One observation. It belongs to one task.
  public struct Iterator: AsyncIteratorProtocol {
    let observation: Observation

    /// The next value. Nil after the last value, and when the task is cancelled.
    public mutating func next() async -> Element? { await observation.next() }

    /// The next value. Nil after the last value, and when the task is cancelled.
    public mutating func next(isolation actor: isolated (any Actor)?) async -> Element? { await observation.next() }
  }

  /// Ends with its iterator.
  final class Observation: Sendable {
    private let sequence: Observations
    private let observer: UInt64

    init(_ sequence: Observations) {
      self.sequence = sequence
      observer = sequence.broadcast.subscribe()
      sequence.observed()
    }

    deinit { sequence.broadcast.unsubscribe(observer) }

    func next() async -> Element? { await sequence.broadcast.next(observer) }
  }
}
