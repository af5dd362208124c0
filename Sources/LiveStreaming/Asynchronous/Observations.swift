// The asynchronous sequences in which tasks observe a stream or an upload.

/// What happens to a stream or an upload, for any number of tasks at the same time.
///
/// Each loop is an observation of its own. Its end, a `break`, and the cancellation of its task end this observation
/// and nothing else. The sequence ends after the end of what it observes. Memory stays bounded however slow an observer
/// is. While a loop runs, it keeps the stream or the upload alive.
public struct Observations<Element: Sendable>: AsyncSequence, Sendable {
  /// An observation never fails.
  public typealias Failure = Never

  let broadcast: EventBroadcast<Element>
  /// What ends when nobody refers to it any more.
  let owner: any AnyObject & Sendable
  /// Called after each subscription.
  let observed: @Sendable () -> Void

  /// Begins an observation.
  public func makeAsyncIterator() -> Iterator { Iterator(observation: Observation(self)) }

  /// One observation. It belongs to one task.
  public struct Iterator: AsyncIteratorProtocol {
    let observation: Observation

    /// The next value; nil after the last one, and when the task is cancelled.
    public mutating func next() async -> Element? { await observation.next() }

    /// The next value; nil after the last one, and when the task is cancelled.
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
