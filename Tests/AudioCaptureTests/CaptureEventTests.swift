// Capture events as values.

import Testing

@testable import AudioCapture

@Suite("Capture events")
struct CaptureEventTests {
  /// Each differs from all others in one respect.
  private static let all: [CaptureEvent] =
    [
      .started(realTime: .notRequested), .started(realTime: .granted(priority: 1)),
      .started(realTime: .granted(priority: 2)), .started(realTime: .refused(code: 1)),
      .bufferFull(streamOffset: 1), .bufferFull(streamOffset: 2), .stopped(frames: 1), .stopped(frames: 2),
      .failed(operation: "read", code: 1), .failed(operation: "read", code: 2), .deviceLost(streamOffset: 1, code: 1),
      .deviceLost(streamOffset: 2, code: 1), .deviceLost(streamOffset: 1, code: 2),
      .deviceRefused(streamOffset: 1, reason: .busy), .deviceRefused(streamOffset: 2, reason: .busy),
      .deviceRefused(streamOffset: 1, reason: .rate(nearest: 1)),
      .deviceRefused(streamOffset: 1, reason: .rate(nearest: 2)),
    ]
    + [(1, 1, true), (2, 1, true), (1, 2, true), (1, 1, false)].flatMap { offset, frames, filled -> [CaptureEvent] in
      [
        .overrun(streamOffset: offset, framesLost: frames, filled: filled),
        .suspended(streamOffset: offset, framesLost: frames, filled: filled),
        .neverReturned(streamOffset: offset, framesLost: frames, filled: filled),
        .deviceReturned(streamOffset: offset, framesLost: frames, filled: filled, attempts: 1),
        .missed(events: 1, streamOffset: offset, byteCount: 1, framesLost: frames, filled: filled),
      ]
    }
    + [
      .deviceReturned(streamOffset: 1, framesLost: 1, filled: true, attempts: 2),
      .missed(events: 2, streamOffset: 1, byteCount: 1, framesLost: 1, filled: true),
      .missed(events: 1, streamOffset: 1, byteCount: 2, framesLost: 1, filled: true),
    ]

  @Test("an event equals itself, and differs from every event with another value")
  func equality() {
    for (index, a) in Self.all.enumerated() {
      for (other, b) in Self.all.enumerated() { #expect((a == b) == (index == other), "\(a) \(b)") }
    }
  }

  @Test("only the end is the last event")
  func last() {
    for event in Self.all {
      switch event {
      case .stopped, .failed: #expect(event.isLast && event.loss == nil)
      default: #expect(!event.isLast)
      }
    }
  }

  @Test("every event with lost frames has the position, the number, and whether silence replaces them")
  func losses() {
    for (offset, frames, filled) in [(UInt64(7), UInt64(9), true), (70, 90, false)] {
      for event: CaptureEvent in [
        .overrun(streamOffset: offset, framesLost: frames, filled: filled),
        .suspended(streamOffset: offset, framesLost: frames, filled: filled),
        .neverReturned(streamOffset: offset, framesLost: frames, filled: filled),
        .deviceReturned(streamOffset: offset, framesLost: frames, filled: filled, attempts: 1),
        .missed(events: 1, streamOffset: offset, byteCount: 1, framesLost: frames, filled: filled),
      ] {
        #expect(event.loss.map { $0 == (offset, frames, filled) } == true)
      }
    }
    #expect(CaptureEvent.deviceLost(streamOffset: 1, code: 1).loss == nil)
    #expect(CaptureEvent.bufferFull(streamOffset: 1).loss == nil)
  }
}
