// The events of a microphone, as values that the capture thread can pass without allocating.

internal import EventLoops
internal import Synchronization

/// Something that happened while capturing. Offsets are stream offsets in bytes, lengths are in frames.
public enum CaptureEvent: Equatable, Sendable {
  /// Whether the capture thread obtained real-time priority.
  public enum RealTime: Equatable, Sendable {
    /// SCHED_FIFO with this priority.
    case granted(priority: Int32)
    /// Refused, with the errno of pthread_setschedparam(3). It is usually EPERM, because RLIMIT_RTPRIO is 0.
    case refused(code: Int32)
    /// The configuration did not request it.
    case notRequested
  }

  /// Frames are arriving.
  case started(realTime: RealTime)
  /// The device had more frames than its buffer holds, and this many were lost at this offset. `filled` states whether
  /// silence replaces them. Also reported for frames that the device still had when the capture ended, because the
  /// circular buffer was full.
  case overrun(streamOffset: UInt64, framesLost: UInt64, filled: Bool)
  /// The device was suspended, and runs again or the capture has ended.
  case suspended(streamOffset: UInt64, framesLost: UInt64, filled: Bool)
  /// The device is gone (errno, or `ETIMEDOUT` if it only stopped delivering). The microphone now tries to reopen it.
  case deviceLost(streamOffset: UInt64, code: Int32)
  /// The device is connected again, but cannot be used for this reason. The microphone continues to try. Reported once
  /// for each reason since `deviceLost`.
  case deviceRefused(streamOffset: UInt64, reason: Refusal)
  /// The device returned after this many attempts. This many frames were lost since `deviceLost`, beginning at its
  /// offset.
  case deviceReturned(streamOffset: UInt64, framesLost: UInt64, filled: Bool, attempts: Int)
  /// The capture ended while the device was gone. This many frames were lost since `deviceLost`, beginning at its
  /// offset.
  case neverReturned(streamOffset: UInt64, framesLost: UInt64, filled: Bool)
  /// This many events were too fast to be read, and this many frames were lost in them. The losses are within these
  /// bytes. `filled` states whether silence replaces them.
  case missed(events: UInt64, streamOffset: UInt64, byteCount: UInt64, framesLost: UInt64, filled: Bool)
  /// The circular buffer is full and drops nothing. Frames stay in the device until there is room, or it overruns.
  case bufferFull(streamOffset: UInt64)
  /// The capture ended on request. The stream has this many frames.
  case stopped(frames: UInt64)
  /// The capture ended because of an error: the failed call and its errno.
  case failed(operation: StaticString, code: Int32)

  var isLast: Bool {
    switch self {
    case .stopped, .failed: true
    default: false
    }
  }

  /// The loss that the event reports: its offset, its length, and whether silence replaces it.
  var loss: (streamOffset: UInt64, frames: UInt64, filled: Bool)? {
    switch self {
    case .overrun(let offset, let frames, let filled), .suspended(let offset, let frames, let filled),
      .deviceReturned(let offset, let frames, let filled, _), .neverReturned(let offset, let frames, let filled),
      .missed(_, let offset, _, let frames, let filled):
      (offset, frames, filled)
    case .started, .deviceLost, .deviceRefused, .bufferFull, .stopped, .failed: nil
    }
  }

  /// Equal events; the details of two failures are not compared.
  public static func == (a: CaptureEvent, b: CaptureEvent) -> Bool {
    switch (a, b) {
    case (.started(let a), .started(let b)): a == b
    case (.overrun(let a0, let a1, let a2), .overrun(let b0, let b1, let b2)): (a0, a1, a2) == (b0, b1, b2)
    case (.suspended(let a0, let a1, let a2), .suspended(let b0, let b1, let b2)): (a0, a1, a2) == (b0, b1, b2)
    case (.deviceLost(let a0, let a1), .deviceLost(let b0, let b1)): (a0, a1) == (b0, b1)
    case (.deviceRefused(let a0, let a1), .deviceRefused(let b0, let b1)): (a0, a1) == (b0, b1)
    case (.deviceReturned(let a0, let a1, let a2, let a3), .deviceReturned(let b0, let b1, let b2, let b3)):
      (a0, a1, a2, a3) == (b0, b1, b2, b3)
    case (.neverReturned(let a0, let a1, let a2), .neverReturned(let b0, let b1, let b2)): (a0, a1, a2) == (b0, b1, b2)
    case (.missed(let a0, let a1, let a2, let a3, let a4), .missed(let b0, let b1, let b2, let b3, let b4)):
      (a0, a1, a2, a3, a4) == (b0, b1, b2, b3, b4)
    case (.bufferFull(let a), .bufferFull(let b)): a == b
    case (.stopped(let a), .stopped(let b)): a == b
    case (.failed(_, let a), .failed(_, let b)): a == b
    default: false
    }
  }
}

