// A source whose bytes come from tasks. The tasks wait while the buffer is full.

internal import EventLoops
internal import StreamBuffers

/// Writers take turns. Each copies into the circular buffer on its own thread, and asks the loop for room only when
/// there is none.
final class WrittenSource: StreamSource {
  private typealias Continuation = UnsafeContinuation<Void, Never>

  private struct State: ~Copyable {
    var writers = WriteQueue<Continuation>()
    /// Set from the source's start to its end.
    var producer: CircularBuffer.Producer?
    var context: SourceContext?
    /// The number of free bytes that a writer waits for.
    var roomStep = 1
  }

  /// The most free bytes that a writer waits for.
  private static let mostRoom = 256 << 10

  private let state = Lock(State())

  // MARK: The stream's loop

  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
    do {
      try context.loop.register(producer.spaceDescriptor, [.readable, .edgeTriggered]) { [weak self] _ in
        self?.hasRoom()
      }
    } catch {
      throw LiveStreamError(.source, "cannot watch the stream's buffer: \(error)")
    }
    // The step does not depend on the size of a message. A wake-up for each message would cost far more than the
    // message.
    let roomStep = min(producer.largestMinimum, max(1, min(producer.capacity / 4, Self.mostRoom)))
    let handover = Lock<CircularBuffer.Producer?>(producer)
    state.withLock { state in
      state.producer = handover.withLock { $0.take() }
      state.context = context
      state.roomStep = roomStep
    }
    hasRoom()
  }

  func stop() {
    // The context is released outside of the lock.
    let former = state.withLock { state in
      let context = state.context.take()
      if let descriptor = state.producer?.spaceDescriptor { context?.loop.deregister(descriptor) }
      state.producer?.finish()
      state.producer = nil
      return (context: context, waiter: state.writers.close())
    }
    former.waiter?.resume()
  }

  private func hasRoom() { state.withLock { $0.writers.unblock() }?.resume() }

  // MARK: Any task

  /// Ends the source with this error, or normally if it is nil. The stream sends the buffered bytes.
  func end(_ error: LiveStreamError?) {
    guard let context = state.withLock({ $0.context }) else { return }
    if let error { context.fail(error) }
    context.loop.execute { [weak self] in self?.stop() }
  }

  /// Writes as much as there is room for, if no other writer has the turn. Never waits.
  ///
  /// - Returns: the number of written bytes. Nil if another writer has the turn, or the stream has ended. A caller that
  ///   wrote only a part keeps the turn and continues with ``write(_:after:)``.
  func writeAtOnce(_ bytes: [UInt8]) -> Int? {
    guard bytes.count <= Self.longestCopy else { return nil }
    return state.withLock { state in
      guard !state.writers.hasEnded else { return nil }
      if bytes.isEmpty { return 0 }
      guard state.writers.begin() else { return nil }
      var count = 0
      if case .written(let more)? = state.producer?.write(copying: bytes.span.bytes) { count = more }
      if count == bytes.count { _ = state.writers.end() }
      return count
    }
  }

  /// Writes all of `bytes`, and waits while there is no room.
  ///
  /// - Returns: false if the stream ended before it accepted all of them.
  nonisolated(nonsending) func write(_ bytes: [UInt8]) async -> Bool {
    let written = writeAtOnce(bytes)
    return if written == bytes.count { true } else { await write(bytes, after: written) }
  }

  /// Writes the rest of `bytes`, and waits while there is no room.
  ///
  /// - Parameter written: the result of ``writeAtOnce(_:)``.
  /// - Returns: false if the stream ended before it accepted all of them.
  nonisolated(nonsending) func write(_ bytes: [UInt8], after written: Int?) async -> Bool {
    if written == nil { await takeTurn() }
    defer { state.withLock { $0.writers.end() }?.resume() }
    var count = written ?? 0
    while true {
      switch write(bytes, from: count) {
      case .wrote(let more): count += more
      case .hasNoRoom: await waitForRoom()
      case .hasEnded: return false
      }
      if count == bytes.count { return true }
    }
  }

  private enum Attempt {
    case wrote(Int)
    case hasNoRoom
    case hasEnded
  }

  /// The most bytes to copy under the lock, which the network loop also takes.
  private static let longestCopy = 256 << 10

  private func write(_ bytes: [UInt8], from offset: Int) -> Attempt {
    let piece = offset..<min(bytes.count, offset + Self.longestCopy)
    return state.withLock { state in
      guard !state.writers.hasEnded else { return .hasEnded }
      guard case .written(let count)? = state.producer?.write(copying: bytes.span.bytes.extracting(piece)) else {
        return .hasNoRoom
      }
      return .wrote(count)
    }
  }

  nonisolated(nonsending) private func takeTurn() async {
    await withUnsafeContinuation { continuation in
      if !state.withLock({ $0.writers.wait(continuation) }) { continuation.resume() }
    }
  }

  /// Waits for the source's start, for room, or for the end. It may return early.
  nonisolated(nonsending) private func waitForRoom() async {
    await withUnsafeContinuation { continuation in
      let waits = state.withLock { state in
        if state.producer?.requestSpace(state.roomStep) == false { return false }
        return state.writers.block(continuation)
      }
      if !waits { continuation.resume() }
    }
  }
}
