// The ring that carries events off the capture thread.

import EventLoops
import Glibc
import Testing

@testable import AudioCapture

@Suite("The ring of capture events")
struct CaptureEventRingTests {
  @Test("a hundred thousand events come out as they went in, on another thread that waits for the descriptor")
  func twoThreads() throws {
    let ring = try CaptureEventRing(capacity: 16)
    let count: UInt64 = 100_000
    let writer = try NamedThread("events") {
      var next: UInt64 = 0
      while next < count {
        let refused = ring.refusedCount
        ring.append(.stopped(frames: next))
        // Full: the reader is behind; it is tried again, as the capture thread would not.
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

  @Test("a full ring refuses, counts that, keeps what it has, and has a place left for the end")
  func full() throws {
    let ring = try CaptureEventRing(capacity: 4)
    for offset in 0..<10 as Range<UInt64> { ring.append(.bufferFull(streamOffset: offset)) }
    #expect(ring.refusedCount == 7)
    ring.append(.stopped(frames: 10))
    ring.append(.stopped(frames: 11))
    #expect(ring.refusedCount == 8)
    #expect((0..<3).map { _ in ring.next() } == (0..<3).map { .bufferFull(streamOffset: $0) })
    #expect(ring.next() == .stopped(frames: 10) && ring.next() == nil)
  }
}
