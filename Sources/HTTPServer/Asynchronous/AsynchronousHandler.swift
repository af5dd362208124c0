// A handler that runs as a task. It reads the body at its own pace, and its result is the response.

internal import EventLoops
public import HTTPMessages

/// Runs a closure for one request. The task is cancelled when no response can be sent any more.
///
/// It is created and called on the loop's thread. The closure runs as an ordinary Swift task.
public final class AsynchronousHandler: RequestHandler, @unchecked Sendable {
  // Unchecked, because `exchange` and `channel` are used on the loop's thread only.

  /// A closure that handles a request.
  public typealias Work = @Sendable (Request) async throws -> Response

  private let head: RequestHead
  private let work: Work
  private let failed: @Sendable (any Error) -> Void
  private var exchange: (any Exchange)?
  private var channel: RequestBodyChannel?
  private var task: Task<Void, Never>?

  /// Creates a handler that runs `work` as a task.
  ///
  /// - Parameters:
  ///   - head: the head of the request.
  ///   - failed: called with an error that `work` throws while a response can be sent. The client gets 500.
  ///   - work: called once, when the request begins.
  public init(
    head: RequestHead, failed: @escaping @Sendable (any Error) -> Void = { _ in }, _ work: @escaping Work
  ) {
    (self.head, self.failed, self.work) = (head, failed, work)
  }

  /// Starts the task with the request.
  public func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    let loop = exchange.loop
    let channel = RequestBodyChannel { [weak self] demand in loop.execute { [self] in self?.demanded(demand) } }
    self.channel = channel
    let request = Request(head: head, peer: exchange.peer, body: RequestBody(channel: channel))
    task = Task { [work, failed] in
      let response: Response
      do {
        response = try await work(request)
      } catch {
        if !Task.isCancelled { failed(error) }
        response = Response(500, body: "The server could not process this request.\n")
      }
      loop.execute { [self] in respond(response) }
    }
  }

  /// Passes the bytes to the task, and pauses the body while the task is slower.
  public func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    var copy: [UInt8] = []
    for piece in pieces { bytes.extracting(piece).withUnsafeBufferPointer { copy.append(contentsOf: $0) } }
    if channel?.received(copy) == true { exchange?.pauseBody() }
  }

  /// Lets the task read the end of the body.
  public func end() { channel?.end() }

  /// Cancels the task. Reading the body throws ``RequestAborted``.
  public func aborted(_ reason: AbortReason) {
    channel?.end(RequestAborted(reason: reason), cancelling: task)
    letGo()
  }

  /// The task continues until the server's grace period ends, because it may be about to answer.
  public func serverStops() {}

  private func demanded(_ demand: RequestBodyChannel.Demand) {
    switch demand {
    case .accept: exchange?.acceptBody()
    case .resume: exchange?.resumeBody()
    }
  }

  private func respond(_ response: Response) {
    let exchange = exchange
    // The handler may have left a task that still reads.
    let reason = "the response was sent before the end of the body"
    channel?.end(RequestAborted(reason: .uploadEnded(reason)), cancelling: nil)
    letGo()
    exchange?.respond(response)
  }

  private func letGo() {
    exchange = nil
    channel = nil
    task?.cancel()
    task = nil
  }
}
