import EventLoops
import FoundationUploads
import NetworkTesting
import PropertyTesting
import Testing

@Suite("Bound streams")
struct BoundStreamTests {
  /// How one end is used.
  enum Use: String, CaseIterable {
    case blocking, scheduledThenOpened, openedThenScheduled
  }

  struct Case: CustomTestStringConvertible, Sendable {
    var writer: Use
    var reader: Use
    var bufferSize: Int
    /// Whether the reader stops half way.
    var readerClosesFirst: Bool
    var testDescription: String {
      "\(writer) to \(reader), \(bufferSize) bytes, \(readerClosesFirst ? "reader" : "writer") closes first"
    }

    static let all: [Case] = Use.allCases.flatMap { writer in
      Use.allCases.flatMap { reader in
        [1, 7, 4096].flatMap { size in
          [false, true].map { Case(writer: writer, reader: reader, bufferSize: size, readerClosesFirst: $0) }
        }
      }
    }
  }

  @Test("the reader receives the written bytes, and both ends receive the end", arguments: Case.all, Seed.several(1))
  func transfer(_ test: Case, _ seed: Seed) throws {
    let pair = try Pair(bufferSize: test.bufferSize)
    var generator = seed.generator
    let bytes = (0..<Int.random(in: 1...400, using: &generator)).map { _ in UInt8.random(in: 0...255, using: &generator)
    }
    let limit = test.readerClosesFirst ? bytes.count / 2 : bytes.count + 1
    let (reader, writer) = (
      try Reader(pair.input, test.reader, limit: limit, seed: generator.next()),
      try Writer(pair.output, test.writer, bytes, seed: generator.next())
    )
    let received = try reader.done.wait("the end of reading") { $0.first }
    try writer.done.wait("the end of writing") { $0.first }
    if test.readerClosesFirst {
      #expect(received == Array(bytes.prefix(limit)))
      #expect(pair.input.streamStatus == .closed)
      #expect(pair.output.write([1], maxLength: 1) == -1)
    } else {
      #expect(received == bytes)
      #expect(pair.input.streamStatus == .atEnd)
      #expect(pair.output.streamStatus == .closed)
    }
    try reader.checkEvents()
    try writer.checkEvents()
  }

  @Test("a stream that is scheduled in another thread's sleeping run loop wakes it")
  func wakesSleepingLoop() throws {
    let (pair, thread, recorder) = (try Pair(), LoopThread(), try EventRecorder())
    defer { thread.end() }
    pair.input.delegate = recorder
    pair.input.schedule(in: thread.loop, forMode: .default)
    pair.input.open()
    try recorder.log.first("the opening") { $0 == .openCompleted }
    pair.output.open()
    #expect(pair.output.write([1, 2, 3], maxLength: 3) == 3)
    try recorder.log.first("the bytes") { $0 == .hasBytesAvailable }
    // No further event is sent until they are read.
    #expect(recorder.log.all == [.openCompleted, .hasBytesAvailable])
    var byte: UInt8 = 0
    #expect(pair.input.read(&byte, maxLength: 1) == 1)
    try recorder.log.wait("the rest") { $0.count == 3 ? $0 : nil }
    #expect(recorder.log.all.last == .hasBytesAvailable)
  }

  @Test("each write is followed by one hasSpaceAvailable, as soon as there is space")
  func oneSignalPerWrite() throws {
    let (pair, thread, recorder) = (try Pair(bufferSize: 4), LoopThread(), try EventRecorder())
    defer { thread.end() }
    pair.output.delegate = recorder
    pair.output.schedule(in: thread.loop, forMode: .default)
    pair.output.open()
    pair.input.open()
    try recorder.log.wait("space") { $0 == [.openCompleted, .hasSpaceAvailable] ? true : nil }
    #expect(pair.output.write([1, 2], maxLength: 2) == 2)
    try recorder.log.wait("space behind two bytes") { $0.count == 3 ? true : nil }
    #expect(pair.output.write([3, 4, 5], maxLength: 3) == 2)
    #expect(!pair.output.hasSpaceAvailable)
    var bytes = [UInt8](repeating: 0, count: 3)
    #expect(pair.input.read(&bytes, maxLength: 3) == 3)
    try recorder.log.wait("space behind a full buffer") { $0.count == 4 ? true : nil }
    #expect(recorder.log.all == [.openCompleted, .hasSpaceAvailable, .hasSpaceAvailable, .hasSpaceAvailable])
  }

