import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import LiveStreaming

/// The events of a source, and the reading end of its buffer.
private final class Outlet: Sendable {
  let loop: EventLoop
  let events: EventLog<SourceEvent>
  let errors: EventLog<LiveStreamError>
  private let thread: NamedThread
  private let consumer: Lock<CircularBuffer.Consumer>

  init(_ source: any StreamSource, capacity: Int, _ overflow: OverflowPolicy) throws {
    let (loop, events, errors) = (try EventLoop(), try EventLog<SourceEvent>(), try EventLog<LiveStreamError>())
    (self.loop, self.events, self.errors) = (loop, events, errors)
    let ends = try CircularBuffer.make(
      capacity: .bytes(capacity), overflow: overflow == .dropOldest ? .dropOldest : .refuse)
    consumer = Lock(ends.consumer)
    let context = SourceContext(
      loop: loop, overflow: overflow, report: { events.append($0) }, fail: { errors.append($0) })
    let producer = Handover(ends.producer)
    loop.execute { try? source.start(into: producer.take(), context: context) }
    thread = try NamedThread("test loop") { loop.run() }
  }

  deinit {
    loop.stop()
    thread.join()
  }

  var head: UInt64 { consumer.withLock { $0.head } }
  var isFinished: Bool { consumer.withLock { $0.isFinished } }

  func read(at offset: UInt64) -> [UInt8] {
    consumer.withLock { consumer in
      let result = consumer.read(at: offset) { bytes in bytes.withUnsafeBytes { Array($0) } }
      if case .bytes(let bytes) = result { return bytes }
      return []
    }
  }

  /// Runs `body` during a read of the bytes at `offset`, which therefore cannot be overwritten.
  func whileReading(at offset: UInt64, _ body: (_ head: () -> UInt64) -> Void) {
    consumer.withLock { consumer in
      _ = consumer.read(at: offset) { [head = consumer.head] _ in body { head } }
    }
  }

  var oldest: UInt64 { consumer.withLock { $0.released } }
  var capacity: Int { consumer.withLock { $0.capacity } }

  func release(upTo offset: UInt64) { consumer.withLock { $0.release(upTo: offset) } }
}

/// Polls until `condition` holds, for conditions without an event.
private func eventually(_ what: String, _ condition: () throws -> Bool) throws {
  let never = try EventCounter()
  let deadline = MonotonicInstant.now + .seconds(60)
  while try !condition() {
    guard MonotonicInstant.now < deadline else { throw TestFailure("\(what) did not come") }
    _ = waitUntilReadable(never.descriptor, limit: .milliseconds(1))
  }
}

@Suite("Sources", .serialized)
struct SourceTests {
  // MARK: Heartbeat

  @Test("drop-oldest: the bytes of a pipe free only as much space as they require", arguments: [1, 10_000, 60_000])
  func discardsNoMoreThanComes(pieceSize: Int) throws {
    let pipe = try TestPipe()
    let outlet = try Outlet(DescriptorSource(descriptor: pipe.reading, name: "a pipe"), capacity: 1 << 20, .dropOldest)
    // Full to the last byte, and then some more pieces.
    var total = 0
    func write(_ count: Int) throws {
      #expect(pipe.write([UInt8](repeating: 7, count: count)))
      total += count
      try eventually("the bytes are in the buffer") { outlet.head == UInt64(total) }
    }
    while total < outlet.capacity { try write(min(60_000, outlet.capacity - total)) }
    #expect(outlet.oldest == 0)
    for _ in 0..<3 {
      try write(pieceSize)
      #expect(outlet.oldest == UInt64(total - outlet.capacity))
    }
    pipe.closeWriting()
    try eventually("the source has ended") { outlet.isFinished }
  }

