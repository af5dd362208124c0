// A circular buffer with pauses, by stream offset, against a model that keeps every byte.

import Glibc
import PropertyTesting
import ResumableUploads
import StreamBuffers
import Testing

@testable import LiveStreaming

@Suite("Bytes of a stream with pauses")
struct BufferedBytesTests {
  /// All written bytes, as runs of stream offsets without pauses.
  private struct Model {
    var runs: [Range<UInt64>] = [0..<0]
    var newest: UInt64 { runs[runs.count - 1].upperBound }

    mutating func write(_ count: Int) {
      let last = runs.removeLast()
      runs.append(last.lowerBound..<last.upperBound + UInt64(count))
    }

    mutating func pause(_ length: UInt64) { runs.append(newest + length..<newest + length) }

    func has(_ offset: UInt64) -> Bool { runs.contains { $0.contains(offset) } }
    /// Whether a run ends here and another follows.
    func pauses(at offset: UInt64) -> Bool { runs.dropLast().contains { $0.upperBound == offset } }
  }

  /// Writes all bytes, or none.
  private static func write(
    _ range: Range<UInt64>, of pattern: OffsetPattern, _ producer: inout CircularBuffer.Producer
  ) -> Bool {
    guard !range.isEmpty, range.count <= producer.largestMinimum else { return false }
    let result = producer.write(minimum: range.count, maximum: range.count) { span in
      for offset in range {
        span.storeBytes(of: pattern[offset], toByteOffset: Int(offset - range.lowerBound), as: UInt8.self)
      }
      return range.count
    }
    if case .written = result { return true }
    return false
  }

  @Test("the next process knows the last pause of a killed one, and counts none of it as lost")
  func killedBehindPause() throws {
    let path = "/dev/shm/sluice-test-killed-\(getpid())"
    defer { unlink(path) }
    var settings = CircularBuffer.Settings(capacity: 4096)
    (settings.hasCopier, settings.path, settings.allowsPauses) = (true, path, true)
    var ends = try CircularBuffer.makeCopied(settings)
    #expect(Self.write(0..<100, of: OffsetPattern(), &ends.producer))
    let isPaused = ends.producer.pause(50)
    #expect(isPaused)
    let killed = BufferedBytes(ends.consumer)
    killed.release(upTo: 100)
    #expect(killed.head == 150)

    let remains = try #require(try CircularBuffer.Remains(path: path))
    let left = try CircularBuffer.makeFinished(remains, from: remains.passed, backing: ReleasedBytes(upTo: 100))
    let next = BufferedBytes(left.consumer)
    #expect(next.head == 150 && next.oldest == 150 && next.pausedByteCount == 50)
    #expect(LossLedger.lost(100..<150, pause: next.pause).isEmpty)
  }

  @Test(
    "of a stretch on disk, the bytes after the last pause that are not released are being loaded",
    arguments: [0, 60, 80] as [UInt64])
  func loading(_ released: UInt64) throws {
    let pause = CircularBuffer.Pause(position: 70, length: 7)
    let left = try CircularBuffer.makeFinished(
      head: 100, pauses: [pause], pausedBefore: 5, backing: ReleasedBytes(upTo: released))
    let bytes = BufferedBytes(left.consumer)
    bytes.release(upTo: 75)
    #expect(bytes.pausedByteCount == 12)
    for offset in 0..<200 as Range<UInt64> {
      #expect(bytes.isLoading(at: offset) == (max(70, released) + 12..<112).contains(offset), "\(offset)")
    }
  }

  /// The server has stored everything before an offset.
  private final class ReleasedBytes: CircularBacking {
    let oldest: UInt64
    var capacity: Int { 0 }

    init(upTo offset: UInt64) { oldest = offset }

    func read(
      at offset: UInt64, maximum: Int, oldestInMemory: UInt64
    ) -> CircularBuffer.Consumer.ReadResult<UnsafeRawBufferPointer> { .overwritten(oldest: oldestInMemory) }
    func isMissing(at offset: UInt64) -> Bool { false }
    func release(upTo offset: UInt64) {}
  }

