// The two ends of a bound pair on one thread: the article's rules one by one, and the cost of a byte.

import CallCounter
import EventLoops
import StreamBuffers
import Synchronization
import Testing

@Suite("BoundPair on one thread")
struct BoundPairTests {
  @Test("the output end signals space when it opens, and allows one write per signal")
  func oneWriteASignal() {
    let pair = BoundPair.make(bufferSize: 8)
    let log = EventLog()
    let early = pair.output.write(([1] as [UInt8]).span.bytes)
    pair.output.open { log.add($0) }
    pair.input.open { log.add($0) }
    let first = pair.output.write([UInt8](repeating: 1, count: 12).span.bytes)
    let second = pair.output.write(([1] as [UInt8]).span.bytes)
    #expect(early == .refused(.notOpen))
    #expect(first == .accepted(8), "as much as fits")
    #expect(second == .refused(.noSpaceSignalled))
    #expect(log.all == ["out spaceAvailable", "in bytesAvailable"])
    #expect(read(from: pair.input, 3) == .bytes(3))
    #expect(log.all.last == "out spaceAvailable")
    let third = pair.output.write([UInt8](repeating: 1, count: 12).span.bytes)
    #expect(third == .accepted(3))
  }

  @Test("after a close, the rest can be read, then the end follows, and a later write is refused")
  func closing() {
    let pair = BoundPair.make(bufferSize: 8)
    let log = EventLog()
    pair.output.open { log.add($0) }
    pair.input.open { log.add($0) }
    _ = pair.output.write(([7, 8, 9] as [UInt8]).span.bytes)
    pair.output.close()
    let late = pair.output.write(([1] as [UInt8]).span.bytes)
    #expect(late == .refused(.closed))
    #expect(read(from: pair.input, 2) == .bytes(2))
    #expect(read(from: pair.input, 2) == .bytes(1))
    #expect(read(from: pair.input, 2) == .end)
  }

