// The writer between the stream's bytes and the bound pair. It writes only when the pair signals that it has space.

internal import Digests
internal import EventLoops
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

/// Drains a stream's bytes into the output end of one bound pair after another. Owned by the network loop's thread, and
/// unchecked for that reason.
final class StreamWriter: StreamContent, @unchecked Sendable {
  private let bytes: any StreamBytes
  private let pairSize: Int
  private let leastHeadroom: UInt64
  /// The part of the buffer that stays free after a loss, in bytes.
  private var headroom: UInt64
  /// The offset after the bytes that were discarded last. Nil if later bytes have been acknowledged since then.
  private var gapEnd: UInt64?
  /// The stream offset of the next byte to be written into the pair.
  private(set) var cursor: UInt64 = 0

  private var output: BoundPair.Output?
  /// The stream offset at which the current body began.
  private var bodyStart: UInt64 = 0
  /// The start of the last body whose first byte was missing; nil if there was none.
  private var missingStart: UInt64?
  /// The stream offset beyond which the current body does not extend.
  private var bodyEnd: UInt64 = .max
  /// The part of the header that still precedes the stream's bytes.
  private var unsentHeader: ArraySlice<UInt8> = []
  private var canWrite = false
  private var isWriting = false
  private var running: StreamDigest?
  /// Called after bytes were written into the pair, possibly from within libcurl. It must not call libcurl.
  var didWrite: () -> Void = {}
  /// Likewise, called when the next byte is after a pause of the source. The current body must not continue there.
  var didReachPause: () -> Void = {}
  /// Returns whether the source has failed. Called after its last byte.
  var hasSourceFailed: () -> Bool = { false }

  /// Whether the next byte belongs in another request, because it is after a pause of the source or after missing
  /// bytes.
  var isAtPause: Bool { bytes.pauses(at: cursor) || cursor > bodyStart && bytes.isMissing(at: cursor) }

  /// - Parameter headroom: the number of bytes that the source may produce before the first bytes of a new request are
  ///   sent. After a loss, this part of the buffer stays free, but at most an eighth.
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
  var extent: Range<UInt64> { bytes.extent }
  var head: UInt64 { bytes.head }
  var isFinished: Bool { bytes.isFinished }
  var newest: UInt64 { bytes.newest }
  var pause: Range<UInt64>? { bytes.pause }
  var pausedByteCount: UInt64 { bytes.pausedByteCount }
  func byteCount(from offset: UInt64) -> UInt64 { bytes.byteCount(from: offset) }
  var holes: [Range<UInt64>] { bytes.holes }

  var supply: Supply {
    let isFinished = isFinished
    let (extent, pause) = (extent, bytes.pause)
    let (oldest, head) = (extent.lowerBound, extent.upperBound)
    // The next write must not overwrite the bytes that are about to be sent. After the end, there is none.
    let excess = (head - oldest).addingSaturated(headroom)
    let restart = oldest.addingSaturated(min(headroom, excess - min(excess, UInt64(capacity))))
    return Supply(
      oldest: oldest, head: head, isFinished: isFinished, isCutOff: isFinished && hasSourceFailed(),
      // After a pause, there is room.
      restart: isFinished || pause?.upperBound == oldest ? oldest : min(bytes.aligned(restart), head),
      pause: pause, pausesAtHead: bytes.pauses(at: head))
  }

  func openBody(_ header: [UInt8], from offset: UInt64, maximum: UInt64?) throws(SystemError) -> UploadBody {
    let pair = BoundPair.make(bufferSize: pairSize)
    let (end, overflows) = offset.addingReportingOverflow(maximum ?? .max)
    (cursor, bodyStart) = (offset, offset)
    bodyEnd = overflows ? .max : end
    unsentHeader = header[...]
    attach(pair.output)
    return .stream(pair.input)
  }

  private func attach(_ output: consuming BoundPair.Output) {
    self.output = consume output
    // Until it is dropped at the body's end.
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
    // The amount that was enough this time, or half of it, because the connection may be better the next time.
    headroom = max(leastHeadroom, headroom / 4)
  }

  /// Bytes before `offset` were discarded because the buffer was full. If this happens again before later bytes are
  /// acknowledged, the source has produced more than was left free. Twice as much is left free then.
  func gaveUp(upTo offset: UInt64) {
    gapEnd = offset
    headroom = min(headroom.multipliedSaturated(by: 2), max(leastHeadroom, UInt64(capacity / 4 * 3)))
  }

  func requestWakeUp(at offset: UInt64) -> Bool { bytes.requestWakeUp(beyond: offset - min(offset, 1)) }

  func digest(since start: UInt64) -> (value: Digest, upTo: UInt64)? { running?.value(since: start) }

  func endDigest() { running = nil }

  func restartDigest(at offset: UInt64) { running?.restart(at: offset) }

  // MARK: Writing

  private func handle(_ event: BoundPair.OutputEvent) {
    switch event {
    case .spaceAvailable:
      canWrite = true
      write()
    case .endEncountered, .errorOccurred:
      // The request is over. The request itself informs its owner.
      canWrite = false
    }
  }

  /// Writes as many bytes as are available and the pair accepts. Called when bytes have arrived or the pair has space.
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
      // Comes before the read, because bytes in memory may have to be loaded a moment later.
      let isLoading = bytes.isLoading(at: cursor)
      switch bytes.read(at: cursor, maximum: Int(clamping: bodyEnd - cursor), { write($0) }) {
      case .bytes(let count):
        cursor += UInt64(count)
        if cursor == bodyEnd { closeBody() }
      case .empty:
        // In this order, because the head is final after the producer has finished.
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
        if cursor == bodyStart, bytes.isMissing(at: cursor) {
          // The server may ask for earlier bytes once more. If a second request begins here, it does not, and the next
          // one begins after the missing bytes.
          if missingStart == cursor { bytes.release(upTo: cursor) }
          missingStart = cursor
        }
        output?.fail(BoundPair.StreamError("newer bytes replaced bytes that were due"))
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
