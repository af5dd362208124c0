// Any of Foundation's input streams as the source of a live stream.

internal import Dispatch
internal import EventLoops
internal import Foundation
internal import LiveStreaming
internal import StreamBuffers

/// Reads a stream into the circular buffer, and waits while the buffer is full.
///
/// A stream of a bound pair is read on the network thread without blocking. Any other stream may block, so it is read
/// on a separate queue.
final class InputStreamSource: StreamSource, @unchecked Sendable {
  // Unchecked, because the loop's thread owns these from the start on.
  private let stream: InputStream
  private let queue = DispatchQueue(label: "FoundationUploads.InputStreamSource")
  private var producer: CircularBuffer.Producer?
  private var context: SourceContext?
  /// Bytes that were read on the queue and do not fit yet.
  private var rest: [UInt8] = []
  private var isReading = false
  private var hasFailed = false
  /// Called on the loop's thread when the stream cannot be read to its end.
  private let failed: (String) -> Void

  /// The maximum number of bytes read at once.
  private static let readSize = 64 << 10

  init(_ stream: InputStream, failed: @escaping (String) -> Void) {
    (self.stream, self.failed) = (stream, failed)
  }

  private var pair: BoundStreamPair? { (stream as? BoundInputStream)?.pair }

  func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) throws(LiveStreamError) {
    do {
      try context.loop.register(producer.spaceDescriptor, [.readable, .edgeTriggered]) { [weak self] _ in self?.pump() }
    } catch {
      throw LiveStreamError(.source, "cannot watch the stream's buffer: \(error)")
    }
    self.producer = consume producer
    self.context = context
    let loop = context.loop
    pair?.observeInput { [weak self] in loop.execute { [weak self] in self?.pump() } }
    guard pair == nil else {
      stream.open()
      return pump()
    }
    nonisolated(unsafe) let stream = stream
    queue.async { [weak self] in
      if stream.streamStatus == .notOpen { stream.open() }
      loop.execute { [weak self] in self?.pump() }
    }
  }

  func stop() {
    guard let context = context.take() else { return }
    pair?.observeInput(nil)
    if let descriptor = producer?.spaceDescriptor { context.loop.deregister(descriptor) }
    producer?.finish()
    producer = nil
  }

  /// The upload is over, and the stream is no longer read. Its writer receives the reason.
  func close(failure: String?) {
    stop()
    if let pair {
      if let failure { pair.failInputEnd(failure) } else { pair.closeInput() }
      return
    }
    nonisolated(unsafe) let stream = stream
    queue.async { stream.close() }
  }

  private func pump() {
    assert(context?.loop.isOnThread != false)
    if pair != nil { readPair() } else { absorb() }
  }

  private enum Reading { case bytes, nothing, end, failure }

  private func readPair() {
    guard let pair else { return }
    while producer != nil, !hasFailed {
      var reading = Reading.bytes
      let result = producer?.write(maximum: Self.readSize) { free in
        free.withUnsafeMutableBytes { bytes in
          switch pair.read(into: bytes, blocks: false) {
          case nil: reading = .nothing
          case 0?: reading = .end
          case let count? where count > 0: return count
          default: reading = .failure
          }
          return 0
        }
      }
      if result == .full {
        if waitsForSpace() { return }
        continue
      }
      switch reading {
      case .bytes: continue
      case .nothing: return
      case .end: return stop()
      case .failure: return fail(pair.inputError?.localizedDescription ?? "it is closed")
      }
    }
  }

  private func waitsForSpace() -> Bool {
    producer?.drainSpaceSignals()
    return producer?.requestSpace(1) ?? true
  }

  /// Passes on the bytes read, and continues reading once all of them fit.
  private func absorb() {
    while producer != nil, !rest.isEmpty {
      // A copy, because without exclusivity checks the compiler cannot lend the bytes of a property.
      let piece = rest
      switch producer?.write(copying: piece.span.bytes) {
      case .written(let count)?: rest.removeFirst(count)
      default: if waitsForSpace() { return }
      }
    }
    guard producer != nil, !isReading, let loop = context?.loop else { return }
    isReading = true
    nonisolated(unsafe) let stream = stream
    queue.async { [weak self] in
      var bytes = [UInt8](repeating: 0, count: Self.readSize)
      let count = stream.read(&bytes, maxLength: bytes.count)
      // Foundation's streams crash when asked for an error that they do not have.
      let words = stream.streamStatus == .error ? stream.streamError.map { "\($0)" } : nil
      let piece = Array(bytes.prefix(max(0, count)))
      loop.execute { [weak self] in
        self?.didRead(piece, isEnd: count == 0, words: count < 0 ? words ?? "it is closed" : nil)
      }
    }
  }

  private func didRead(_ bytes: [UInt8], isEnd: Bool, words: String?) {
    isReading = false
    // It may have been stopped and closed during the read.
    guard producer != nil else { return }
    if let words { return fail(words) }
    if isEnd { return stop() }
    rest = bytes
    absorb()
  }

  private func fail(_ words: String) {
    guard !hasFailed, producer != nil else { return }
    hasFailed = true
    // The buffer stays unfinished, because an upload of half a stream must not look complete.
    failed("cannot read the body's stream: \(words)")
  }
}
