// A bound pair with a thread at each end, which either side ends at a random moment.

import EventLoops
import PropertyTesting
import StreamBuffers
import Synchronization
import Testing

@Suite("BoundPair with a thread at each end")
struct BoundPairThreadTests {
  /// Which end ends the stream, and how.
  enum Ending: CaseIterable { case outputCloses, outputFails, outputDropped, inputCloses, inputFails, inputDropped }

  static let pattern = OffsetPattern()
  static let error = BoundPair.StreamError("broken off on purpose")

  @Test(
    "bytes arrive in order, no permitted write is refused, and each end learns how the other one ended",
    arguments: Seed.several(2), Ending.allCases)
  func randomLives(seed: Seed, ending: Ending) throws {
    var random = seed.generator
    for life in 0..<25 {
      let pair = BoundPair.make(bufferSize: random.size(upTo: 4096))
      let total = UInt64(Int.random(in: 0...100_000, using: &random))
      let writer = try Side(seed: random.next(), end: total)
      let reader = try Side(seed: random.next(), end: total)
      let output = Handover(pair.output)
      let input = Handover(pair.input)
      // The threads determine which end opens first. Sometimes one waits for the other.
      let inputFirst = random.chance(30)
      let place = "life \(life), \(seed)"
      let accepted = Atomic<UInt64>(0)
      let taken = Atomic<UInt64>(0)
      try concurrently(
        {
          if inputFirst, !waitUntilReadable(reader.opened.descriptor) { Issue.record("no input end, \(place)") }
          accepted.store(Self.write(output.take(), writer, ending, place), ordering: .relaxed)
        },
        { taken.store(Self.read(input.take(), reader, ending, place), ordering: .relaxed) })
      let (sent, received) = (accepted.load(ordering: .relaxed), taken.load(ordering: .relaxed))
      switch ending {
      case .outputCloses: #expect(sent == total && received == total, "\(place)")
      default: #expect(received <= sent && sent <= total, "\(place)")
      }
    }
  }

  /// Writes until it must end, or the reader has ended. Returns how many bytes were accepted.
  private static func write(
    _ output: consuming BoundPair.Output, _ side: Side, _ ending: Ending, _ place: String
  ) -> UInt64 {
    var random = SplitMix64(state: side.seed)
    var bytes = [UInt8](repeating: 0, count: 5000)
    output.open { side.note($0) }
    var cursor: UInt64 = 0
    while true {
      if cursor == side.end {
        switch ending {
        case .outputCloses:
          output.close()
          return cursor
        case .outputFails:
          output.fail(error)
          return cursor
        case .outputDropped: return cursor
        case .inputCloses, .inputFails, .inputDropped: break
        }
      }
      guard side.wait() else {
        Issue.record("the writer waits forever at \(cursor), \(place)")
        return cursor
      }
      while side.space.exchange(false, ordering: .acquiringAndReleasing) {
        // Everything is written. The end follows, from either side.
        let count = min(random.size(upTo: 5000), Int(side.end - cursor))
        if count == 0 { break }
        bytes.withUnsafeMutableBytes { pattern.fill(UnsafeMutableRawBufferPointer(rebasing: $0[..<count]), at: cursor) }
        switch output.write(bytes.span.extracting(first: count).bytes) {
        case .accepted(let accepted): cursor += UInt64(accepted)
        case .refused(.closed) where ending == .inputCloses || ending == .inputFails || ending == .inputDropped: break
        case .refused(let reason): Issue.record("refused though signalled: \(reason), \(place)")
        }
      }
      if let last = side.last {
        let expected = ending == .inputFails ? "errorOccurred(\(error))" : "endEncountered"
        if last != "out " + expected { Issue.record("the writer saw \(last), \(place)") }
        return cursor
      }
    }
  }

  /// Reads until it must end, or the writer has ended. Returns how many bytes were taken.
  private static func read(
    _ input: consuming BoundPair.Input, _ side: Side, _ ending: Ending, _ place: String
  ) -> UInt64 {
    var random = SplitMix64(state: side.seed)
    input.open { side.note($0) }
    side.opened.signal()
    var bytes = [UInt8](repeating: 0, count: 5000)
    var cursor: UInt64 = 0
    let limit = ending == .inputCloses || ending == .inputFails || ending == .inputDropped ? side.end / 2 : .max
    while true {
      var span = bytes.mutableSpan
      var whole = span.mutableBytes
      var target = whole._mutatingExtracting(first: min(random.size(upTo: 5000), Int(min(limit - cursor, 5000))))
      if target.byteCount == 0 {
        if ending == .inputCloses { input.close() }
        if ending == .inputFails { input.fail(error) }
        return cursor
      }
      switch input.read(into: &target) {
      case .bytes(let count):
        let right = target.withUnsafeMutableBytes { bytes in
          pattern.matches(UnsafeRawBufferPointer(rebasing: bytes[..<count]), at: cursor)
        }
        if !right { Issue.record("wrong bytes at \(cursor), \(place)") }
        cursor += UInt64(count)
      case .empty:
        guard side.wait() else {
          Issue.record("the reader waits forever at \(cursor), \(place)")
          return cursor
        }
      case .end:
        if ending != .outputCloses { Issue.record("an end that was none, \(place)") }
        return cursor
      case .failed(let found):
        if ending == .outputFails, found != error { Issue.record("failed with \(found), \(place)") }
        if ending != .outputFails, ending != .outputDropped { Issue.record("failed with \(found), \(place)") }
        return cursor
      case .refused(let reason):
        Issue.record("a read was refused: \(reason), \(place)")
        return cursor
      }
    }
  }
}

/// A thread's view of its end. It sleeps on an eventfd that the handler signals.
final class Side: Sendable {
  let seed: UInt64
  let end: UInt64
  let space = Atomic<Bool>(false)
  let opened: EventCounter
  private let woken: EventCounter
  private let lastEvent = Lock<String?>(nil)

  init(seed: UInt64, end: UInt64) throws {
    self.seed = seed
    self.end = end
    opened = try EventCounter()
    woken = try EventCounter()
  }

  /// The event after which nothing follows.
  var last: String? { lastEvent.withLock { $0 } }

  func note(_ event: BoundPair.OutputEvent) {
    switch event {
    case .spaceAvailable: space.store(true, ordering: .releasing)
    case .endEncountered: lastEvent.withLock { $0 = "out endEncountered" }
    case .errorOccurred(let error): lastEvent.withLock { $0 = "out errorOccurred(\(error))" }
    }
    woken.signal()
  }

  func note(_ event: BoundPair.InputEvent) { woken.signal() }

  func wait() -> Bool {
    guard waitUntilReadable(woken.descriptor) else { return false }
    woken.drain()
    return true
  }
}
