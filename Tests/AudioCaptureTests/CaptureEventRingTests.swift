// The ring that passes events from the capture thread to others.

import EventLoops
import Glibc
import PropertyTesting
import Testing

@testable import AudioCapture

@Suite("The ring of capture events")
struct CaptureEventRingTests {
  @Test("a hundred thousand events arrive in order on another thread that waits for the descriptor")
  func twoThreads() throws {
    let ring = try CaptureEventRing(frameBytes: 2, capacity: 16)
    let count: UInt64 = 100_000
    let writer = try NamedThread("events") {
      var next: UInt64 = 0
      while next < count {
        let refused = ring.refusedCount
        ring.append(.stopped(frames: next))
        // The ring is full because the reader is behind. The test tries again, unlike the capture thread.
        if ring.refusedCount == refused { next += 1 } else { sched_yield() }
      }
    }
    var expected: UInt64 = 0
    while expected < count {
      var descriptor = pollfd(fd: ring.counter.descriptor, events: Int16(POLLIN), revents: 0)
      guard poll(&descriptor, 1, 10_000) == 1 else {
        Issue.record("no signal after event \(expected)")
        break
      }
      while let event = ring.next() {
        #expect(event == .stopped(frames: expected))
        expected += 1
      }
    }
    writer.join()
    #expect(expected == count)
  }

  @Test("a full ring refuses events, counts them, keeps its contents, and has a place for the end")
  func full() throws {
    let ring = try CaptureEventRing(frameBytes: 2, capacity: 5)
    for offset in 0..<10 as Range<UInt64> { ring.append(.bufferFull(streamOffset: offset)) }
    #expect(ring.refusedCount == 7)
    ring.append(.stopped(frames: 10))
    ring.append(.stopped(frames: 11))
    ring.append(.stopped(frames: 12))
    #expect(ring.refusedCount == 8)
    #expect((0..<3).map { _ in ring.next() } == (0..<3).map { .bufferFull(streamOffset: $0) })
    #expect(ring.next() == .stopped(frames: 10))
    #expect(ring.next() == .stopped(frames: 11) && ring.next() == nil)
  }

  @Test(
    "a loss while the ring is full is reported once, with its position, before the end",
    arguments: Seed.several(8))
  func missed(seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<100 {
      let frameBytes = Int.random(in: 1...8, using: &random)
      let ring = try CaptureEventRing(frameBytes: frameBytes, capacity: Int.random(in: 3...8, using: &random))
      var (offset, lost) = (UInt64(0), UInt64(0))
      var losses: [Range<UInt64>] = []
      var taken: [CaptureEvent] = []
      func take() -> Bool {
        guard let event = ring.next() else { return false }
        taken.append(event)
        return true
      }
      for _ in 0..<Int.random(in: 0...60, using: &random) {
        let frames = UInt64.random(in: 1...100, using: &random)
        switch Int.random(in: 0..<6, using: &random) {
        case 0: ring.append(.bufferFull(streamOffset: offset))
        case 1: _ = take()
        case 2: ring.reportMissed()
        default:
          ring.append(.overrun(streamOffset: offset, framesLost: frames, filled: true))
          losses.append(offset..<offset + frames * UInt64(frameBytes))
          lost += frames
          // Sound until the next loss.
          offset += frames * UInt64(frameBytes) + 1000
        }
      }
      ring.append(.stopped(frames: 7))
      while take() {}
      #expect(taken.last == .stopped(frames: 7), "\(seed)")
      #expect(taken.reduce(0) { $0 + ($1.loss?.frames ?? 0) } == lost, "\(seed)")
      let reported = taken.compactMap { event -> Range<UInt64>? in
        switch event {
        case .overrun(let offset, let frames, true): offset..<offset + frames * UInt64(frameBytes)
        case .missed(_, let offset, let byteCount, _, true): offset..<offset + byteCount
        default: nil
        }
      }
      for loss in losses { #expect(reported.count { $0.contains(loss) } == 1, "\(seed)") }
      // The combined report of several events begins and ends with a loss.
      for range in reported {
        #expect(losses.contains { $0.lowerBound == range.lowerBound }, "\(seed)")
        #expect(losses.contains { $0.upperBound == range.upperBound }, "\(seed)")
      }
    }
  }

  @Test("missed events without a loss are counted, and only reported together with a loss")
  func harmless() throws {
    let ring = try CaptureEventRing(frameBytes: 4, capacity: 3)
    for _ in 0..<5 { ring.append(.bufferFull(streamOffset: 1)) }
    #expect(ring.next() == .bufferFull(streamOffset: 1) && ring.next() == nil)
    ring.reportMissed()
    #expect(ring.next() == nil && ring.refusedCount == 4)
    ring.append(.bufferFull(streamOffset: 2))
    ring.append(.overrun(streamOffset: 8, framesLost: 3, filled: false))
    #expect(ring.next() == .bufferFull(streamOffset: 2) && ring.next() == nil)
    ring.reportMissed()
    #expect(ring.next() == .missed(events: 5, streamOffset: 8, byteCount: 0, framesLost: 3, filled: false))
  }
}
