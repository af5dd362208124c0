// A source whose bytes come from tasks, which wait while the buffer is full.

internal import EventLoops
internal import StreamBuffers

/// Writers take turns. Each of them copies into the circular buffer on its own thread, and the loop is asked for room
/// only when there is none.
final class WrittenSource: StreamSource {
  private typealias Continuation = UnsafeContinuation<Void, Never>

  private struct State: ~Copyable {
    var writers = WriteQueue<Continuation>()
    /// From the source's start to its end.
    var producer: CircularBuffer.Producer?
    var context: SourceContext?
    /// How much room a writer waits for, in bytes.
    var roomStep = 1
  }

  /// The most room that a writer waits for, in bytes.
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
    // However little is to be written: a wake-up for each message would cost far more than the message.
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
    let (context, waiter) = state.withLock { state in
      let context = state.context.take()
      if let descriptor = state.producer?.spaceDescriptor { context?.loop.deregister(descriptor) }
      state.producer?.finish()
      state.producer = nil
      return (context, state.writers.close())
    }
    _ = context
    waiter?.resume()
  }

  private func hasRoom() { state.withLock { $0.writers.unblock() }?.resume() }

  // MARK: Any task

  /// The source can give no more bytes, for this reason; nil for its proper end. The stream sends what is buffered.
  func end(_ error: LiveStreamError?) {
    guard let context = state.withLock({ $0.context }) else { return }
    if let error { context.fail(error) }
    context.loop.execute { [weak self] in self?.stop() }
  }

  /// Writes as much as there is room for, if no other writer has the turn. Never waits.
  ///
  /// - Returns: how many bytes; nil if another writer has the turn, or the stream has ended. A caller that gets fewer
  ///   bytes than it gave has the turn, and goes on with ``write(_:after:)``.
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

  /// Writes all of `bytes`, and waits as long as there is no room.
  ///
  /// - Returns: false when the stream has ended before it could take all of them.
  nonisolated(nonsending) func write(_ bytes: [UInt8]) async -> Bool {
    let written = writeAtOnce(bytes)
    return if written == bytes.count { true } else { await write(bytes, after: written) }
  }

  /// Writes the rest of `bytes`, and waits as long as there is no room.
  ///
  /// - Parameter written: what ``writeAtOnce(_:)`` returned.
  /// - Returns: false when the stream has ended before it could take all of them.
  nonisolated(nonsending) func write(_ bytes: [UInt8], after written: Int?) async -> Bool {
    if written == nil, !state.withLock({ $0.writers.begin() }) { await takeTurn() }
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

  /// How many bytes are copied under the lock at most: the network loop takes it too.
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