  @Test(
    "every byte has its offset, and all bytes before a pause come first", arguments: Seed.several(6))
  func model(seed: Seed) throws {
    var random = seed.generator
    let pattern = OffsetPattern()
    for _ in 0..<8 {
      let overflow: CircularBuffer.Overflow = random.chance(50) ? .dropOldest : .refuse
      let memory: CircularBuffer.Memory = random.chance(50) ? .returned : .kept
      var ends = try CircularBuffer.make(
        capacity: .bytes(random.size(upTo: 40_000)), overflow: overflow, memory: memory, allowsPauses: true)
      let frame = [1, 4, 6, 18].randomElement(using: &random) ?? 1
      let header = frame > 1 && random.chance(70) ? 80 : 0
      let bytes = BufferedBytes(ends.consumer, frames: FrameGrid(headerLength: header, frameLength: frame))
      func begins(_ offset: UInt64) -> Bool {
        // Before a pause.
        guard offset >= bytes.pausedByteCount else { return true }
        let position = offset - bytes.pausedByteCount
        return position == 0 || position >= header && (position - UInt64(header)) % UInt64(frame) == 0
      }
      var model = Model()
      if Self.write(0..<UInt64(header), of: pattern, &ends.producer) { model.write(header) }
      var cursor: UInt64 = 0
      var acknowledged: UInt64 = 0
      for _ in 0..<250 {
        switch Int.random(in: 0..<10, using: &random) {
        case 0..<4:
          let start = model.newest
          let wanted = random.size(upTo: 6_000) / frame * frame
          if Self.write(start..<start + UInt64(wanted), of: pattern, &ends.producer) { model.write(wanted) }
        case 4:
          let length = random.chance(20) ? UInt64(random.size(upTo: 10)) : UInt64(random.size(upTo: 1 << 40))
          if ends.producer.pause(length) { model.pause(length) }
        case 5..<8:
          switch bytes.read(
            at: cursor, maximum: random.size(upTo: 8_000),
            { span in
              span.withUnsafeBytes { bytes in
                let isRight = bytes.enumerated().allSatisfy {
                  $1 == pattern[cursor + UInt64($0)] && model.has(cursor + UInt64($0))
                }
                #expect(isRight, "\(seed)")
              }
              return span.byteCount
            })
          {
          case .bytes(let count): cursor += UInt64(count)
          case .empty: #expect(cursor == bytes.head, "\(seed)")
          case .overwritten(let oldest):
            #expect(oldest > cursor && oldest == bytes.oldest, "\(seed)")
            // Unread bytes are skipped only because of a pause or the overflow.
            #expect(overflow == .dropOldest || model.pauses(at: cursor) && bytes.pauses(at: cursor), "\(seed)")
            cursor = oldest
          }
        case 8:
          acknowledged = min(cursor, acknowledged + UInt64(random.size(upTo: 12_000)))
          if model.has(acknowledged) || acknowledged == cursor { bytes.release(upTo: acknowledged) }
        default:
          let waits = bytes.requestWakeUp(beyond: cursor)
          if waits { #expect(cursor == model.newest, "\(seed)") }
        }
        #expect(bytes.head <= model.newest && bytes.oldest <= bytes.head, "\(seed)")
        #expect(begins(bytes.oldest) && begins(bytes.aligned(acknowledged)), "\(seed): \(bytes.oldest), \(frame)")
        #expect(overflow == .dropOldest || bytes.oldest <= acknowledged || bytes.pause != nil, "\(seed)")
        #expect(bytes.byteCount(from: 0) <= UInt64(bytes.capacity), "\(seed)")
        acknowledged = max(acknowledged, min(cursor, bytes.oldest))
      }
      ends.producer.finish()
      // To the end, so that all kept bytes are read.
      var turns = 0
      while !(bytes.isFinished && cursor == bytes.head) {
        turns += 1
        try #require(turns < 10_000, "\(seed): stuck at \(cursor) of \(model.newest)")
        switch bytes.read(at: cursor, maximum: .max, { $0.byteCount }) {
        case .bytes(let count): cursor += UInt64(count)
        case .empty: bytes.release(upTo: cursor)
        case .overwritten(let oldest): cursor = oldest
        }
      }
      #expect(cursor == model.newest, "\(seed)")
    }
  }

  @Test(
    "after a loss, exactly as much space is freed as a source needs", arguments: [1, 6],
    [1 << 10, 1 << 16, .max])
  func restart(frame: Int, headroom: Int) throws {
    var ends = try CircularBuffer.make(capacity: .bytes(1 << 18), overflow: .dropOldest, memory: .kept)
    let capacity = ends.producer.capacity
    let bytes = BufferedBytes(ends.consumer, frames: FrameGrid(headerLength: 0, frameLength: frame))
    let writer = StreamWriter(bytes, pairSize: 4096, digest: nil, headroom: headroom)
    let wanted = min(headroom, capacity / 8)
    var total = 0
    while total < 2 * capacity {
      let count = 6_000
      #expect(Self.write(UInt64(total)..<UInt64(total + count), of: OffsetPattern(), &ends.producer))
      total += count
      let supply = writer.supply
      let free = capacity - Int(supply.head - supply.oldest)
      let left = Int(supply.restart - supply.oldest)
      #expect(supply.restart % UInt64(frame) == 0)
      #expect((max(0, wanted - free)..<max(0, wanted - free) + frame).contains(left), "\(free) free, \(left) left out")
    }
    ends.producer.finish()
    #expect(writer.supply.restart == writer.supply.oldest, "nothing is written any more")
  }

  @Test(
    "after a few losses, the bytes that a source produces before the first byte of a new part fit",
    arguments: [1 << 8, 1 << 12, 1 << 14, 3 << 14], Seed.several(1))
  func growingRoom(_ roundTrip: Int, _ seed: Seed) throws {
    var random = seed.generator
    var ends = try CircularBuffer.make(capacity: .bytes(1 << 16), overflow: .dropOldest, memory: .kept)
    let capacity = ends.producer.capacity
    let bytes = BufferedBytes(ends.consumer, frames: FrameGrid(headerLength: 0, frameLength: 1))
    let writer = StreamWriter(bytes, pairSize: 4096, digest: nil, headroom: 1 << 10)
    var total = 0
    func bring(_ count: Int, _ producer: inout CircularBuffer.Producer) {
      var left = count
      while left > 0 {
        let piece = min(left, 4_000)
        #expect(Self.write(UInt64(total)..<UInt64(total + piece), of: OffsetPattern(), &producer))
        (total, left) = (total + piece, left - piece)
      }
    }
    for outage in 0..<4 {
      // An outage that exceeds the buffer.
      bring(Int.random(in: capacity...(2 * capacity), using: &random), &ends.producer)
      var losses = 0
      while true {
        let start = writer.supply.restart
        writer.gaveUp(upTo: start)
        bring(roundTrip, &ends.producer)
        if bytes.oldest <= start {
          // All of it arrives.
          writer.release(upTo: UInt64(total))
          break
        }
        losses += 1
        try #require(losses <= (outage == 0 ? 6 : 2), "\(roundTrip) bytes in a round trip")
      }
    }
  }
}
