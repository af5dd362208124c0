// What happens to a microphone, as values that the capture thread can hand over without allocating.

internal import EventLoops
internal import Synchronization

/// Something that happened while capturing. Offsets are stream offsets in bytes, lengths are in frames.
public enum CaptureEvent: Equatable, Sendable {
  /// Whether the capture thread got the real-time priority that it asked for.
  public enum RealTime: Equatable, Sendable {
    case granted(priority: Int32)
    /// With the errno of pthread_setschedparam(3), usually EPERM: RLIMIT_RTPRIO is 0.
    case refused(code: Int32)
    case notRequested
  }

  /// Frames are coming.
  case started(realTime: RealTime)
  /// The device had more than it can hold: so many frames are lost, at this offset. `filled`: silence stands in for
  /// them.
  case overrun(streamOffset: UInt64, framesLost: UInt64, filled: Bool)
  /// The device was suspended and runs again.
  case suspended(streamOffset: UInt64, framesLost: UInt64, filled: Bool)
  /// The device is gone (errno, `ETIMEDOUT` when it only fell silent). It is looked for from now on.
  case deviceLost(streamOffset: UInt64, code: Int32)
  /// It is back, after so many attempts; so many frames are lost since `deviceLost`, beginning at its offset.
  case deviceReturned(streamOffset: UInt64, framesLost: UInt64, filled: Bool, attempts: Int)
  /// The circular buffer is full and lets nothing go: frames stay in the device until there is room, or it overruns.
  case bufferFull(streamOffset: UInt64)
  /// The capture is over, as it was asked to be; the stream has so many frames.
  case stopped(frames: UInt64)
  /// The capture is over because it cannot go on: the call that failed, and its errno.
  case failed(operation: StaticString, code: Int32)

  var isLast: Bool {
    switch self {
    case .stopped, .failed: true
    default: false
    }
  }

  public static func == (a: CaptureEvent, b: CaptureEvent) -> Bool {
    switch (a, b) {
    case (.started(let a), .started(let b)): a == b
    case (.overrun(let a0, let a1, let a2), .overrun(let b0, let b1, let b2)): (a0, a1, a2) == (b0, b1, b2)
    case (.suspended(let a0, let a1, let a2), .suspended(let b0, let b1, let b2)): (a0, a1, a2) == (b0, b1, b2)
    case (.deviceLost(let a0, let a1), .deviceLost(let b0, let b1)): (a0, a1) == (b0, b1)
    case (.deviceReturned(let a0, let a1, let a2, let a3), .deviceReturned(let b0, let b1, let b2, let b3)):
      (a0, a1, a2, a3) == (b0, b1, b2, b3)
    case (.bufferFull(let a), .bufferFull(let b)): a == b
    case (.stopped(let a), .stopped(let b)): a == b
    case (.failed(_, let a), .failed(_, let b)): a == b
    default: false
    }
  }
}

/// A ring of events from the capture thread to whoever watches it: one writer, one reader, no lock, nothing allocated.
///
/// Full, it refuses: the counters in ``CaptureTotals`` still tell what was lost.
final class CaptureEventRing: Sendable {
  /// Readable when there are events.
  let counter: EventCounter
  private let written = Atomic<Int>(0)
  private let read = Atomic<Int>(0)
  private let refused = Atomic<UInt64>(0)
  nonisolated(unsafe) private let slots: UnsafeMutableBufferPointer<CaptureEvent>

  init(capacity: Int = 256) throws(SystemError) {
    counter = try EventCounter()
    slots = .allocate(capacity: capacity)
    // Touched now, so that the capture thread does not take the page fault.
    slots.initialize(repeating: .bufferFull(streamOffset: 0))
  }

  deinit { slots.deallocate() }

  /// The capture thread's side.
  func append(_ event: CaptureEvent) {
    let index = written.load(ordering: .relaxed)
    // The last place is for the end, which has to arrive: whoever watches waits for it.
    let capacity = event.isLast ? slots.count : slots.count - 1
    guard index - read.load(ordering: .acquiring) < capacity else {
      refused.add(1, ordering: .relaxed)
      return
    }
    slots[index % slots.count] = event
    written.store(index + 1, ordering: .releasing)
    counter.signal()
  }

  /// The reader's side: the oldest event not taken yet.
  func next() -> CaptureEvent? {
    let index = read.load(ordering: .relaxed)
    if index == written.load(ordering: .acquiring) {
      counter.drain()
      // An event may have come between the look and the drain, which took its signal.
      guard index != written.load(ordering: .acquiring) else { return nil }
    }
    let event = slots[index % slots.count]
    read.store(index + 1, ordering: .releasing)
    return event
  }

  /// Events that did not fit.
  var refusedCount: UInt64 { refused.load(ordering: .relaxed) }
}
