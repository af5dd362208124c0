// Reading a descriptor, by the stream's loop or by a thread, without any stream.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import LiveStreaming

/// A source with a loop and a buffer of its own.
private final class Reading: Sendable {
  let loop: EventLoop
  let source: DescriptorSource
  let errors: EventLog<LiveStreamError>
  /// An entry for each announcement of bytes.
  let arrivals: EventLog<Bool>
  private let thread: NamedThread
  private let consumer: Lock<CircularBuffer.Consumer>

  /// - Parameter isOnDemand: whether the loop reads whatever it can read without waiting.
  init(_ descriptor: Int32, capacity: Int, _ overflow: OverflowPolicy = .wait, isOnDemand: Bool = true) throws {
    let (loop, errors, arrivals) = (try EventLoop(), try EventLog<LiveStreamError>(), try EventLog<Bool>())
    let source = try DescriptorSource(descriptor: descriptor, name: "the input")
    (self.loop, self.errors, self.arrivals, self.source) = (loop, errors, arrivals, source)
    let ends = try CircularBuffer.make(
      capacity: .bytes(capacity), overflow: overflow == .dropOldest ? .dropOldest : .refuse)
    consumer = Lock(ends.consumer)
    let context = SourceContext(loop: loop, overflow: overflow, report: { _ in }, fail: { errors.append($0) })
    let producer = Handover(ends.producer)
    loop.execute {
      if isOnDemand { source.arrived = { arrivals.append(true) } }
      try? source.start(into: producer.take(), context: context)
    }
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

  func release(upTo offset: UInt64) { consumer.withLock { $0.release(upTo: offset) } }

  /// Runs `body` on the loop, after everything that the loop was asked for before, and returns its result.
  func onLoop<Value: Sendable>(_ body: @escaping @Sendable (DescriptorSource) -> Value) throws -> Value {
    let answers = try EventLog<Value>()
    loop.execute { [source] in answers.append(body(source)) }
    return try answers.first("the loop") { _ in true }
  }

  func waitUntilFinished() throws { try waitUntil("the source has ended") { isFinished } }
}

@Suite("Reading a descriptor", .serialized)
struct DescriptorReadingTests {
  private let pattern = OffsetPattern(seed: 11)