  @Test("events wait for the delegate and for the run loop")
  func eventsWait() throws {
    let (pair, thread, recorder) = (try Pair(), LoopThread(), try EventRecorder())
    defer { thread.end() }
    pair.output.open()
    pair.output.schedule(in: thread.loop, forMode: .default)
    pair.output.delegate = recorder
    try recorder.log.wait("both") { $0 == [.openCompleted, .hasSpaceAvailable] ? true : nil }
  }

  @Test("a stream that was removed from its run loop receives no events")
  func removal() throws {
    let (pair, thread, recorder, other) = (try Pair(), LoopThread(), try EventRecorder(), try EventRecorder())
    defer { thread.end() }
    for stream in [pair.input, pair.output] as [Stream] {
      stream.delegate = stream === pair.input ? recorder : other
      stream.schedule(in: thread.loop, forMode: .default)
      stream.open()
    }
    try recorder.log.first("the opening") { $0 == .openCompleted }
    try other.log.first("the first space") { $0 == .hasSpaceAvailable }
    pair.input.remove(from: thread.loop, forMode: .default)
    #expect(pair.output.write([1], maxLength: 1) == 1)
    // The event of the output end follows where the input end's would have been.
    try other.log.wait("space") { $0.count == 3 ? true : nil }
    #expect(recorder.log.all == [.openCompleted])
  }

  @Test("closing from another thread ends a blocked read and a blocked write")
  func closingEndsBlocking() throws {
    let pair = try Pair(bufferSize: 1)
    let results = try EventLog<Int>()
    pair.input.open()
    pair.output.open()
    Thread.detachNewThread {
      var byte: UInt8 = 0
      results.append(pair.input.read(&byte, maxLength: 1))
    }
    try waitUntil("the read blocks") { pair.input.streamStatus == .reading }
    pair.input.close()
    #expect(try results.wait("the read's end") { $0.first } == -1)

    let second = try Pair(bufferSize: 1)
    second.output.open()
    second.input.open()
    Thread.detachNewThread {
      results.append(second.output.write([1], maxLength: 1))
      results.append(second.output.write([2], maxLength: 1))
    }
    try waitUntil("the write blocks") { second.output.streamStatus == .writing }
    second.output.close()
    #expect(try results.wait("the write's end") { $0.count == 3 ? $0[2] : nil } == -1)
  }

  @Test("releasing the output stream ends the input stream")
  func droppedOutput() throws {
    var pair: Pair? = try Pair()
    let input = try #require(pair?.input)
    input.open()
    pair?.output.open()
    #expect(pair?.output.write([7], maxLength: 1) == 1)
    pair = nil
    var bytes = [UInt8](repeating: 0, count: 4)
    #expect(input.read(&bytes, maxLength: 4) == 1)
    #expect(input.read(&bytes, maxLength: 4) == 0)
    #expect(input.streamStatus == .atEnd)
  }

