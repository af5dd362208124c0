// A circular buffer with pauses, by stream offset: every result at every offset, in a few exact states.

import EventLoops
import PropertyTesting
import StreamBuffers
import Testing

@testable import LiveStreaming

@Suite("Offsets of a buffer with pauses")
struct BufferedBytesRulesTests {
  /// The parts of the state that do not depend on an offset.
  private struct View: Equatable {
    var oldest: UInt64
    var head: UInt64
    var newest: UInt64
    var paused: UInt64
    var pause: Range<UInt64>?
    var isFinished = false
  }

  private enum Found: Equatable {
    case bytes(Int)
    case empty
    case overwritten(UInt64)
  }

  private static func view(_ bytes: BufferedBytes) -> View {
    View(
      oldest: bytes.oldest, head: bytes.head, newest: bytes.newest, paused: bytes.pausedByteCount, pause: bytes.pause,
      isFinished: bytes.isFinished)
  }

  private static func read(_ bytes: BufferedBytes, _ offset: UInt64, _ maximum: Int = .max) -> Found {
    switch bytes.read(at: offset, maximum: maximum, { $0.byteCount }) {
    case .bytes(let count): .bytes(count)
    case .empty: .empty
    case .overwritten(let oldest): .overwritten(oldest)
    }
  }

  private static func write(_ count: Int, _ producer: inout CircularBuffer.Producer) {
    let bytes = [UInt8](repeating: 7, count: count)
    let result = producer.write(copying: bytes.span.bytes)
    #expect(result == .written(count))
  }

  private static func pause(_ length: UInt64, _ producer: inout CircularBuffer.Producer) {
    let isPaused = producer.pause(length)
    #expect(isPaused)
  }

  /// Checks the results at each offset.
  ///
  /// - Parameters:
  ///   - readable: the offsets of the bytes that can be read.
  ///   - bytesAfter: the number of bytes after these.
  ///   - pauses: the offsets at which the stream pauses.
  private static func check(
    _ bytes: BufferedBytes, readable: Range<UInt64>, bytesAfter: UInt64, pauses: Set<UInt64>
  ) {
    let paused = bytes.pausedByteCount
    for offset in 0..<140 as Range<UInt64> {
      let expected: Found =
        if offset >= readable.upperBound {
          .empty
        } else if offset < readable.lowerBound {
          .overwritten(readable.lowerBound)
        } else {
          .bytes(Int(readable.upperBound - offset))
        }
      #expect(read(bytes, offset) == expected, "\(offset)")
      if readable.contains(offset) { #expect(read(bytes, offset, 1) == .bytes(1), "\(offset)") }
      #expect(bytes.pauses(at: offset) == pauses.contains(offset), "\(offset)")
      let (first, end) = (max(offset, readable.lowerBound), readable.upperBound + bytesAfter)
      #expect(bytes.byteCount(from: offset) == end - min(end, first), "\(offset)")
      // The header has ten bytes, and a frame has four.
      let position = offset - min(offset, paused)
      let aligned = position == 0 ? 0 : position <= 10 ? 10 : 10 + (position - 10 + 3) / 4 * 4
      #expect(bytes.aligned(offset) == (offset < paused ? offset : aligned + paused), "\(offset)")
      #expect(!bytes.isMissing(at: offset) && !bytes.isLoading(at: offset))
    }
  }

  @Test("a stream continues after a pause when all bytes before it are released, and two pauses in a row are one")
  func pauses() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(4096), allowsPauses: true)
    let bytes = BufferedBytes(ends.consumer, frames: FrameGrid(headerLength: 10, frameLength: 4))
    Self.write(50, &ends.producer)
    Self.pause(7, &ends.producer)
    Self.pause(3, &ends.producer)
    Self.write(20, &ends.producer)
    Self.pause(5, &ends.producer)
    Self.write(30, &ends.producer)

