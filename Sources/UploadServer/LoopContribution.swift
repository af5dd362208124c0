// The metrics of a server whose loops do not end at the same time: each has a part in every page.

internal import EventLoops
internal import StreamServing

/// The last figures of the loops that have ended. Any thread.
final class LastFigures: Sendable {
  private let figures = Lock<[Int: ServerFigures]>([:])

  func set(_ figures: ServerFigures, of loop: Int) { self.figures.withLock { $0[loop] = figures } }

  /// Nil if the loop has not ended.
  func figures(of loop: Int) -> ServerFigures? { figures.withLock { $0[loop] } }
}

/// The part of one loop in a page. Only the work that the loop is asked to do refers to it. A loop that has ended
/// releases this work without doing it.
final class LoopContribution: Sendable {
  private let figures = Lock<ServerFigures?>(nil)
  private let completion: @Sendable (ServerFigures?) -> Void

  /// - Parameter completion: called once, on any thread, with nil if the loop has ended.
  init(_ completion: @escaping @Sendable (ServerFigures?) -> Void) { self.completion = completion }

  func set(_ figures: ServerFigures) { self.figures.withLock { $0 = figures } }

  deinit { completion(figures.withLock { $0 }) }
}