  /// The number of this process's descriptors of the same pipe.
  private func count(sameAs descriptor: Int32) throws -> Int {
    func target(_ name: String) -> String {
      var target = [CChar](repeating: 0, count: 4096)
      let count = readlink("/proc/self/fd/\(name)", &target, target.count)
      return String(decoding: target.prefix(max(0, count)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
    let own = target("\(descriptor)")
    return try fileNames(in: "/proc/self/fd").count { target($0) == own }
  }

  private func socketPair() throws -> (Int32, Int32) {
    var pair: [Int32] = [-1, -1]
    guard socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0, &pair) == 0 else { throw TestFailure("socketpair") }
    return (pair[0], pair[1])
  }

  @Test("the loop reads everything that a pipe gets, although the stream asks for nothing")
  func pipe() throws {
    let pipe = try TestPipe()
    let reading = try Reading(pipe.reading, capacity: 1 << 20)
    #expect(try reading.onLoop { $0.isReadOnDemand && !$0.fetch() })
    #expect(try count(sameAs: pipe.reading) == 3, "a second description of its reading end, which does not wait")
    #expect(pipe.write(patternBytes(pattern, 0, 10)))
    try waitUntil("the first bytes were read") { reading.head == 10 }
    try reading.arrivals.first("the announcement") { $0 }
    #expect(pipe.write(patternBytes(pattern, 10, 1_000_000)))
    try waitUntil("all bytes were read") { reading.head == 1_000_010 }
    #expect(try reading.onLoop { $0.isReadOnDemand } && !reading.isFinished)
    pipe.closeWriting()
    try reading.waitUntilFinished()
    #expect(reading.read(at: 0) == patternBytes(pattern, 0, 1_000_010) && reading.errors.all.isEmpty)
    #expect(try reading.onLoop { !$0.fetch() })
    #expect(try count(sameAs: pipe.reading) == 1)
  }

  @Test("the loop reads a full pipe to its end, even if a read takes less than the pipe has and nothing more comes")
  func fullPipe() throws {
    let pipe = try TestPipe()
    // F_SETPIPE_SZ (fcntl(2)).
    try #require(fcntl(pipe.reading, 1031, Int32(1 << 20)) >= 1 << 20)
    #expect(pipe.write(patternBytes(pattern, 0, 800_000)))
    let reading = try Reading(pipe.reading, capacity: 1 << 20)
    try waitUntil("all bytes were read") { reading.head == 800_000 }
    #expect(reading.read(at: 0) == patternBytes(pattern, 0, 800_000))
  }

  @Test("the loop reads a file in memory only when the stream asks for bytes, one block each time")
  func file() throws {
    let path = "/dev/shm/sluice-reading-\(getpid())"
    let descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
    try #require(descriptor >= 0)
    defer { close(descriptor) }
    unlink(path)
    let bytes = patternBytes(pattern, 0, 300_000)
    #expect(write(descriptor, bytes, bytes.count) == bytes.count && lseek(descriptor, 0, SEEK_SET) == 0)
    let reading = try Reading(descriptor, capacity: 1 << 20)
    #expect(try reading.onLoop { $0.isReadOnDemand } && reading.head == 0)
    for (found, head) in [(true, 256 << 10), (true, 300_000)] as [(Bool, UInt64)] {
      #expect(try reading.onLoop { $0.fetch() } == found)
      #expect(reading.head == head && !reading.isFinished)
    }
    // Its end is news, once.
    #expect(try reading.onLoop { $0.fetch() } && reading.isFinished)
    #expect(try reading.onLoop { !$0.fetch() })
    #expect(reading.read(at: 0) == bytes)
  }

  @Test(
    "a full buffer makes the source wait until a quarter of it is free, and no byte is lost", arguments: [true, false])
  func full(_ isOnDemand: Bool) throws {
    let pipe = try TestPipe()
    let reading = try Reading(pipe.reading, capacity: 4096, isOnDemand: isOnDemand)
    #expect(pipe.write(patternBytes(pattern, 0, 12_000)))
    var released: UInt64 = 0
    while released < 12_000 {
      let end = min(released + 4096, 12_000)
      try waitUntil("the buffer is full, or has all") { reading.head == end }
      #expect(try reading.onLoop { $0.fetch() } == false)
      #expect(reading.read(at: released) == patternBytes(pattern, Int(released), Int(end - released)))
      released = end
      reading.release(upTo: end)
    }
    pipe.closeWriting()
    try reading.waitUntilFinished()
    #expect(reading.head == 12_000 && reading.errors.all.isEmpty)
  }

  @Test("a full buffer ends the source if it may not wait, after the bytes that fit", arguments: [true, false])
  func overflow(_ isOnDemand: Bool) throws {
    let pipe = try TestPipe()
    let reading = try Reading(pipe.reading, capacity: 4096, .stop, isOnDemand: isOnDemand)
    #expect(pipe.write(patternBytes(pattern, 0, 12_000)))
    try reading.waitUntilFinished()
    #expect(reading.errors.all == [DescriptorSource.overflow])
    #expect(reading.read(at: 0) == patternBytes(pattern, 0, 4096))
  }

  @Test(
    "an input that fills the buffer exactly loses no byte and is not too long, whether it ends at once or later",
    arguments: [true, false], [OverflowPolicy.stop, .dropOldest])
  func exactFit(_ isOnDemand: Bool, _ policy: OverflowPolicy) throws {
    for (surplus, endsLater) in [-1, 0, 1].flatMap({ surplus in [(surplus, false), (surplus, true)] }) {
      let pipe = try TestPipe()
      let bytes = patternBytes(pattern, 0, 4096 + surplus)
      #expect(pipe.write(Array(bytes.prefix(4096))))
      if !endsLater {
        #expect(pipe.write(Array(bytes.dropFirst(4096))))
        pipe.closeWriting()
      }
      let reading = try Reading(pipe.reading, capacity: 4096, policy, isOnDemand: isOnDemand)
      if endsLater {
        try waitUntil("the first bytes were read") { reading.head == min(bytes.count, 4096) }
        #expect(try reading.onLoop { !$0.fetch() } && reading.errors.all.isEmpty && !reading.isFinished)
        #expect(pipe.write(Array(bytes.dropFirst(4096))))
        pipe.closeWriting()
      }
      try reading.waitUntilFinished()
      let (stops, lost) = (policy == .stop && surplus > 0, policy == .dropOldest ? max(0, surplus) : 0)
      #expect(reading.errors.all == (stops ? [DescriptorSource.overflow] : []))
      #expect(reading.read(at: UInt64(lost)) == Array((stops ? bytes.prefix(4096) : bytes[...]).dropFirst(lost)))
    }
  }

  @Test("a read error ends the source, and is reported once with its cause", arguments: [true, false])
  func failed(_ isOnDemand: Bool) throws {
    let (own, peer) = try socketPair()
    defer { close(own) }
    // The peer closes without reading this byte.
    #expect(write(own, [1] as [UInt8], 1) == 1 && close(peer) == 0)
    let reading = try Reading(own, capacity: 4096, isOnDemand: isOnDemand)
    try reading.waitUntilFinished()
    let reason = SystemError(operation: "reading the input", code: ECONNRESET).description
    #expect(reading.errors.all == [LiveStreamError(.source, reason)] && reading.head == 0)
  }

  @Test("a stopped source ends without an error, also while its descriptor stays open", arguments: [true, false])
  func stopped(_ isOnDemand: Bool) throws {
    let pipe = try TestPipe()
    let reading = try Reading(pipe.reading, capacity: 4096, isOnDemand: isOnDemand)
    #expect(pipe.write([1, 2, 3]))
    try waitUntil("the bytes were read") { reading.head == 3 }
    #expect(try reading.onLoop { $0.isReadOnDemand } == isOnDemand)
    try reading.onLoop {
      $0.stop()
      $0.stop()
    }
    try reading.waitUntilFinished()
    #expect(reading.head == 3 && reading.errors.all.isEmpty)
    #expect(try count(sameAs: pipe.reading) == 2)
  }

  @Test("a source that is dropped while it reads a pipe leaves no descriptor behind")
  func dropped() throws {
    let pipe = try TestPipe()
    do {
      let reading = try Reading(pipe.reading, capacity: 4096)
      #expect(try reading.onLoop { $0.isReadOnDemand })
      #expect(try count(sameAs: pipe.reading) == 3)
    }
    #expect(try count(sameAs: pipe.reading) == 2)
  }

  @Test("a thread reads what the loop cannot, or must not let wait")
  func threads() throws {
    let pipe = try TestPipe()
    let discarding = try Reading(pipe.reading, capacity: 4096, .dropOldest)
    #expect(try discarding.onLoop { !$0.isReadOnDemand && !$0.fetch() })
    #expect(pipe.write([UInt8](repeating: 1, count: 6000)))
    try waitUntil("the bytes were read") { discarding.head == 6000 }
    pipe.closeWriting()
    try discarding.waitUntilFinished()
    let device = open("/dev/null", O_RDONLY)
    defer { close(device) }
    let reading = try Reading(device, capacity: 4096)
    #expect(try reading.onLoop { !$0.isReadOnDemand })
    try reading.waitUntilFinished()
    #expect(reading.head == 0 && reading.errors.all.isEmpty)
  }

  @Test("a loop watches a socket for one source at a time, and a thread reads it for another")
  func shared() throws {
    let (own, peer) = try socketPair()
    defer { close(own) }
    let reading = try Reading(own, capacity: 4096)
    #expect(try reading.onLoop { $0.isReadOnDemand })
    let context = SourceContext(loop: reading.loop, overflow: .wait, report: { _ in }, fail: { _ in })
    for isFirstStopped in [false, true] {
      if isFirstStopped {
        try reading.onLoop { $0.stop() }
        try reading.waitUntilFinished()
      }
      let source = try DescriptorSource(descriptor: own)
      let ends = try CircularBuffer.make(capacity: .bytes(4096), overflow: .refuse)
      let consumer = Lock(ends.consumer)
      let producer = Handover(ends.producer)
      let isOnDemand = try reading.onLoop { _ in
        source.arrived = {}
        try? source.start(into: producer.take(), context: context)
        return source.isReadOnDemand
      }
      #expect(isOnDemand == isFirstStopped)
      try reading.onLoop { _ in source.stop() }
      try waitUntil("the other source has ended") { consumer.withLock { $0.isFinished } }
      if isFirstStopped { continue }
      #expect(write(peer, [1, 2, 3] as [UInt8], 3) == 3)
      try waitUntil("the first source still reads") { reading.head == 3 }
    }
    close(peer)
  }
}