/// Events without space in the ring, combined into one.
struct MissedEvents: Equatable {
  private var count: UInt64 = 0
  private var frames: UInt64 = 0
  private var filled = false
  /// In stream offsets; nil if nothing is lost.
  private var bytes: Range<UInt64>?

  init() {}

  mutating func add(_ event: CaptureEvent, frameBytes: UInt64) {
    count = count.addingSaturated(1)
    guard let loss = event.loss else { return }
    let end = loss.streamOffset.addingSaturated(loss.filled ? loss.frames.multipliedSaturated(by: frameBytes) : 0)
    let before = bytes ?? loss.streamOffset..<end
    bytes = min(before.lowerBound, loss.streamOffset)..<max(before.upperBound, end)
    frames = frames.addingSaturated(loss.frames)
    filled = loss.filled
  }

  /// nil if no missed event reports a loss.
  var event: CaptureEvent? {
    bytes.map {
      .missed(
        events: count, streamOffset: $0.lowerBound, byteCount: $0.upperBound - $0.lowerBound, framesLost: frames,
        filled: filled)
    }
  }
}

/// A ring of events from the capture thread to an observer: one writer, one reader, no lock, no allocation.
///
/// A full ring refuses events. Their losses are reported in one event as soon as there is space.
final class CaptureEventRing: Sendable {
  /// Readable when there are events.
  let counter: EventCounter
  private let written = Atomic<Int>(0)
  private let read = Atomic<Int>(0)
  private let refused = Atomic<UInt64>(0)
  private let frameBytes: UInt64
  nonisolated(unsafe) private let slots: UnsafeMutableBufferPointer<CaptureEvent>
  /// Used by the capture thread only.
  nonisolated(unsafe) private var missed = MissedEvents()

  init(frameBytes: Int, capacity: Int = 256) throws(SystemError) {
    self.frameBytes = UInt64(frameBytes)
    counter = try EventCounter()
    slots = .allocate(capacity: capacity)
    // Initialised now, so that the capture thread does not get the page fault.
    slots.initialize(repeating: .bufferFull(streamOffset: 0))
  }

  deinit { slots.deallocate() }

  /// Called on the capture thread.
  func append(_ event: CaptureEvent) {
    // The last two slots are reserved for the missed events and for the end. Both must arrive, and the observer waits
    // for the end.
    report(reserved: event.isLast ? 1 : 2)
    guard put(event, reserved: event.isLast ? 0 : 2) else {
      refused.add(1, ordering: .relaxed)
      missed.add(event, frameBytes: frameBytes)
      return
    }
  }

  /// Reports the missed events as soon as there is space. Called on the capture thread.
  func reportMissed() { report(reserved: 2) }

  private func report(reserved: Int) {
    guard let event = missed.event, put(event, reserved: reserved) else { return }
    missed = MissedEvents()
  }

  /// Returns false if only reserved slots are left.
  private func put(_ event: CaptureEvent, reserved: Int) -> Bool {
    let index = written.load(ordering: .relaxed)
    guard index - read.load(ordering: .acquiring) < slots.count - reserved else { return false }
    slots[index % slots.count] = event
    written.store(index + 1, ordering: .releasing)
    counter.signal()
    return true
  }

  /// Called by the reader: the oldest event that it has not received yet.
  func next() -> CaptureEvent? {
    let index = read.load(ordering: .relaxed)
    if index == written.load(ordering: .acquiring) {
      counter.drain()
      // An event may have arrived between the check and the drain, which consumed its signal.
      guard index != written.load(ordering: .acquiring) else { return nil }
    }
    let event = slots[index % slots.count]
    read.store(index + 1, ordering: .releasing)
    return event
  }

  /// Events that did not fit.
  var refusedCount: UInt64 { refused.load(ordering: .relaxed) }
}
