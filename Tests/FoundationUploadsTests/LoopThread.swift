// A thread with a run loop, for streams and sessions of a test.

import FoundationUploads
import NetworkTesting

/// Its run loop sleeps until something happens.
final class LoopThread: @unchecked Sendable {
  private(set) var loop = RunLoop.main
  private let condition = NSCondition()
  private var isRunning = false
  private var isOver = false

  init() {
    Thread.detachNewThread { [self] in run() }
    condition.lock()
    while !isRunning { condition.wait() }
    condition.unlock()
  }

  private func run() {
    let current = RunLoop.current
    // Without any source, the run loop would return at once instead of sleeping.
    let keeper = Timer(timeInterval: 3600, repeats: true) { _ in }
    current.add(keeper, forMode: .default)
    condition.lock()
    loop = current
    isRunning = true
    condition.signal()
    condition.unlock()
    while !condition.withLock({ isOver }) { _ = current.run(mode: .default, before: .distantFuture) }
    keeper.invalidate()
  }

  /// Runs `work` on the thread, without waiting for it.
  func perform(_ work: @escaping @Sendable () -> Void) {
    loop.add(Timer(timeInterval: 0, repeats: false) { _ in work() }, forMode: .default)
  }

  func end() {
    condition.withLock { isOver = true }
    // A timer alone would not let `run(mode:before:)` return.
    nonisolated(unsafe) let source = EndSource()
    loop._add(source, forMode: .default)
    source.signal()
    perform { withExtendedLifetime(source) {} }
  }

  private final class EndSource: RunLoop._Source {}
}

/// A bound pair, made like in the article.
struct Pair: @unchecked Sendable {
  let input: InputStream
  let output: OutputStream

  init(bufferSize: Int = 4096) throws {
    var input: InputStream?
    var output: OutputStream?
    Stream.getBoundStreams(withBufferSize: bufferSize, inputStream: &input, outputStream: &output)
    guard let input, let output else { throw TestFailure("there are no streams") }
    (self.input, self.output) = (input, output)
  }
}

/// The events that a stream's delegate received, in order.
final class EventRecorder: NSObject, StreamDelegate, @unchecked Sendable {
  let log: EventLog<Stream.Event>
  private let react: (Stream, Stream.Event) -> Void

  init(_ react: @escaping (Stream, Stream.Event) -> Void = { _, _ in }) throws {
    log = try EventLog()
    self.react = react
  }

  func stream(_ aStream: Stream, handle eventCode: Stream.Event) {
    log.append(eventCode)
    react(aStream, eventCode)
  }
}