    #expect(bytes.capacity == 4096)
    #expect(Self.view(bytes) == View(oldest: 0, head: 50, newest: 107, paused: 0))
    Self.check(bytes, readable: 0..<50, bytesAfter: 50, pauses: [50])
    bytes.release(upTo: 20)
    // In the middle of a frame, which begins at 18.
    #expect(Self.view(bytes) == View(oldest: 18, head: 50, newest: 107, paused: 0))
    Self.check(bytes, readable: 18..<50, bytesAfter: 50, pauses: [50])
    bytes.release(upTo: 49)
    #expect(Self.view(bytes) == View(oldest: 46, head: 50, newest: 107, paused: 0))
    for offset in 0..<140 as Range<UInt64> { #expect(!bytes.requestWakeUp(beyond: offset), "\(offset)") }

    bytes.release(upTo: 50)
    // Known at once, without any other call.
    #expect(bytes.pausedByteCount == 10 && bytes.pause == 50..<60)
    #expect(Self.view(bytes) == View(oldest: 60, head: 80, newest: 115, paused: 10, pause: 50..<60))
    Self.check(bytes, readable: 60..<80, bytesAfter: 30, pauses: Set(50..<60).union([80]))
    bytes.release(upTo: 5)
    bytes.release(upTo: 65)
    #expect(Self.view(bytes) == View(oldest: 64, head: 80, newest: 115, paused: 10, pause: 50..<60))
    for offset in 0..<140 as Range<UInt64> { #expect(!bytes.requestWakeUp(beyond: offset), "\(offset)") }

    ends.producer.finish()
    #expect(!bytes.isFinished)
    // More than there is before the next pause.
    bytes.release(upTo: 1000)
    #expect(bytes.pausedByteCount == 15 && bytes.pause == 80..<85)
    #expect(
      Self.view(bytes) == View(oldest: 85, head: 115, newest: 115, paused: 15, pause: 80..<85, isFinished: true))
    Self.check(bytes, readable: 85..<115, bytesAfter: 0, pauses: Set(80..<85))
    for offset in 0..<140 as Range<UInt64> { #expect(!bytes.requestWakeUp(beyond: offset), "\(offset)") }
  }

  @Test("released bytes do not count as available, even while the buffer still has them")
  func returnedMemory() throws {
    var ends = try CircularBuffer.make(capacity: .bytes(4096), memory: .returned, allowsPauses: true)
    let bytes = BufferedBytes(ends.consumer, frames: FrameGrid(headerLength: 10, frameLength: 4))
    Self.write(50, &ends.producer)
    bytes.release(upTo: 20)
    #expect(Self.view(bytes) == View(oldest: 18, head: 50, newest: 50, paused: 0))
    #expect(bytes.byteCount(from: 0) == 32 && Self.read(bytes, 0) == .bytes(50))
    bytes.release(upTo: 9)
    #expect(bytes.oldest == 18, "an earlier offset changes nothing")
    bytes.release(upTo: 50)
    Self.pause(7, &ends.producer)
    Self.write(4, &ends.producer)
    #expect(Self.view(bytes) == View(oldest: 57, head: 61, newest: 61, paused: 7, pause: 50..<57))
    #expect(Self.read(bytes, 56) == .overwritten(57) && Self.read(bytes, 57) == .bytes(4))
  }

  @Test("a wake-up is requested exactly at the end of the available bytes, and comes with the next byte or the end")
  func wakeUps() throws {
    for isAtStart in [true, false] {
      var ends = try CircularBuffer.make(capacity: .bytes(4096), allowsPauses: true)
      let bytes = BufferedBytes(ends.consumer)
      func isAwake() -> Bool { waitUntilReadable(bytes.descriptor, limit: .zero) }
      // The pause precedes the first byte, or comes when all bytes are released.
      let start: UInt64 = isAtStart ? 0 : 50
      Self.write(Int(start), &ends.producer)
      bytes.release(upTo: start)
      Self.pause(7, &ends.producer)
      for offset in 0..<start + 7 { #expect(!bytes.requestWakeUp(beyond: offset), "\(offset)") }
      #expect(bytes.pause == start..<start + 7 && bytes.oldest == start + 7)
      Self.write(1, &ends.producer)
      #expect(!isAwake(), "nobody has requested it")
      bytes.release(upTo: start + 8)
      let waits = bytes.requestWakeUp(beyond: start + 8)
      #expect(waits && !isAwake())
      Self.write(5, &ends.producer)
      #expect(isAwake())
      for offset in 0..<start + 13 { #expect(!bytes.requestWakeUp(beyond: offset), "\(offset)") }
      #expect(Self.read(bytes, start + 7) == .overwritten(start + 8) && Self.read(bytes, start + 8) == .bytes(5))
      let waitsAgain = bytes.requestWakeUp(beyond: start + 13)
      #expect(waitsAgain)
      ends.producer.finish()
      let waitsForNothing = bytes.requestWakeUp(beyond: start + 13)
      #expect(!waitsForNothing && bytes.isFinished)
    }
  }

  @Test("the first offset after a pause without bytes can be awaited, and is read when its byte has come")
  func firstByteAfterPause() throws {
    for isAtStart in [true, false] {
      var ends = try CircularBuffer.make(capacity: .bytes(4096), allowsPauses: true)
      let bytes = BufferedBytes(ends.consumer)
      let start: UInt64 = isAtStart ? 0 : 50
      Self.write(Int(start), &ends.producer)
      Self.pause(7, &ends.producer)
      bytes.release(upTo: start)
      let waits = bytes.requestWakeUp(beyond: start + 7)
      #expect(waits && Self.read(bytes, start + 7) == .empty)
      Self.write(5, &ends.producer)
      #expect(waitUntilReadable(bytes.descriptor, limit: .zero))
      #expect(Self.read(bytes, start + 7) == .bytes(5) && Self.read(bytes, start + 6) == .overwritten(start + 7))
    }
  }

  @Test("a pause after the last byte is passed when that is released, even within a frame, and then the stream ends")
  func lastPause() throws {
    for frame in [1, 4] {
      var ends = try CircularBuffer.make(capacity: .bytes(4096), allowsPauses: true)
      let bytes = BufferedBytes(ends.consumer, frames: FrameGrid(headerLength: 0, frameLength: frame))
      Self.write(6, &ends.producer)
      bytes.release(upTo: 6)
      Self.pause(7, &ends.producer)
      ends.producer.finish()
      // The first call that sees the pause.
      #expect(bytes.isFinished, "\(frame)")
      #expect(
        Self.view(bytes) == View(oldest: 13, head: 13, newest: 13, paused: 7, pause: 6..<13, isFinished: true),
        "\(frame)")
    }
  }

  // MARK: Bytes that are read on demand

  /// Brings bytes in pieces when it is asked for them. Used on one thread; unchecked for that reason.
  private final class DemandedSource: OnDemandSource, @unchecked Sendable {
    var arrived: (() -> Void)?
    var isReadOnDemand = true
    /// The sizes of the pieces that can be read now.
    var pieces: [Int] = []
    private(set) var fetches = 0
    private var producer: CircularBuffer.Producer?

    init(_ producer: consuming CircularBuffer.Producer) { self.producer = consume producer }

    func start(into producer: consuming CircularBuffer.Producer, context: SourceContext) {}

    func stop() { producer?.finish() }

    func fetch() -> Bool {
      fetches += 1
      guard !pieces.isEmpty else { return false }
      let bytes = [UInt8](repeating: 1, count: pieces.removeFirst())
      _ = producer?.write(copying: bytes.span.bytes)
      return true
    }
  }

  @Test("a source is asked for bytes only when there are none, and until there are some")
  func onDemand() throws {
    let ends = try CircularBuffer.make(capacity: .bytes(4096), allowsPauses: true)
    let source = DemandedSource(ends.producer)
    let bytes = BufferedBytes(ends.consumer, source: source)
    func isAwake() -> Bool { waitUntilReadable(bytes.descriptor, limit: .zero) }
    source.pieces = [3, 0, 2]
    #expect(Self.read(bytes, 0) == .bytes(3) && source.fetches == 1)
    #expect(Self.read(bytes, 1) == .bytes(2) && source.fetches == 1)
    #expect(Self.read(bytes, 3) == .bytes(2) && source.fetches == 3)
    #expect(Self.read(bytes, 5) == .empty && source.fetches == 4)
    // Such a source announces its bytes itself.
    var waits = bytes.requestWakeUp(beyond: 5)
    #expect(waits && source.fetches == 5)
    source.pieces = [1]
    #expect(source.fetch() && !isAwake())
    waits = bytes.requestWakeUp(beyond: 5)
    #expect(!waits && source.fetches == 6)
    source.pieces = [2]
    waits = bytes.requestWakeUp(beyond: 6)
    #expect(!waits && source.fetches == 7 && bytes.head == 8)
    // From here on, it writes on another thread.
    source.isReadOnDemand = false
    waits = bytes.requestWakeUp(beyond: 8)
    #expect(waits && source.fetches == 8 && !isAwake())
    source.pieces = [1]
    #expect(source.fetch() && isAwake())
    source.isReadOnDemand = true
    source.stop()
    waits = bytes.requestWakeUp(beyond: 9)
    #expect(!waits && bytes.isFinished)
  }

  // MARK: Bytes on disk

  /// Bytes of which some are missing, and the calls for them. Used on one thread; unchecked for that reason.
  private final class HoledBytes: CircularBacking, @unchecked Sendable {
    enum Call: Equatable {
      case read(UInt64, Int)
      case release(UInt64)
    }

    let missing: Range<UInt64>
    var oldest: UInt64 { 0 }
    var capacity: Int { 500 }
    private(set) var calls: [Call] = []

    init(missing: Range<UInt64>) { self.missing = missing }

    func takeCalls() -> [Call] {
      defer { calls = [] }
      return calls
    }

    func read(
      at offset: UInt64, maximum: Int, oldestInMemory: UInt64
    ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> {
      calls.append(.read(offset, maximum))
      return .overwritten(oldest: missing.upperBound)
    }

    func isMissing(at offset: UInt64) -> Bool { missing.contains(offset) }
    func holes(before oldestInMemory: UInt64) -> [Range<UInt64>] { [missing] }
    func release(upTo offset: UInt64) { calls.append(.release(offset)) }
  }

  @Test("whole frames are released, but bytes of a frame whose rest is missing are released at once and passed")
  func missing() throws {
    let backing = HoledBytes(missing: 15..<30)
    let pause = CircularBuffer.Pause(position: 20, length: 7)
    let left = try CircularBuffer.makeFinished(head: 100, pauses: [pause], pausedBefore: 5, backing: backing)
    let bytes = BufferedBytes(left.consumer, frames: FrameGrid(headerLength: 0, frameLength: 8))
    func check(missing: Range<UInt64>, loading: Range<UInt64>) {
      for offset in 0..<140 as Range<UInt64> {
        #expect(bytes.isMissing(at: offset) == missing.contains(offset), "\(offset)")
        #expect(bytes.isLoading(at: offset) == loading.contains(offset), "\(offset)")
      }
    }
    check(missing: 20..<35, loading: 5..<105)
    #expect(bytes.holes == [20..<25, 32..<42], "the pause divides them")
    #expect(backing.takeCalls() == [])
    for (offset, calls) in [
      (4, []), (15, [.release(8)]), (19, [.release(8)]), (20, [.release(15), .read(15, 0)]),
      (23, [.release(18), .read(18, 0)]), (25, [.release(20), .read(20, 0)]),
    ] as [(UInt64, [HoledBytes.Call])] {
      bytes.release(upTo: offset)
      #expect(backing.takeCalls() == calls, "\(offset)")
    }
    // The pause is passed.
    #expect(bytes.pause == 25..<32 && bytes.pausedByteCount == 12)
    check(missing: 32..<42, loading: 32..<112)
    #expect(backing.takeCalls() == [])
    bytes.release(upTo: 45)
    #expect(backing.takeCalls() == [.release(32)])
  }
}
