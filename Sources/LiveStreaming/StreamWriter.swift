// The writer between the stream's bytes and the bound pair: it writes when the pair says that it has space, never
// before.

internal import Digests
internal import EventLoops
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// Drains a stream's bytes into the output end of one bound pair after another. Owned by the network loop's thread;
/// unchecked for that reason.
final class StreamWriter: StreamContent, @unchecked Sendable {
  private let bytes: any StreamBytes
  private let pairSize: Int
  private let leastHeadroom: UInt64
  /// How much of the buffer is left free after a loss, in bytes.
  private var headroom: UInt64
  /// One past the bytes that were given up last; nil if bytes behind them have been acknowledged since.
  private var gapEnd: UInt64?
  /// Stream offset of the next byte to be written into the pair.
  private(set) var cursor: UInt64 = 0

  private var output: BoundPair.Output?
  /// Stream offset at which the body under way began.
  private var bodyStart: UInt64 = 0
  /// Stream offset at which the body under way ends at the latest.
  private var bodyEnd: UInt64 = .max
  /// What of the header still comes in front of the stream's bytes.
  private var unsentHeader: ArraySlice<UInt8> = []
  private var canWrite = false
  private var isWriting = false
  private var running: StreamDigest?
  /// Called after bytes went into the pair, possibly from within libcurl: it must not call into libcurl.
  var didWrite: () -> Void = {}
  /// Called when the next byte is behind a pause of the source, likewise. The body under way must not go on there.
  var didReachPause: () -> Void = {}

  /// Whether the next byte belongs into another request: behind a pause of the source, or behind bytes that are
  /// missing.
  var isAtPause: Bool { bytes.pauses(at: cursor) || cursor > bodyStart && bytes.isMissing(at: cursor) }

  /// - Parameter headroom: how many bytes the source may bring before the first ones of a new request are sent. After a
  ///   loss so much of the buffer is left free, at most an eighth.
  init(_ bytes: any StreamBytes, pairSize: Int, digest: DigestAlgorithm?, headroom: Int = .max) {
    self.bytes = bytes
    self.pairSize = pairSize
    leastHeadroom = UInt64(clamping: min(headroom, bytes.capacity / 8))
    self.headroom = leastHeadroom
    running = digest.map(StreamDigest.init)
  }

  // MARK: StreamContent

  var capacity: Int { bytes.capacity }
  var oldest: UInt64 { bytes.oldest }
  var head: UInt64 { bytes.head }
  var isFinished: Bool { bytes.isFinished }
  var newest: UInt64 { bytes.newest }
  var pause: Range<UInt64>? { bytes.pause }
  var pausedByteCount: UInt64 { bytes.pausedByteCount }
  func byteCount(from offset: UInt64) -> UInt64 { bytes.byteCount(from: offset) }

  var supply: Supply {
    let isFinished = isFinished
    let (head, oldest, pause) = (head, oldest, bytes.pause)
    // The next write must not take the very bytes that are about to be sent.
    let excess = (head - oldest).addingSaturated(headroom)
    let restart = oldest.addingSaturated(min(headroom, excess - min(excess, UInt64(capacity))))
    return Supply(
      oldest: oldest, head: head, isFinished: isFinished,
      // Behind a pause there is room.
      restart: pause?.upperBound == oldest ? oldest : min(bytes.aligned(restart), head),
      pause: pause, pausesAtHead: bytes.pauses(at: head))
  }

  func openBody(_ header: [UInt8], from offset: UInt64, maximum: UInt64?) throws(SystemError) -> UploadBody {
    let pair = BoundPair.make(bufferSize: pairSize)
    let (end, overflows) = offset.addingReportingOverflow(maximum ?? .max)
    (cursor, bodyStart) = (offset, offset)
    bodyEnd = overflows ? .max : end
    unsentHeader = header[...]
    canWrite = false
    attach(pair.output)
    return .stream(pair.input)
  }

  private func attach(_ output: consuming BoundPair.Output) {
    self.output = consume output
    // Until it is dropped, at the body's end.
    self.output?.open { [self] event in handle(event) }
  }

  func endBody(atLeast end: UInt64) -> Bool {
    if cursor < end { bodyEnd = min(bodyEnd, end) } else { closeBody() }
    return true
  }

  private func closeBody() {
    canWrite = false
    output?.close()
  }

  func dropBody() {
    output = nil
    canWrite = false
  }

  func release(upTo offset: UInt64) {
    bytes.release(upTo: offset)
    guard let end = gapEnd, offset > end else { return }
    gapEnd = nil
    // What was enough this time, or half of it: the connection may be better the next time.
    headroom = max(leastHeadroom, headroom / 4)
  }

  /// Bytes before `offset` were given up because the buffer was full. If that happens again before bytes behind them
  /// are acknowledged, the source has brought more than was left free, and twice as much is left then.
  func gaveUp(upTo offset: UInt64) {
    gapEnd = offset
    headroom = min(headroom.multipliedSaturated(by: 2), max(leastHeadroom, UInt64(capacity / 4 * 3)))
  }

  func requestWakeUp(at offset: UInt64) -> Bool { bytes.requestWakeUp(beyond: offset - min(offset, 1)) }

  func digest(since start: UInt64) -> (value: Digest, upTo: UInt64)? { running?.value(since: start) }

  func restartDigest(at offset: UInt64) { running?.restart(at: offset) }

  // MARK: Writing

  private func handle(_ event: BoundPair.OutputEvent) {
    switch event {
    case .spaceAvailable:
      canWrite = true
      write()
    case .endEncountered, .errorOccurred:
      // The request is over; its owner is told by the request itself.
      canWrite = false
    }
  }

  /// Writes as much as there is and as the pair takes. Called when bytes have come or the pair has space.
  func write() {
    guard !isWriting else { return }
    isWriting = true
    let start = cursor
    defer {
      isWriting = false
      if cursor != start { didWrite() }
    }
    while canWrite {
      if !unsentHeader.isEmpty {
        canWrite = false
        let header = unsentHeader
        guard case .accepted(let count)? = output?.write(header.span.bytes) else { return }
        unsentHeader = unsentHeader.dropFirst(count)
        continue
      }
      // Before the read: what is in memory now may have to be loaded a moment later.
      let isLoading = bytes.isLoading(at: cursor)
      switch bytes.read(at: cursor, maximum: Int(clamping: bodyEnd - cursor), { write($0) }) {
      case .bytes(let count):
        cursor += UInt64(count)
        if cursor == bodyEnd { closeBody() }
      case .empty:
        // In this order: after the producer has finished, the head is final.
        if isAtPause { return didReachPause() }
        if isLoading { return }
        if bytes.isFinished, bytes.head <= cursor {
          closeBody()
        } else if bytes.requestWakeUp(beyond: cursor) {
          return
        }
      case .overwritten where isAtPause: return didReachPause()
      case .overwritten:
        canWrite = false
        output?.fail(BoundPair.StreamError("bytes that were due had to make room for newer ones"))
      }
    }
  }

  private func write(_ span: RawSpan) -> Int {
    canWrite = false
    guard case .accepted(let count)? = output?.write(span) else { return 0 }
    running?.update(span.extracting(first: count), at: cursor)
    return count
  }
}
