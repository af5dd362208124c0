// The source that tasks write to, without a stream.

import EventLoops
import NetworkTesting
import PropertyTesting
import StreamBuffers
import Testing

@testable import LiveStreaming

@Suite("A source that tasks write to", .timeLimit(.minutes(2)))
struct WrittenSourceTests {
  private static func context(_ loop: EventLoop, _ errors: EventLog<LiveStreamError>) -> SourceContext {
    SourceContext(loop: loop, overflow: .wait, report: { _ in }, fail: { errors.append($0) })
  }

  @Test("a write at once accepts what there is room for, and no more than 256 KiB")
  func atOnce() throws {
    let (loop, errors) = (try EventLoop(), try EventLog<LiveStreamError>())
    let source = WrittenSource()
    let ends = try CircularBuffer.make(capacity: .bytes(1 << 20))
    try source.start(into: ends.producer, context: Self.context(loop, errors))
    let most = 256 << 10
    #expect(source.writeAtOnce([UInt8](repeating: 1, count: most + 1)) == nil)
    #expect(source.writeAtOnce([]) == 0)
    for _ in 0..<3 { #expect(source.writeAtOnce([UInt8](repeating: 1, count: most)) == most) }
    #expect(source.writeAtOnce([1]) == 1)
    // It has the turn from here on, because a part is left.
    #expect(source.writeAtOnce([UInt8](repeating: 1, count: most)) == most - 1)
    #expect(source.writeAtOnce([1]) == nil && source.writeAtOnce([]) == 0)
    source.stop()
    #expect(source.writeAtOnce([]) == nil && source.writeAtOnce([1]) == nil)
    #expect(errors.all.isEmpty)
  }

  @Test("a long write has its turn like any other, and waits for the source's start and for room")
  func long() async throws {
    let (loop, errors) = (try EventLoop(), try EventLog<LiveStreamError>())
    let source = WrittenSource()
    let thread = try NamedThread("test loop") { loop.run() }
    let count = 900_000
    let bytes = OffsetPattern()[0..<count]
    let writer = Task { await source.write(bytes) }
    let ends = try CircularBuffer.make(capacity: .bytes(64 << 10))
    let consumer = Lock(ends.consumer)
    let producer = Handover(ends.producer)
    loop.execute { try? source.start(into: producer.take(), context: Self.context(loop, errors)) }
    var read: [UInt8] = []
    while read.count < count {
      consumer.withLock { consumer in
        let found = consumer.read(at: UInt64(read.count)) { bytes in bytes.withUnsafeBytes { Array($0) } }
        if case .bytes(let more) = found { read += more }
        consumer.release(upTo: UInt64(read.count))
      }
      await Task.yield()
    }
    let isWritten = await writer.value
    #expect(isWritten && read == bytes)
    source.end(nil)
    loop.stop()
    thread.join()
    let isFinished = consumer.withLock { $0.isFinished }
    let isWrittenLate = await source.write([1])
    #expect(isFinished && !isWrittenLate)
  }

  @Test("a stopped source no longer watches its buffer")
  func stopped() throws {
    let (loop, errors) = (try EventLoop(), try EventLog<LiveStreamError>())
    let source = WrittenSource()
    let ends = try CircularBuffer.make(capacity: .bytes(4096))
    let descriptor = ends.producer.spaceDescriptor
    try source.start(into: ends.producer, context: Self.context(loop, errors))
    #expect(throws: SystemError.self) { try loop.register(descriptor, [.readable]) { _ in } }
    source.stop()
    try loop.register(descriptor, [.readable]) { _ in }
    loop.deregister(descriptor)
    let isFinished = ends.consumer.isFinished
    #expect(isFinished)
  }
}