  @Test("released pairs leak no memory, even if they were scheduled and had bytes in them")
  func flatMemory() async {
    // A process of its own: the tests of other suites need memory at the same time.
    await #expect(processExitsWith: .success) {
      let thread = LoopThread()
      defer { thread.end() }
      let turns = try EventLog<Bool>()
      let bytes = [UInt8](repeating: 1, count: 65_536)
      /// In KiB.
      func resident() throws -> Int {
        let status = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
        let line = status.split(separator: "\n").first { $0.hasPrefix("RssAnon:") } ?? ""
        guard let count = Int(line.filter(\.isNumber)) else { throw TestFailure("no memory in \(status)") }
        return count
      }
      func make(_ count: Int) throws {
        let before = turns.all.count
        for _ in 0..<count {
          let pair = try Pair(bufferSize: bytes.count)
          for stream in [pair.input, pair.output] as [Stream] {
            stream.schedule(in: thread.loop, forMode: .default)
            stream.open()
          }
          let written = pair.output.write(bytes, maxLength: bytes.count)
          guard written == bytes.count else { throw TestFailure("\(written) bytes were written") }
        }
        // The run loop releases the last one, too.
        thread.perform { turns.append(true) }
        try turns.wait("the run loop's turn") { $0.count > before ? true : nil }
      }
      try make(100)
      let before = try resident()
      try make(600)
      // Pairs that stayed would be 38 MiB.
      let more = try resident() - before
      guard more < 20 << 10 else { throw TestFailure("\(more) KiB stayed") }
    }
  }

  @Test("a stream that is always busy leaves the timers of its run loop their turn")
  func busyStream() throws {
    let (pair, reading, writing) = (try Pair(), LoopThread(), LoopThread())
    defer {
      reading.end()
      writing.end()
    }
    let piece = [UInt8](repeating: 1, count: 4096)
    let reader = try EventRecorder { stream, event in
      var buffer = piece
      if event == .hasBytesAvailable { _ = (stream as? InputStream)?.read(&buffer, maxLength: buffer.count) }
    }
    let writer = try EventRecorder { stream, event in
      if event == .hasSpaceAvailable { _ = (stream as? OutputStream)?.write(piece, maxLength: piece.count) }
    }
    let ends: [(Stream, EventRecorder, LoopThread)] = [(pair.input, reader, reading), (pair.output, writer, writing)]
    for (stream, recorder, thread) in ends {
      stream.delegate = recorder
      stream.schedule(in: thread.loop, forMode: .default)
      stream.open()
    }
    try reader.log.wait("many pieces") { $0.count > 1_000 ? true : nil }
    let turns = try EventLog<Bool>()
    for (stream, _, thread) in ends {
      nonisolated(unsafe) let stream = stream
      thread.perform {
        turns.append(true)
        stream.close()
      }
    }
    try turns.wait("the timers of both run loops") { $0.count == 2 ? true : nil }
  }

  @Test("the delegate of a stream may change while its events are delivered")
  func changingDelegate() throws {
    let (pair, thread) = (try Pair(bufferSize: 1), LoopThread())
    defer { thread.end() }
    let count = 5_000
    pair.input.schedule(in: thread.loop, forMode: .default)
    pair.input.open()
    pair.output.open()
    nonisolated(unsafe) let output = pair.output
    let writer = try EventLog<Bool>()
    Thread.detachNewThread {
      for _ in 0..<count where output.write([1], maxLength: 1) != 1 { break }
      output.close()
      writer.append(true)
    }
    let total = Lock(0)
    let delegates = try (0..<2).map { _ in
      try EventRecorder { stream, event in
        guard event == .hasBytesAvailable, let stream = stream as? InputStream else { return }
        var byte: UInt8 = 0
        // Atomically, so that the total is never read in between.
        total.withLock { $0 += max(0, stream.read(&byte, maxLength: 1)) }
      }
    }
    var turn = 0
    while writer.all.isEmpty {
      turn = (turn + 1) % 3
      pair.input.delegate = turn == 2 ? nil : delegates[turn]
    }
    pair.input.delegate = nil
    var rest = [UInt8](repeating: 0, count: 10)
    while case let more = pair.input.read(&rest, maxLength: 10), more > 0 { total.withLock { $0 += more } }
    #expect(total.withLock { $0 } == count)
  }
}
