// The client's input: a pattern at a limited rate, through a FIFO as its standard input.

internal import CommandTesting
internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import Synchronization

/// Writes a stream at a limited rate until it is asked to end. Delayed bytes are written as fast as they are read.
package final class PacedInput: Sendable {
  /// The FIFO, which the client opens for reading.
  package let path: String
  private let pattern: StampedPattern
  private let bytesPerSecond: Int
  private let isEnding = Atomic<Bool>(false)
  private let written = Atomic<UInt64>(0)
  private let thread = Mutex<NamedThread?>(nil)
  private let placeholder = Mutex<Int32>(-1)

  /// - Parameter path: the path of the new FIFO.
  package init(_ path: String, _ pattern: StampedPattern, bytesPerSecond: Int) throws {
    self.path = path
    self.pattern = pattern
    self.bytesPerSecond = bytesPerSecond
    try retryingInterrupts("mkfifo \(path)") { mkfifo(path, 0o600) }
  }

  /// Opens the FIFO and begins to write to it.
  package func start() throws {
    // Kept open for reading until the client reads, so that nothing waits for a client that never starts.
    let reader = try retryingInterrupts("open \(path)") { open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) }
    placeholder.withLock { $0 = reader }
    let descriptor = try retryingInterrupts("open \(path)") { open(path, O_WRONLY | O_CLOEXEC) }
    let running = try NamedThread("chaos input") { [self] in
      writeAll(descriptor)
      close(descriptor)
    }
    thread.withLock { $0 = running }
  }

  /// The client has opened the FIFO. From here on its end is visible here, as EPIPE, because signals are blocked on the
  /// thread.
  package func isBeingRead() {
    placeholder.withLock { descriptor in
      if descriptor >= 0 { close(descriptor) }
      descriptor = -1
    }
  }

  /// Ends the stream at its current offset. Returns its length.
  package func finish() -> UInt64 {
    isBeingRead()
    isEnding.store(true, ordering: .relaxed)
    thread.withLock { thread in
      thread?.join()
      thread = nil
    }
    return written.load(ordering: .relaxed)
  }

  private func writeAll(_ descriptor: Int32) {
    let start = MonotonicInstant.now
    var block = [UInt8](repeating: 0, count: StampedPattern.blockSize)
    var index: UInt64 = 0
    while !isEnding.load(ordering: .relaxed) {
      let due = start + .nanoseconds(Int64(index) * Int64(block.count) * 1_000_000_000 / Int64(bytesPerSecond))
      // This is the pace of the source, not a synchronization. It writes the bytes of a few milliseconds at a time.
      while due - .now > .milliseconds(4), !isEnding.load(ordering: .relaxed) { elapse(.milliseconds(4)) }
      block.withUnsafeMutableBytes { pattern.fill($0, block: index) }
      guard write(descriptor, block, block.count) else { return }
      index += 1
    }
    // The end is a part of a block, so that the length is not a multiple of anything.
    block.withUnsafeMutableBytes { pattern.fill($0, block: index) }
    _ = write(descriptor, block, 1 + Int(index % UInt64(block.count - 1)))
  }

  private func write(_ descriptor: Int32, _ bytes: [UInt8], _ count: Int) -> Bool {
    var done = 0
    while done < count {
      let taken = bytes.withUnsafeBytes { all in
        let rest = UnsafeRawBufferPointer(rebasing: all[done..<count])
        return Glibc.write(descriptor, rest.baseAddress, rest.count)
      }
      if taken < 0 && errno == EINTR { continue }
      guard taken > 0 else { return false }
      done += taken
      written.wrappingAdd(UInt64(taken), ordering: .relaxed)
    }
    return true
  }
}
