// Any of Foundation's input streams as the body of one request.

internal import Dispatch
internal import Foundation
internal import StreamBuffers

/// Reads a stream on a separate queue, where it may block, into a bound pair that a request reads.
final class StreamFeed: @unchecked Sendable {
  private let stream: InputStream
  private let output: BoundPair.Output
  private let queue = DispatchQueue(label: "FoundationUploads.StreamFeed")
  /// Signalled when there may be space, or when nothing reads any more.
  private let news = DispatchSemaphore(value: 0)

  /// The maximum number of bytes read at once.
  private static let readSize = 64 << 10

  private init(_ stream: InputStream, _ output: consuming BoundPair.Output) {
    self.stream = stream
    self.output = output
  }

  /// Begins to read `stream`.
  ///
  /// - Parameter use: receives the feed, which must be closed with the request, and the input for the request.
  static func start(_ stream: InputStream, _ use: (StreamFeed, consuming BoundPair.Input) -> Void) {
    let ends = BoundPair.make(bufferSize: readSize)
    let feed = StreamFeed(stream, ends.output)
    feed.queue.async { feed.run() }
    use(feed, ends.input)
  }

  private func run() {
    output.open { [news] _ in news.signal() }
    if stream.streamStatus == .notOpen { stream.open() }
    var buffer = [UInt8](repeating: 0, count: Self.readSize)
    while true {
      let count = stream.read(&buffer, maxLength: buffer.count)
      guard count > 0 else {
        // Half a body must not look complete.
        if count == 0 { output.close() } else { output.fail(.init("cannot read the body's stream")) }
        return
      }
      var sent = 0
      while sent < count {
        switch output.write(buffer.span.bytes.extracting(sent..<count)) {
        case .accepted(let more): sent += more
        case .refused(.noSpaceSignalled): news.wait()
        case .refused: return
        }
      }
    }
  }

  /// The stream is no longer read. Its writer receives the reason.
  func close(failure: String?) {
    // After the read under way.
    guard let pair = (stream as? BoundInputStream)?.pair else { return queue.async { [self] in stream.close() } }
    if let failure { pair.failInputEnd(failure) } else { pair.closeInput() }
  }
}
