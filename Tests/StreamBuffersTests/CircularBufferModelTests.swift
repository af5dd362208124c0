// The circular buffer against its model, over thousands of random calls. One thread, so that every answer is exact.

import Glibc
import PropertyTesting
import StreamBuffers
import Testing

@Suite("CircularBuffer behaves like its model")
struct CircularBufferModelTests {
  struct Shape: Sendable, CustomTestStringConvertible {
    let capacity: Int
    let overflow: CircularBuffer.Overflow
    let memory: CircularBuffer.Memory
    let steps: Int
    var testDescription: String { "\(capacity) bytes, \(overflow), memory \(memory)" }
  }

  static let shapes: [Shape] = [
    Shape(capacity: 1, overflow: .refuse, memory: .kept, steps: 20_000),
    Shape(capacity: 4096, overflow: .dropOldest, memory: .kept, steps: 20_000),
    Shape(capacity: 3 * 4096, overflow: .refuse, memory: .kept, steps: 10_000),
    Shape(capacity: 5 * 4096 - 1, overflow: .dropOldest, memory: .kept, steps: 10_000),
    Shape(capacity: 1, overflow: .refuse, memory: .returned, steps: 1000),
    Shape(capacity: 300_000, overflow: .dropOldest, memory: .returned, steps: 1000),
  ]

  @Test("any order of calls gives the same result as the model", arguments: Seed.several(3), shapes)
  func randomCalls(seed: Seed, shape: Shape) throws {
    var run = try CircularBufferRun(shape: shape, random: seed.generator)
    for step in 0..<shape.steps {
      if let difference = run.step() {
        Issue.record("step \(step): \(difference) (\(seed))")
        return
      }
    }
    if let difference = run.finish() { Issue.record("at the end: \(difference) (\(seed))") }
    // The run is meaningful only if it has wrapped the buffer often enough.
    #expect(run.model.head > UInt64(4 * run.model.capacity))
  }
}

/// One buffer, its model, and the next random call on both.
struct CircularBufferRun: ~Copyable {
  var model: CircularBufferModel
  private var producer: CircularBuffer.Producer
  private var consumer: CircularBuffer.Consumer
  private var random: SplitMix64
  private var source: [UInt8]
  /// The pending wake-up requests, according to the model.
  private var wakeUpRequested = false
  private var spaceRequested = 0
  private var finished = false

  init(shape: CircularBufferModelTests.Shape, random: SplitMix64) throws {
    let ends = try CircularBuffer.make(
      capacity: .bytes(shape.capacity), overflow: shape.overflow, memory: shape.memory)
    producer = ends.producer
    consumer = ends.consumer
    var random = random
    model = CircularBufferModel(
      capacity: producer.capacity, overflow: shape.overflow, releaseStep: shape.memory == .returned ? 64 << 10 : 1)
    source = (0..<producer.capacity + 4096).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    self.random = random
  }

  /// Makes one random call. Returns the difference to the model, if there is one.
  mutating func step() -> String? {
    let call = Int.random(in: 0..<100, using: &random)
    var difference: String? =
      switch call {
      case 0..<25: write()
      case 25..<40: writeCopying()
      case 40..<70: read()
      case 70..<88: release()
      case 88..<93: requestWakeUp()
      case 93..<98: requestSpace()
      default: readWhileWriting()
      }
    if difference == nil { difference = compareState() }
    return difference
  }

  /// Ends the stream, and checks the consumer's reaction.
  mutating func finish() -> String? {
    let head = model.head
    guard consumer.requestWakeUp(beyond: head) else { return "a wake-up beyond the head was not granted" }
    producer.finish()
    finished = true
    if takeSignals(consumer.dataDescriptor) != 1 { return "finishing did not wake the consumer" }
    if consumer.requestWakeUp(beyond: head) { return "a wake-up was promised after the end" }
    // Bytes from before the end still exist after it.
    return read() ?? compareState()
  }

  private mutating func compareState() -> String? {
    if producer.head != model.head || consumer.head != model.head { return "head \(producer.head), not \(model.head)" }
    if consumer.released != model.released { return "released \(consumer.released), not \(model.released)" }
    if producer.freeByteCount != model.free { return "free \(producer.freeByteCount), not \(model.free)" }
    return consumer.isFinished == finished ? nil : "finished \(consumer.isFinished)"
  }

  private mutating func randomSource(_ count: Int) -> Range<Int> {
    let start = Int.random(in: 0...(source.count - count), using: &random)
    return start..<start + count
  }

  private mutating func write() -> String? {
    let minimum = random.size(upTo: producer.largestMinimum)
    let maximum = random.chance(30) ? .max : random.size(upTo: 2 * model.capacity)
    let share = Double.random(in: 0...1, using: &random)
    let headBefore = model.head
    let expected = model.room(minimum: minimum, maximum: maximum)
    var seen: Int?
    let bytes = randomSource(expected ?? 0)
    let result = producer.write(minimum: minimum, maximum: maximum) { span in
      seen = span.byteCount
      // Only the returned number of bytes is published, even if the whole span was written.
      span.withUnsafeMutableBytes { target in
        source[bytes.prefix(target.count)].withUnsafeBytes { target.copyMemory(from: $0) }
      }
      return Int(Double(span.byteCount) * share)
    }
    guard let expected else { return result == .full && seen == nil ? nil : "write gave \(result), not full" }
    let published = Int(Double(expected) * share)
    source[bytes.prefix(published)].withUnsafeBytes { model.append($0) }
    guard seen == expected, result == .written(published) else { return "write of \(seen ?? -1), not \(expected)" }
    return headBefore == model.head ? nil : checkDataSignal()
  }

