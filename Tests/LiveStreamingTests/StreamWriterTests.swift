// The writer between a stream's bytes and a body, call by call.

import Digests
import EventLoops
import PropertyTesting
import ResumableUploads
import StreamBuffers
import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("The writer of a stream")
struct StreamWriterTests {
  /// A call of the writer to the stream's bytes.
  private enum Call: Equatable {
    case read(UInt64)
    case wakeUp(UInt64)
    case release(UInt64)
  }

  /// The bytes of a stream whose state the test sets.
  private final class ScriptedBytes: StreamBytes {
    static let pattern = OffsetPattern(seed: 5)
    var capacity = 800
    var oldest: UInt64 = 0
    var head: UInt64 = 0
    var isFinished = false
    var pause: Range<UInt64>?
    var pausedByteCount: UInt64 = 0
    var newest: UInt64 { head + 7 }
    var pauses: Set<UInt64> = []
    var missing: Set<UInt64> = []
    var loading: Set<UInt64> = []
    /// Called by a request for a wake-up, before its result is determined.
    var beforeWakeUp: () -> Void = {}
    private(set) var calls: [Call] = []

    /// The calls since the last one of this function.
    func takeCalls() -> [Call] {
      defer { calls = [] }
      return calls
    }

    func aligned(_ offset: UInt64) -> UInt64 { (offset + 9) / 10 * 10 }
    func byteCount(from offset: UInt64) -> UInt64 { offset * 2 }
    func pauses(at offset: UInt64) -> Bool { pauses.contains(offset) }
    func isMissing(at offset: UInt64) -> Bool { missing.contains(offset) }
    func isLoading(at offset: UInt64) -> Bool { loading.contains(offset) }

    func read(at offset: UInt64, maximum: Int, _ body: (RawSpan) -> Int) -> CircularBuffer.Consumer.ReadResult<Int> {
      calls.append(.read(offset))
      if offset < oldest || missing.contains(offset) { return .overwritten(oldest: oldest) }
      if loading.contains(offset) || offset >= head { return .empty }
      let bytes = Self.pattern[Int(offset)..<Int(offset) + min(maximum, Int(head - offset))]
      return .bytes(body(bytes.span.bytes))
    }

    func requestWakeUp(beyond offset: UInt64) -> Bool {
      calls.append(.wakeUp(offset))
      beforeWakeUp()
      return head <= offset && !isFinished
    }

    func release(upTo offset: UInt64) { calls.append(.release(offset)) }
  }

  /// What libcurl gets from a body.
  private enum Filling: Equatable {
    case bytes([UInt8])
    case nothingYet
    case end
    case failed(String)
  }

  /// A writer and its current body.
  private final class Rig {
    let bytes = ScriptedBytes()
    let writer: StreamWriter
    private var body: UploadBody?
    /// The number of reports of written bytes.
    private(set) var writes = 0
    /// The number of reports of a pause.
    private(set) var pauses = 0

    init(pairSize: Int = 4, digest: DigestAlgorithm? = nil, headroom: Int = .max) {
      writer = StreamWriter(bytes, pairSize: pairSize, digest: digest, headroom: headroom)
      writer.didWrite = { [unowned self] in writes += 1 }
      writer.didReachPause = { [unowned self] in pauses += 1 }
    }

    func open(_ header: [UInt8] = [], from offset: UInt64 = 0, maximum: UInt64? = nil) throws {
      body = try writer.openBody(header, from: offset, maximum: maximum)
      body?.open {}
    }

    func close() { body?.close(nil) }

