// The two ends of a pair, used in every possible way, for `BoundStreamTests`.

import FoundationUploads
import NetworkTesting
import PropertyTesting
import Testing

/// Reads up to a limit or to the end.
final class Reader: @unchecked Sendable {
  let done: EventLog<[UInt8]>
  private let recorder: EventRecorder?
  private var thread: LoopThread?

  init(_ stream: InputStream, _ use: BoundStreamTests.Use, limit: Int, seed: UInt64) throws {
    let done = try EventLog<[UInt8]>()
    self.done = done
    nonisolated(unsafe) var received: [UInt8] = []
    nonisolated(unsafe) var generator = SplitMix64(state: seed)
    /// Returns false at the end.
    nonisolated(unsafe) let readOnce: () -> Bool = {
      var buffer = [UInt8](repeating: 0, count: min(generator.size(upTo: 100), limit - received.count))
      let count = stream.read(&buffer, maxLength: buffer.count)
      received += buffer.prefix(max(0, count))
      return count > 0
    }
    nonisolated(unsafe) let stream = stream
    guard use != .blocking else {
      recorder = nil
      Thread.detachNewThread {
        stream.open()
        while received.count < limit, readOnce() {}
        if received.count == limit { stream.close() }
        done.append(received)
      }
      return
    }
    let recorder = try EventRecorder { stream, event in
      if event == .hasBytesAvailable { _ = readOnce() }
      if received.count == limit { stream.close() }
      if event == .endEncountered || received.count == limit { done.append(received) }
    }
    let thread = LoopThread()
    (self.recorder, self.thread) = (recorder, thread)
    stream.delegate = recorder
    if limit == 0 {
      stream.open()
      stream.close()
      done.append([])
      return
    }
    if use == .openedThenScheduled { stream.open() }
    stream.schedule(in: thread.loop, forMode: .default)
    if use == .scheduledThenOpened { stream.open() }
  }

  deinit { thread?.end() }

  func checkEvents() throws {
    guard let events = recorder?.log.all, !events.isEmpty else { return }
    #expect(events.first == .openCompleted)
    #expect(events.dropFirst().allSatisfy { $0 == .hasBytesAvailable || $0 == .endEncountered }, "\(events)")
    #expect(events.dropLast().allSatisfy { $0 != .endEncountered }, "\(events)")
  }
}

/// Writes all bytes, or until the other end is closed.
final class Writer: @unchecked Sendable {
  let done: EventLog<Bool>
  private let recorder: EventRecorder?
  private var thread: LoopThread?
  private let writes: EventLog<Int>

  init(_ stream: OutputStream, _ use: BoundStreamTests.Use, _ bytes: [UInt8], seed: UInt64) throws {
    let (done, writes) = (try EventLog<Bool>(), try EventLog<Int>())
    (self.done, self.writes) = (done, writes)
    nonisolated(unsafe) var rest = bytes[...]
    nonisolated(unsafe) var generator = SplitMix64(state: seed)
    /// Returns false when it is over.
    nonisolated(unsafe) let writeOnce: () -> Bool = {
      let piece = Array(rest.prefix(generator.size(upTo: 100)))
      let count = stream.write(piece, maxLength: piece.count)
      writes.append(count)
      guard count > 0 else { return false }
      rest = rest.dropFirst(count)
      return !rest.isEmpty
    }
    nonisolated(unsafe) let stream = stream
    guard use != .blocking else {
      recorder = nil
      Thread.detachNewThread {
        stream.open()
        while writeOnce() {}
        stream.close()
        done.append(true)
      }
      return
    }
    let recorder = try EventRecorder { stream, event in
      if event == .hasSpaceAvailable, writeOnce() { return }
      if event == .openCompleted { return }
      stream.close()
      done.append(true)
    }
    let thread = LoopThread()
    (self.recorder, self.thread) = (recorder, thread)
    stream.delegate = recorder
    if use == .openedThenScheduled { stream.open() }
    stream.schedule(in: thread.loop, forMode: .default)
    if use == .scheduledThenOpened { stream.open() }
  }

  deinit { thread?.end() }

  func checkEvents() throws {
    guard let events = recorder?.log.all else { return }
    #expect(events.first == .openCompleted)
    let signals = events.filter { $0 == .hasSpaceAvailable }.count
    #expect(signals == writes.all.count, "\(events), \(writes.all)")
    #expect(done.all.count == 1)
  }
}