  private mutating func writeCopying() -> String? {
    let bytes = randomSource(random.size(upTo: source.count))
    let minimum = model.overflow == .dropOldest ? min(bytes.count, producer.largestMinimum) : 1
    let expected = model.room(minimum: minimum, maximum: bytes.count)
    let result = source[bytes].withUnsafeBytes { producer.write(copying: RawSpan(_unsafeBytes: $0)) }
    guard let expected else { return result == .full ? nil : "copying gave \(result), not full" }
    source[bytes.prefix(expected)].withUnsafeBytes { model.append($0) }
    return result == .written(expected) ? checkDataSignal() : "copying gave \(result), not \(expected)"
  }

  /// A signal must arrive exactly if it was requested.
  private mutating func checkDataSignal() -> String? {
    defer { wakeUpRequested = false }
    let signals = takeSignals(consumer.dataDescriptor)
    return signals == (wakeUpRequested ? 1 : 0) ? nil : "\(signals) data signals, requested: \(wakeUpRequested)"
  }

  private mutating func randomOffset() -> UInt64 {
    let offset = UInt64.random(in: model.released...model.head, using: &random)
    // Sometimes an offset that was dropped.
    return random.chance(10) ? offset - min(offset, UInt64.random(in: 0...10_000, using: &random)) : offset
  }

  private mutating func read() -> String? {
    let offset = randomOffset()
    let maximum = random.chance(50) ? .max : random.size(upTo: model.capacity)
    let result = consumer.read(at: offset, maximum: maximum) { span in (span.byteCount, model.agrees(span, at: offset))
    }
    return difference(result, from: model.read(at: offset, maximum: maximum))
  }

  private func difference(
    _ result: CircularBuffer.Consumer.ReadResult<(Int, Bool)>, from expected: CircularBufferModel.Found
  ) -> String? {
    let found: CircularBufferModel.Found
    switch result {
    case .bytes((let count, let same)):
      if !same { return "other bytes than were written" }
      found = .bytes(count)
    case .empty: found = .empty
    case .overwritten(let oldest): found = .overwritten(oldest: oldest)
    }
    return found == expected ? nil : "read gave \(found), not \(expected)"
  }

  /// The producer continues, and overflows, during a read of the consumer.
  private mutating func readWhileWriting() -> String? {
    let offset = randomOffset()
    let expected = model.read(at: offset, maximum: .max)
    var problem: String?
    if case .bytes = expected { model.pinned = offset }
    let result = consumer.read(at: offset) { span in
      let before = model
      for _ in 0..<4 {
        let minimum = random.size(upTo: producer.largestMinimum)
        let room = model.room(minimum: minimum, maximum: minimum)
        let result = producer.write(minimum: minimum, maximum: minimum) { target in
          for index in 0..<target.byteCount { target.storeBytes(of: 0x5A, toByteOffset: index, as: UInt8.self) }
          return target.byteCount
        }
        if result != (room.map { .written($0) } ?? .full) { problem = "write during a read gave \(result)" }
        [UInt8](repeating: 0x5A, count: room ?? 0).withUnsafeBytes { model.append($0) }
      }
      return (span.byteCount, before.agrees(span, at: offset))
    }
    model.pinned = nil
    let signal = checkDataSignalAfterAny()
    return problem ?? signal ?? difference(result, from: expected)
  }

  private mutating func checkDataSignalAfterAny() -> String? {
    let signals = takeSignals(consumer.dataDescriptor)
    if signals > 0 {
      defer { wakeUpRequested = false }
      return wakeUpRequested && signals == 1 ? nil : "\(signals) data signals"
    }
    return nil
  }

  private mutating func release() -> String? {
    let offset = random.chance(20) ? model.head : randomOffset()
    let before = model.released
    model.release(upTo: offset)
    consumer.release(upTo: offset)
    let due = model.released > before && spaceRequested > 0 && model.free >= spaceRequested
    if due { spaceRequested = 0 }
    let signals = takeSignals(producer.spaceDescriptor)
    return signals == (due ? 1 : 0) ? nil : "\(signals) space signals, due: \(due)"
  }

  private mutating func requestWakeUp() -> String? {
    let offset = randomOffset()
    let waits = consumer.requestWakeUp(beyond: offset)
    wakeUpRequested = waits
    return waits == (model.head <= offset && !finished) ? nil : "requestWakeUp(beyond: \(offset)) gave \(waits)"
  }

  private mutating func requestSpace() -> String? {
    let count = random.size(upTo: producer.largestMinimum)
    let waits = producer.requestSpace(count)
    spaceRequested = waits ? count : 0
    return waits == (model.free < count) ? nil : "requestSpace(\(count)) gave \(waits)"
  }
}
