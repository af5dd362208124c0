// The source that reads an asynchronous sequence, without a stream.

import EventLoops
import NetworkTesting
import StreamBuffers
import Testing

@testable import LiveStreaming

@Suite("A source that reads a sequence", .timeLimit(.minutes(2)))
struct AsyncSequenceSourceTests {
  private struct Interrupted: Error {}

  /// A sequence that waits for its first element, and throws an error of its own when its task is cancelled.
  private struct Interruptible: AsyncSequence, AsyncIteratorProtocol, Sendable {
    let waiters: EventLog<UnsafeContinuation<Void, any Error>>
    /// Called during the cancellation, after the error.
    let interrupted: @Sendable () -> Void

    func makeAsyncIterator() -> Interruptible { self }

    mutating func next() async throws -> [UInt8]? {
      let (waiters, interrupted) = (waiters, interrupted)
      try await withTaskCancellationHandler {
        try await withUnsafeThrowingContinuation { (continuation: UnsafeContinuation<Void, any Error>) in
          waiters.append(continuation)
        }
      } onCancel: {
        waiters.all.first?.resume(throwing: Interrupted())
        interrupted()
      }
      return nil
    }
  }

  @Test("a sequence that throws because its source is stopped is no failure of the source")
  func interrupted() throws {
    let (loop, errors) = (try EventLoop(), try EventLog<LiveStreamError>())
    let ends = try CircularBuffer.make(capacity: .bytes(4096))
    let consumer = Lock(ends.consumer)
    let waiters = try EventLog<UnsafeContinuation<Void, any Error>>()
    let sequence = Interruptible(waiters: waiters) {
      try? waitUntil("the source has ended or failed") { consumer.withLock { $0.isFinished } || !errors.all.isEmpty }
    }
    let source = AsyncSequenceSource(sequence) { $0 }
    let context = SourceContext(loop: loop, overflow: .wait, report: { _ in }, fail: { errors.append($0) })
    try source.start(into: ends.producer, context: context)
    try waiters.wait("the wait for an element") { $0.isEmpty ? nil : true }
    source.stop()
    try waitUntil("the source has ended or failed") { consumer.withLock { $0.isFinished } || !errors.all.isEmpty }
    #expect(errors.all.isEmpty)
  }
}
