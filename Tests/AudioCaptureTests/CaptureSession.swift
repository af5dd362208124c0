// A microphone under test, the other end of its circular buffer, and its complete output.

import EventLoops
import Glibc
import StreamBuffers
import Testing

@testable import AudioCapture

/// Captures, collects, and waits for the condition of the test. Used by one thread.
final class CaptureSession {
  let microphone: Microphone
  var consumer: CircularBuffer.Consumer
  /// The bytes taken so far.
  private(set) var bytes: [UInt8] = []
  /// Stream offset after the last byte taken. Larger than the size of `bytes` if the buffer has dropped some.
  private(set) var offset: UInt64 = 0
  private(set) var events: [CaptureEvent] = []

  init(
    _ configuration: MicrophoneConfiguration, capacity: Int = 1 << 20, overflow: CircularBuffer.Overflow = .refuse,
    memory: CircularBuffer.Memory = .kept, allowsPauses: Bool = false, sleepClock: SleepClock = .system
  ) throws {
    microphone = try Microphone(configuration, sleepClock: sleepClock)
    let ends = try CircularBuffer.make(
      capacity: .bytes(capacity), overflow: overflow, memory: memory, allowsPauses: allowsPauses)
    consumer = ends.consumer
    try microphone.start(into: ends.producer)
  }

  /// Frames taken so far.
  var frames: Int { bytes.count / microphone.format.bytesPerFrame }
  var isFinished: Bool { consumer.isFinished && consumer.head == offset }

  /// Takes bytes until `done`, woken by data and by events. Gives up after `limit`.
  func take(
    limit: Duration = .seconds(60), until done: (CaptureSession) -> Bool,
    sourceLocation: SourceLocation = #_sourceLocation
  ) {
    let deadline = MonotonicInstant.now + limit
    while true {
      takeEvents()
      takeBytes()
      if done(self) { return }
      // False if there is already more, or if there will be no more. Then only events can arrive.
      let mayCome = consumer.requestWakeUp(beyond: offset)
      if !mayCome && !isFinished { continue }
      guard wait(forData: mayCome, until: deadline) else { break }
    }
    Issue.record("it did not happen: \(frames) frames, \(events)", sourceLocation: sourceLocation)
  }

  /// Waits only for events, and leaves the bytes in the buffer.
  func takeEvents(
    until done: (CaptureSession) -> Bool, sourceLocation: SourceLocation = #_sourceLocation
  ) {
    let deadline = MonotonicInstant.now + .seconds(60)
    takeEvents()
    while !done(self) {
      var descriptor = pollfd(fd: microphone.eventDescriptor, events: Int16(POLLIN), revents: 0)
      guard poll(&descriptor, 1, Self.milliseconds(until: deadline)) > 0 else {
        Issue.record("it did not happen: \(events)", sourceLocation: sourceLocation)
        return
      }
      takeEvents()
    }
  }

  /// Stops the capture and takes the rest of the stream.
  func finish() {
    microphone.stop()
    take { $0.isFinished && $0.hasStopped }
    microphone.waitUntilEnded()
  }

  var hasStopped: Bool {
    events.contains { if case .stopped = $0 { true } else { false } }
  }

  private func takeEvents() {
    while let event = microphone.nextEvent() { events.append(event) }
  }

  func takeBytes() {
    while true {
      let result = consumer.read(at: offset) { span in span.withUnsafeBytes { [UInt8]($0) } }
      switch result {
      case .bytes(let chunk):
        bytes += chunk
        offset += UInt64(chunk.count)
        consumer.release(upTo: offset)
      case .overwritten(let oldest): offset = oldest
      case .empty: return
      }
    }
  }

  private func wait(forData: Bool, until deadline: MonotonicInstant) -> Bool {
    var descriptors = [
      pollfd(fd: microphone.eventDescriptor, events: Int16(POLLIN), revents: 0),
      pollfd(fd: consumer.dataDescriptor, events: Int16(POLLIN), revents: 0),
    ]
    let ready = poll(&descriptors, forData ? 2 : 1, Self.milliseconds(until: deadline))
    if descriptors[1].revents != 0 {
      var count: UInt64 = 0
      read(consumer.dataDescriptor, &count, 8)
    }
    return ready > 0
  }

  private static func milliseconds(until deadline: MonotonicInstant) -> Int32 {
    Int32(clamping: max(0, (deadline - .now).nanoseconds / 1_000_000))
  }
}