    func read(_ maximum: Int = 1000) -> Filling {
      let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: maximum, alignment: 1)
      defer { buffer.deallocate() }
      switch body?.fill(buffer, from: 0) {
      case .bytes(let count, _)?: return .bytes(Array(buffer[..<count]))
      case .nothingYet?: return .nothingYet
      case .end?: return .end
      case .failed(let reason)?: return .failed(reason)
      case .unreadable?, nil: return .failed("no stream")
      }
    }
  }

  private static func stream(_ range: Range<Int>) -> Filling { .bytes(ScriptedBytes.pattern[range]) }

  private static let replaced = Filling.failed("newer bytes replaced bytes that were due")

  // MARK: A body

  @Test("a body has the header and all bytes of the stream, however they arrive, and ends with it")
  func whole() throws {
    for pairSize in 1...9 {
      for length in [0, 1, 4, 8, 11] {
        let rig = Rig(pairSize: pairSize)
        let header = [UInt8](repeating: 200, count: length)
        rig.bytes.head = 5
        try rig.open(header, from: 2)
        #expect(rig.read() == .bytes(header + ScriptedBytes.pattern[2..<5]))
        #expect(rig.read() == .nothingYet && rig.writer.cursor == 5)
        for head in [6, 20, 21] as [UInt64] {
          let start = Int(rig.bytes.head)
          rig.bytes.head = head
          rig.writer.write()
          #expect(rig.read() == Self.stream(start..<Int(head)))
        }
        #expect(rig.read() == .nothingYet)
        rig.bytes.isFinished = true
        rig.writer.write()
        #expect(rig.read() == .end && rig.writer.cursor == 21)
      }
    }
  }

  @Test("the stream's bytes are read only when the pair has space, and a wake-up is requested when there are no more")
  func calls() throws {
    let rig = Rig(pairSize: 4)
    rig.bytes.head = 6
    // The header fills the pair.
    try rig.open([1, 2, 3, 4])
    #expect(rig.bytes.takeCalls() == [] && rig.writes == 0)
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [])
    // Four of the stream's bytes go to the rest of the target, and the other two into the pair.
    #expect(rig.read(8) == .bytes([1, 2, 3, 4] + ScriptedBytes.pattern[0..<4]))
    #expect(rig.bytes.takeCalls() == [.read(0), .read(4), .read(6), .wakeUp(6)] && rig.writer.cursor == 6)
    #expect(rig.writes == 1)
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [.read(6), .wakeUp(6)] && rig.writes == 1)
    // The pair has two bytes, and then four.
    rig.bytes.head = 20
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [.read(6)] && rig.writer.cursor == 8 && rig.writes == 2)
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [] && rig.writes == 2)
  }

  @Test("bytes that arrive during the request for a wake-up are written at once")
  func arrivalDuringRequest() throws {
    let rig = Rig(pairSize: 10)
    try rig.open()
    rig.bytes.beforeWakeUp = { [unowned bytes = rig.bytes] in bytes.head = 3 }
    #expect(rig.bytes.takeCalls() == [.read(0), .wakeUp(0)])
    rig.writer.write()
    #expect(rig.read() == Self.stream(0..<3))
    #expect(rig.bytes.takeCalls() == [.read(0), .wakeUp(0), .read(0), .read(3), .wakeUp(3)])
    rig.bytes.beforeWakeUp = { [unowned bytes = rig.bytes] in bytes.head = 5 }
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [.read(3), .wakeUp(3), .read(3), .read(5), .wakeUp(5)])
    #expect(rig.read() == Self.stream(3..<5) && rig.writes == 2)
  }

  @Test("bytes that are being loaded are awaited without a request, and a finished stream does not end before them")
  func loading() throws {
    let rig = Rig(pairSize: 10)
    (rig.bytes.head, rig.bytes.isFinished, rig.bytes.loading) = (8, true, [0])
    try rig.open()
    #expect(rig.bytes.takeCalls() == [.read(0)] && rig.read() == .nothingYet)
    rig.bytes.loading = []
    rig.writer.write()
    #expect(rig.read() == Self.stream(0..<8) && rig.read() == .end)
    #expect(rig.bytes.takeCalls() == [.read(0), .read(8)])
  }

  @Test(
    "a body with a maximum ends there, and nothing is read afterwards", arguments: [1, 2, 3, 4, 5, 9] as [UInt64])
  func maximum(_ maximum: UInt64) throws {
    for isLate in [false, true] {
      let rig = Rig(pairSize: 4)
      if !isLate { rig.bytes.head = 110 }
      try rig.open(from: 100, maximum: maximum)
      rig.bytes.head = 110
      if isLate { rig.writer.write() }
      #expect(rig.read() == Self.stream(100..<100 + Int(maximum)) && rig.read() == .end)
      #expect(rig.writer.cursor == 100 + maximum)
      let reads = rig.bytes.takeCalls().filter { $0 != .wakeUp(100) }
      #expect(reads.allSatisfy { if case .read(let offset) = $0 { offset < 100 + maximum } else { false } })
      rig.writer.write()
      #expect(rig.bytes.takeCalls() == [])
    }
  }

  @Test("a maximum beyond the last offset is no limit")
  func largestMaximum() throws {
    for maximum in [nil, .max, .max - 99] as [UInt64?] {
      let rig = Rig(pairSize: 10)
      rig.bytes.head = 104
      try rig.open(from: 100, maximum: maximum)
      #expect(rig.read() == Self.stream(100..<104) && rig.read() == .nothingYet)
    }
  }

  @Test("a body ends on request at its last byte, or at a later offset, but not beyond its maximum")
  func ending() throws {
    // The cursor is at 6.
    for (maximum, least, end) in [
      (nil, 0, 6), (nil, 5, 6), (nil, 6, 6), (nil, 7, 7), (nil, 9, 9), (8, 7, 7), (8, 8, 8), (8, 9, 8), (8, 6, 6),
    ] as [(UInt64?, UInt64, Int)] {
      let rig = Rig(pairSize: 10)
      rig.bytes.head = 6
      try rig.open(maximum: maximum)
      let canEnd = rig.writer.endBody(atLeast: least)
      #expect(canEnd && rig.writer.cursor == 6)
      rig.bytes.head = 20
      // A body that ends at its last byte needs no later one for that.
      if end > 6 { rig.writer.write() }
      #expect(rig.read() == Self.stream(0..<end) && rig.read() == .end, "at \(least) of \(maximum ?? .max)")
      #expect(rig.writer.cursor == UInt64(end))
      // Later bytes belong to the next body.
      _ = rig.bytes.takeCalls()
      rig.writer.write()
      #expect(rig.bytes.takeCalls() == [])
    }
  }

  @Test("a dropped body fails, and a closed one stays as it is: neither reads any more bytes")
  func dropped() throws {
    let rig = Rig(pairSize: 10)
    rig.bytes.head = 3
    try rig.open()
    rig.writer.dropBody()
    #expect(rig.read() == .failed("the writer was dropped without closing the stream"))
    _ = rig.bytes.takeCalls()
    rig.bytes.head = 6
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [] && rig.writer.cursor == 3 && rig.writes == 1)
    try rig.open(from: 1)
    #expect(rig.read() == Self.stream(1..<6))
    // The request is over.
    rig.close()
    _ = rig.bytes.takeCalls()
    rig.bytes.head = 9
    rig.writer.write()
    #expect(rig.bytes.takeCalls() == [] && rig.writer.cursor == 6)
  }

  // MARK: Pauses and missing bytes

  @Test("a body stops before a pause, and reports it instead of requesting a wake-up")
  func pause() throws {
    let rig = Rig(pairSize: 10)
    (rig.bytes.head, rig.bytes.pauses) = (4, [4])
    try rig.open()
    #expect(rig.writer.isAtPause && rig.pauses == 1)
    #expect(rig.bytes.takeCalls() == [.read(0), .read(4)])
    #expect(rig.read() == Self.stream(0..<4) && rig.read() == .nothingYet)
    // The bytes before it were released, and it is passed. A body that begins after it continues.
    (rig.bytes.oldest, rig.bytes.head, rig.bytes.pause, rig.bytes.pauses) = (104, 110, 4..<104, [4])
    rig.writer.write()
    #expect(rig.pauses == 2 && rig.read() == .nothingYet, "overwritten by the pause, which is no loss")
    rig.writer.dropBody()
    try rig.open(from: 104)
    #expect(!rig.writer.isAtPause && rig.pauses == 2 && rig.read() == Self.stream(104..<110))
  }

  @Test("a body stops before missing bytes in its middle, and fails if its first byte is missing")
  func missing() throws {
    let rig = Rig(pairSize: 10)
    (rig.bytes.head, rig.bytes.missing) = (4, [4, 5])
    try rig.open()
    #expect(rig.writer.isAtPause && rig.pauses == 1 && rig.read() == Self.stream(0..<4) && rig.read() == .nothingYet)
    rig.bytes.head = 9
    for (start, isReleased) in [(4, false), (5, false), (4, false), (4, true), (4, true)] as [(UInt64, Bool)] {
      rig.writer.dropBody()
      _ = rig.bytes.takeCalls()
      try rig.open(from: start)
      #expect(!rig.writer.isAtPause && rig.pauses == 1 && rig.read() == Self.replaced)
      let expected: [Call] = isReleased ? [.read(start), .release(start)] : [.read(start)]
      #expect(rig.bytes.takeCalls() == expected, "from \(start)")
    }
  }

  @Test("a body fails if newer bytes replace those that are due, and releases nothing")
  func overwritten() throws {
    let rig = Rig(pairSize: 2)
    rig.bytes.head = 6
    try rig.open()
    #expect(rig.writer.cursor == 2)
    (rig.bytes.oldest, rig.bytes.head) = (10, 20)
    #expect(rig.read(2) == Self.stream(0..<2) && rig.read() == Self.replaced)
    for _ in 0..<2 {
      rig.writer.dropBody()
      _ = rig.bytes.takeCalls()
      try rig.open(from: 2)
      #expect(rig.read() == Self.replaced && rig.bytes.takeCalls() == [.read(2)] && rig.pauses == 0)
    }
  }

  // MARK: The content of a stream

  @Test("the content is that of the bytes, and a wake-up for an offset waits for the byte before it")
  func content() {
    let rig = Rig()
    (rig.bytes.oldest, rig.bytes.head, rig.bytes.pausedByteCount) = (3, 50, 9)
    (rig.bytes.pause, rig.bytes.isFinished) = (1..<3, true)
    let content: any StreamContent = rig.writer
    #expect(content.capacity == 800 && content.oldest == 3 && content.head == 50 && content.newest == 57)
    #expect(content.isFinished && content.pause == 1..<3 && content.pausedByteCount == 9 && content.fault == nil)
    #expect(content.byteCount(from: 21) == 42)
    rig.bytes.isFinished = false
    let waits = [0, 1, 50, 51, 60].map { content.requestWakeUp(at: $0) }
    #expect(waits == [false, false, false, true, true])
    #expect(rig.bytes.takeCalls() == [.wakeUp(0), .wakeUp(0), .wakeUp(49), .wakeUp(50), .wakeUp(59)])
  }

  @Test("the supply leaves as much of the buffer free as the source needs, unless nothing follows or a pause precedes")
  func supply() {
    let rig = Rig(headroom: 100)
    func supply(_ oldest: UInt64, _ head: UInt64) -> Supply {
      (rig.bytes.oldest, rig.bytes.head) = (oldest, head)
      return rig.writer.supply
    }
    func expected(_ oldest: UInt64, _ head: UInt64, restart: UInt64) -> Supply {
      Supply(oldest: oldest, head: head, isFinished: false, restart: restart)
    }
    // 100 of 800 bytes stay free. A part begins at a multiple of 10.
    #expect(supply(0, 0) == expected(0, 0, restart: 0))
    #expect(supply(7, 707) == expected(7, 707, restart: 10))
    #expect(supply(10, 710) == expected(10, 710, restart: 10))
    #expect(supply(10, 711) == expected(10, 711, restart: 20))
    #expect(supply(1000, 1800) == expected(1000, 1800, restart: 1100))
    #expect(supply(1000, 1900) == expected(1000, 1900, restart: 1100), "never more than stays free")
    // No part begins after the last byte.
    rig.bytes.capacity = 40
    #expect(supply(5, 44) == expected(5, 44, restart: 44))
    rig.bytes.capacity = 800
    (rig.bytes.pause, rig.bytes.pauses) = (900..<1000, [1800])
    #expect(
      supply(1000, 1800)
        == Supply(oldest: 1000, head: 1800, isFinished: false, pause: 900..<1000, pausesAtHead: true))
    #expect(supply(1001, 1801).restart == 1110, "bytes were lost after the pause")
    (rig.bytes.pause, rig.bytes.isFinished) = (nil, true)
    #expect(supply(1003, 1803) == Supply(oldest: 1003, head: 1803, isFinished: true))
  }

  @Test("each loss doubles the free part up to three quarters, and a later acknowledgement quarters it once")
  func headroom() {
    let rig = Rig(headroom: 64)
    (rig.bytes.oldest, rig.bytes.head) = (1000, 1800)
    func free() -> UInt64 { rig.writer.supply.restart - 1000 }
    // Rounded up to 10.
    #expect(free() == 70)
    for expected in [130, 260, 520, 600, 600] as [UInt64] {
      rig.writer.gaveUp(upTo: 500)
      #expect(free() == expected)
    }
    rig.writer.release(upTo: 499)
    rig.writer.release(upTo: 500)
    #expect(free() == 600, "the bytes after the loss are not acknowledged yet")
    rig.writer.release(upTo: 501)
    #expect(free() == 150)
    rig.writer.release(upTo: 502)
    #expect(free() == 150, "once for each loss")
    rig.writer.gaveUp(upTo: 600)
    #expect(free() == 300)
    rig.writer.release(upTo: 601)
    #expect(free() == 80)
    rig.writer.gaveUp(upTo: 700)
    rig.writer.gaveUp(upTo: 710)
    rig.writer.release(upTo: 705)
    #expect(free() == 300)
    rig.writer.release(upTo: 711)
    rig.writer.gaveUp(upTo: 800)
    rig.writer.release(upTo: 801)
    #expect(free() == 70, "never below the first one")
    let released = [499, 500, 501, 502, 601, 705, 711, 801].map { Call.release($0) }
    #expect(rig.bytes.takeCalls() == released)
  }

  @Test("at first, the free part is what the source needs, but at most an eighth of the buffer")
  func firstHeadroom() {
    for (headroom, expected) in [(99, 100), (100, 100), (101, 100), (Int.max, 100), (50, 50), (0, 0)] {
      let rig = Rig(headroom: headroom)
      (rig.bytes.oldest, rig.bytes.head) = (1000, 1800)
      #expect(rig.writer.supply.restart == UInt64(1000 + expected), "\(headroom)")
    }
  }

  @Test("the digest covers each sent byte once, from the start of a representation, until it is no longer needed")
  func digest() throws {
    let algorithm = DigestAlgorithm.sha256
    let rig = Rig(pairSize: 4, digest: algorithm)
    func isDigest(_ start: UInt64, _ end: UInt64) -> Bool {
      guard let found = rig.writer.digest(since: start) else { return false }
      let bytes = ScriptedBytes.pattern[Int(start)..<Int(end)]
      var running = RunningDigest(algorithm)
      running.update(bytes.span.bytes)
      return found.upTo == end && found.value.bytes == running.value().bytes
    }
    func hasDigest(since start: UInt64) -> Bool { rig.writer.digest(since: start) != nil }
    rig.bytes.head = 30
    // The header does not count.
    try rig.open([1, 2, 3])
    _ = rig.read(13)
    // Ten bytes of the stream were read, and the pair has four more.
    #expect(rig.writer.cursor == 14 && isDigest(0, 14))
    rig.writer.dropBody()
    try rig.open(from: 10)
    _ = rig.read(10)
    #expect(rig.writer.cursor == 24 && isDigest(0, 24) && !hasDigest(since: 10))
    rig.writer.restartDigest(at: 20)
    rig.writer.dropBody()
    try rig.open(from: 20)
    _ = rig.read()
    #expect(isDigest(20, 30) && !hasDigest(since: 0))
    rig.writer.endDigest()
    #expect(!hasDigest(since: 20))
  }
}