  @Test("a heartbeat's line has the format of the article, in UTC")
  func line() {
    let time = 1_795_195_339
    #expect(
      HeartbeatSource.line(format: HeartbeatSource.defaultFormat, time: time) == "*** 2026-11-20 17:22:19 +0000\r\n")
    #expect(HeartbeatSource.line(format: "%s größe", time: time) == "1795195339 größe\r\n")
    #expect(HeartbeatSource.lineByteCount(format: HeartbeatSource.defaultFormat) == 31)
  }

  @Test("a format that produces no text, or more than a line, is invalid: no empty line is streamed")
  func noLine() throws {
    for (format, count) in [
      ("", nil), ("%512d", nil), ("%5000d", nil), (String(repeating: "x", count: 512), nil),
      (String(repeating: "x", count: 511), 513), ("%511d", 513), ("%d", 4), ("x", 3),
    ] as [(String, Int?)] {
      #expect(HeartbeatSource.lineByteCount(format: format) == count, "\(format.prefix(10))")
    }
    let outlet = try Outlet(HeartbeatSource(format: "%5000d"), capacity: 4096, .dropOldest)
    try outlet.errors.first("the error") { $0.kind == .source }
    try eventually("the end") { outlet.isFinished }
    #expect(outlet.head == 0)
  }

  @Test("the schedule never drifts: beat n is due n intervals after the first")
  func noDrift() throws {
    let interval = Duration.milliseconds(5)
    let source = HeartbeatSource(interval: interval)
    let before = MonotonicInstant.now
    let outlet = try Outlet(source, capacity: 1 << 20, .dropOldest)
    try eventually("the first beat") { outlet.head > 0 }
    let seen = MonotonicInstant.now
    let length = UInt64(try #require(HeartbeatSource.lineByteCount(format: HeartbeatSource.defaultFormat)))
    /// The beats that were sent and reported as omitted. On a busy machine there are some.
    func beats() -> Double { Double(outlet.head / length + outlet.events.all.reduce(0) { $0 + $1.lost + $1.skipped }) }
    try eventually("400 beats") { beats() >= 400 }
    // A source that restarts the interval after each beat is a tenth of a millisecond later each time, and never
    // catches up.
    try eventually("as many beats as there are intervals since the first") {
      let elapsed = MonotonicInstant.now - seen
      return beats() >= elapsed / interval
    }
    #expect(beats() <= (MonotonicInstant.now - before) / interval + 1)
    outlet.loop.execute { source.stop() }
    try eventually("the end") { outlet.isFinished }
  }

  @Test("lines that are due while the machine sleeps are omitted and reported, and the schedule stays")
  func slept() throws {
    let start = MonotonicInstant(nanoseconds: 1)
    let interval = Duration.milliseconds(1)
    // It only moves by jumps.
    let clock = Lock(start)
    let source = HeartbeatSource(interval: interval) { clock.withLock { $0 } }
    let outlet = try Outlet(source, capacity: 1 << 20, .dropOldest)
    let length = UInt64(try #require(HeartbeatSource.lineByteCount(format: HeartbeatSource.defaultFormat)))
    try eventually("the first beat") { outlet.head > 0 }
    var skipped: UInt64 = 0
    for (number, due) in ([1000, 9_000_000] as [UInt64]).enumerated() {
      // Between this beat and the next. This one is late, and all before it are sent or omitted.
      clock.withLock { $0 = start + (interval * Int(due) + interval / 2) }
      let event = try outlet.events.wait("the omitted beats") { $0.count > number ? $0[number] : nil }
      skipped += event.skipped
      // The event's offset is that of the last line before it.
      #expect(event.kind == "late" && event.offset / length + 1 + skipped == due, "\(event)")
    }
    outlet.loop.execute { source.stop() }
    try eventually("the end") { outlet.isFinished }
    #expect(outlet.events.all.count == 2)
  }

  @Test("a beat that is a whole interval late is omitted, and one that is a nanosecond less late is not")
  func exactlyLate() throws {
    let second: Int64 = 1_000_000_000
    // The times at which the source asks: at its start, and after each line. Then it waits for an hour.
    let times = Lock([0, 2 * second, 4 * second - 1, 9 * second, -3600 * second].map { $0 + 1 })
    let source = HeartbeatSource(interval: .seconds(1), format: "x") {
      times.withLock { MonotonicInstant(nanoseconds: $0.count > 1 ? $0.removeFirst() : $0[0]) }
    }
    let outlet = try Outlet(source, capacity: 4096, .dropOldest)
    // The beats 0, 2, 3 and 9. Beat 1 was a second late, and so were the beats 4 to 8, at least.
    try eventually("four lines") { outlet.head == 4 * 3 }
    let events = outlet.events.all
    #expect(events.map(\.skipped) == [1, 5] && events.map(\.offset) == [0, 6])
    #expect(events.allSatisfy { $0.kind == "late" && $0.unit == .beats && $0.lost == 0 })
    outlet.loop.execute { source.stop() }
    try eventually("the end") { outlet.isFinished }
    #expect(outlet.read(at: 0) == Array("x\r\nx\r\nx\r\nx\r\n".utf8))
  }

  @Test("a stopped source leaves no timer behind, and may be stopped again")
  func stoppedHeartbeat() throws {
    let outlet: Outlet
    weak var dropped: HeartbeatSource?
    do {
      let source = HeartbeatSource(interval: .milliseconds(100))
      dropped = source
      outlet = try Outlet(source, capacity: 1 << 20, .dropOldest)
      try eventually("the first line") { outlet.head > 0 }
      outlet.loop.execute {
        source.stop()
        source.stop()
      }
      try eventually("the end") { outlet.isFinished }
    }
    try eventually("nobody uses the source") { dropped == nil }
    let head = outlet.head
    // A timer of the source would be due before this one, and would use what is gone.
    let later = try EventLog<Bool>()
    outlet.loop.execute { [loop = outlet.loop] in
      _ = loop.schedule(after: .milliseconds(150)) { later.append(true) }
    }
    try later.first("the later timer") { $0 }
    #expect(outlet.head == head)
  }

  @Test(
    "a line is in the stream completely or not at all, and omitted lines are reported",
    arguments: [OverflowPolicy.wait, .stop])
  func wholeLines(_ overflow: OverflowPolicy) throws {
    // A page of 4096 bytes is not a multiple of 31.
    let source = HeartbeatSource(interval: .milliseconds(1))
    let outlet = try Outlet(source, capacity: 4096, overflow)
    if overflow == .stop {
      try outlet.errors.first("the overflow") { $0.kind == .overflow }
      try eventually("the end") { outlet.isFinished }
    } else {
      try outlet.events.first("a beat left out") { $0.kind == "full" && $0.lost == 1 }
      // There is space again, so it continues at the end of a line.
      outlet.release(upTo: 31)
      try eventually("another beat") { outlet.head >= 133 * 31 }
      outlet.loop.execute { source.stop() }
    }
    let head = outlet.head
    #expect(head % 31 == 0 && head >= 132 * 31)
  }

  // MARK: Descriptors

  @Test("a pipe is read to its end, and so is a file")
  func descriptors() throws {
    let text = [UInt8]((0..<100_000).map { UInt8(truncatingIfNeeded: $0 &* 7) })
    let pipe = try TestPipe()
    let fromPipe = try Outlet(try DescriptorSource(descriptor: pipe.reading), capacity: 1 << 20, .wait)
    #expect(pipe.write(text))
    try eventually("the bytes") { fromPipe.head == 100_000 }
    #expect(!fromPipe.isFinished)
    pipe.closeWriting()
    try eventually("the end") { fromPipe.isFinished }
    #expect(fromPipe.read(at: 0) == text)

    let directory = try TemporaryDirectory()
    let path = try directory.write("file", String(repeating: "abc\n", count: 50_000))
    let descriptor = open(path, O_RDONLY)
    defer { close(descriptor) }
    let fromFile = try Outlet(try DescriptorSource(descriptor: descriptor), capacity: 1 << 20, .wait)
    try eventually("the end") { fromFile.isFinished }
    #expect(fromFile.head == 200_000 && fromFile.errors.all.isEmpty)
  }

  @Test("a read error ends the source and is reported, after the earlier bytes")
  func readError() throws {
    let descriptor = open("/", O_RDONLY)
    defer { close(descriptor) }
    let outlet = try Outlet(try DescriptorSource(descriptor: descriptor, name: "the input"), capacity: 4096, .wait)
    let error = try outlet.errors.first("the error") { _ in true }
    #expect(error.kind == .source && error.description == "reading the input: Is a directory")
    try eventually("the end") { outlet.isFinished }
  }

  @Test("a closed or write-only descriptor is refused at once")
  func refused() {
    #expect(throws: SystemError.self) { try DescriptorSource(descriptor: 1_000_000) }
    let descriptor = open("/dev/null", O_WRONLY)
    defer { close(descriptor) }
    #expect(throws: SystemError.self) { try DescriptorSource(descriptor: descriptor) }
  }

  @Test("a source ends on request while it waits for bytes or for space", arguments: [true, false])
  func stops(_ isFull: Bool) throws {
    let pipe = try TestPipe()
    let source = try DescriptorSource(descriptor: pipe.reading)
    let outlet = try Outlet(source, capacity: 4096, .wait)
    if isFull {
      #expect(pipe.write([UInt8](repeating: 1, count: 20_000)))
      try eventually("a full buffer") { outlet.head == 4096 }
    }
    outlet.loop.execute { source.stop() }
    try eventually("the end") { outlet.isFinished }
  }

  @Test("with drop-oldest, a pipe never stays unread for long, not even after a write that met a reader")
  func dropOldestGoesOn() throws {
    let pipe = try TestPipe()
    let outlet = try Outlet(try DescriptorSource(descriptor: pipe.reading), capacity: 16_384, .dropOldest)
    #expect(pipe.write([UInt8](repeating: 1, count: 16_384)))
    try eventually("a full buffer") { outlet.head == 16_384 }
    outlet.whileReading(at: 0) { _ in
      _ = pipe.write([UInt8](repeating: 2, count: 40_000))
      // Until the source has met the reader. It cannot write then, and no event reports that.
      let never = try? EventCounter()
      if let never { _ = waitUntilReadable(never.descriptor, limit: .milliseconds(100)) }
    }
    // Nothing is released.
    try eventually("all of it") { outlet.head == 56_384 }
    pipe.closeWriting()
    try eventually("the end") { outlet.isFinished }
  }

  @Test("only a connected stream socket is a source, because datagram boundaries would be lost")
  func sockets() throws {
    for type in [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET] {
      var pair: [Int32] = [-1, -1]
      #expect(socketpair(AF_UNIX, Int32(type.rawValue), 0, &pair) == 0)
      defer { for descriptor in pair { close(descriptor) } }
      if type == SOCK_STREAM {
        _ = try DescriptorSource(descriptor: pair[0])
      } else {
        let error = #expect(throws: SystemError.self) { try DescriptorSource(descriptor: pair[0]) }
        #expect(error?.code == ESOCKTNOSUPPORT)
      }
    }
    let waiting = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
    defer { close(waiting) }
    #expect(listen(waiting, 1) == 0)
    let error = #expect(throws: SystemError.self) { try DescriptorSource(descriptor: waiting) }
    #expect(error?.code == ENOTCONN)
  }
}