  @Test("an output end that is released without a close has failed, and a released input end has closed")
  func dropped() {
    let log = EventLog()
    do {
      let pair = BoundPair.make()
      let input = pair.input
      input.open { log.add($0) }
      drop(pair.output)
      #expect(log.all == ["in errorOccurred(the writer was dropped without closing the stream)"])
      #expect(
        read(from: input, 1) == .failed(BoundPair.StreamError("the writer was dropped without closing the stream")))
    }
    let second = EventLog()
    let pair = BoundPair.make()
    let output = pair.output
    output.open { second.add($0) }
    drop(pair.input)
    #expect(second.all == ["out spaceAvailable", "out endEncountered"])
  }

  @Test("a read into an empty buffer reads nothing and does not report an empty pair")
  func emptyTarget() {
    let pair = BoundPair.make()
    pair.output.open { _ in }
    pair.input.open { _ in }
    #expect(read(from: pair.input, 0) == .empty)
    _ = pair.output.write(([1] as [UInt8]).span.bytes)
    #expect(read(from: pair.input, 0) == .bytes(0))
    #expect(read(from: pair.input, 1) == .bytes(1))
  }

  @Test(
    "a read receives all that a writer writes while space is signalled, and the end comes after it",
    arguments: [1, 7, 64], [0, 1, 63, 64, 65, 1000])
  func readersRoom(capacity: Int, total: Int) {
    let pair = BoundPair.make(bufferSize: capacity)
    let source = (0..<total).map { UInt8(truncatingIfNeeded: $0 &* 7) }
    let input = pair.input
    let writer = RefillingWriter(pair.output, source)
    let log = EventLog()
    input.open { log.add($0) }
    writer.open()
    for size in [3, 500, 5, 1] {
      var found: [UInt8] = []
      while true {
        var bytes = [UInt8](repeating: 0xFF, count: size)
        var span = bytes.mutableSpan
        var target = span.mutableBytes
        guard case .bytes(let count) = input.read(into: &target) else { break }
        // Only the end leaves space unused, so nothing waits for a second call.
        let isWhole = count == size || found.count + count + writer.doneBefore == total
        #expect(isWhole, "\(count) of \(size) behind \(found.count)")
        found += bytes[..<count]
        if size != 1, found.count > total / 3 { break }
      }
      #expect(found.elementsEqual(source[writer.doneBefore..<writer.doneBefore + found.count]))
      writer.doneBefore += found.count
    }
    #expect(writer.doneBefore == total && read(from: input, 1) == .end)
  }

  @Test("an end that is opened twice keeps its first handler")
  func openedTwice() {
    let pair = BoundPair.make()
    let log = EventLog()
    pair.output.open { log.add($0) }
    pair.output.open { _ in Issue.record("the second output handler was called") }
    pair.input.open { log.add($0) }
    pair.input.open { _ in Issue.record("the second input handler was called") }
    _ = pair.output.write(([1] as [UInt8]).span.bytes)
    pair.input.close()
    #expect(log.all == ["out spaceAvailable", "out spaceAvailable", "in bytesAvailable", "out endEncountered"])
  }

  @Test("an ended end releases its handler, and an owner that retains the end", arguments: 0..<4)
  func ownersAreLetGo(way: Int) {
    final class Owner: Sendable {
      let output: BoundPair.Output
      let input: BoundPair.Input
      init(_ pair: consuming BoundPair.Ends) {
        output = pair.output
        input = pair.input
      }
      func open() {
        output.open { [self] _ in stay() }
        input.open { [self] _ in stay() }
      }
      func stay() {}
    }
    weak var left: Owner?
    do {
      let owner = Owner(BoundPair.make())
      left = owner
      owner.open()
      switch way {
      case 0:
        owner.output.close()
        owner.input.close()
      case 1: owner.input.close()
      case 2: owner.input.fail(BoundPair.StreamError("gone"))
      default:
        owner.input.close()
        owner.output.close()
      }
    }
    #expect(left == nil)
  }

  @Test(
    "with both ends on one thread a write and a read allocate nothing", .enabled(if: allocations_of_this_thread() >= 0))
  func costOnOneThread() {
    let pair = BoundPair.make()
    let signals = Atomic<Int>(0)
    pair.output.open { _ in signals.add(1, ordering: .relaxed) }
    pair.input.open { _ in signals.add(1, ordering: .relaxed) }
    let source = [UInt8](repeating: 3, count: 512)
    var target = [UInt8](repeating: 0, count: 512)
    var moved = 0
    func run(_ rounds: Int) {
      for _ in 0..<rounds {
        _ = pair.output.write(source.span.bytes)
        var span = target.mutableSpan
        var bytes = span.mutableBytes
        if case .bytes(let count) = pair.input.read(into: &bytes) { moved += count }
      }
    }
    run(10)
    let begun = MonotonicInstant.now
    let before = allocations_of_this_thread()
    run(200_000)
    #expect(allocations_of_this_thread() - before == 0)
    let spent = MonotonicInstant.now - begun
    print("a write and a read of 512 bytes, both ends on one thread: \(spent.nanoseconds / 200_000) ns")
    #expect(moved == 200_010 * 512)
    #expect(target == source)
  }

  private func drop(_ output: consuming BoundPair.Output) {}
  private func drop(_ input: consuming BoundPair.Input) {}

  private func read(from input: borrowing BoundPair.Input, _ count: Int) -> BoundPair.ReadResult {
    var target = [UInt8](repeating: 0, count: count)
    var span = target.mutableSpan
    var bytes = span.mutableBytes
    return input.read(into: &bytes)
  }
}

/// The events that the handlers received, in order.
final class EventLog: Sendable {
  private let entries = Lock<[String]>([])
  var all: [String] { entries.withLock { $0 } }

  func add(_ event: BoundPair.OutputEvent) {
    let words: String =
      switch event {
      case .spaceAvailable: "out spaceAvailable"
      case .endEncountered: "out endEncountered"
      case .errorOccurred(let error): "out errorOccurred(\(error))"
      }
    entries.withLock { $0.append(words) }
  }

  func add(_ event: BoundPair.InputEvent) {
    let words: String =
      switch event {
      case .bytesAvailable: "in bytesAvailable"
      case .endEncountered: "in endEncountered"
      case .errorOccurred(let error): "in errorOccurred(\(error))"
      }
    entries.withLock { $0.append(words) }
  }
}

/// A writer on the reader's thread. It writes everything it has at each signal for space, and then closes.
private final class RefillingWriter: @unchecked Sendable {
  private let output: BoundPair.Output
  private let source: [UInt8]
  private var cursor = 0
  private var isWriting = false
  /// How many bytes the reader has taken in earlier rounds.
  var doneBefore = 0

  init(_ output: consuming BoundPair.Output, _ source: [UInt8]) {
    self.output = output
    self.source = source
  }

  func open() { output.open { [unowned self] event in if event == .spaceAvailable { write() } } }

  private func write() {
    guard !isWriting else { return }
    isWriting = true
    defer { isWriting = false }
    while cursor < source.count {
      // In pieces of odd sizes.
      let piece = source[cursor..<min(source.count, cursor + 13)]
      guard case .accepted(let count) = output.write(piece.span.bytes) else { return }
      cursor += count
    }
    output.close()
  }
}
