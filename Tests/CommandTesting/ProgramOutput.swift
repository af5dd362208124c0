// The output of a program, line by line as it arrives, so that a test waits for an event and not for the clock.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import Synchronization

/// Reads a FIFO that a program writes to, until the program's end.
package final class ProgramOutput: Sendable {
  private struct State {
    var events: [FlatObject] = []
    /// Human-readable lines, which are not JSON.
    var text: [String] = []
    var isAtEnd = false
  }

  private let state = Mutex(State())
  private let news: EventCounter

  /// - Parameter path: created here, before the writing program is started.
  init(fifo path: String, start: () throws -> Void) throws {
    news = try EventCounter()
    try retryingInterrupts("mkfifo \(path)") { mkfifo(path, 0o600) }
    // Without waiting for a writer, because there is none yet.
    let descriptor = try retryingInterrupts("open \(path)") { open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) }
    do {
      try start()
    } catch {
      close(descriptor)
      throw error
    }
    // From here on the program is the writer, so the end of the FIFO is the end of the program.
    let flags = fcntl(descriptor, F_GETFL)
    _ = fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK)
    try NamedThread("test output") { [self] in readAll(descriptor) }.detach()
  }

  private func readAll(_ descriptor: Int32) {
    var line: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 1 << 14)
    while true {
      let count = read(descriptor, &buffer, buffer.count)
      if count < 0 && errno == EINTR { continue }
      if count <= 0 { break }
      for byte in buffer[..<count] {
        if byte == UInt8(ascii: "\n") {
          take(String(decoding: line, as: UTF8.self))
          line = []
        } else {
          line.append(byte)
        }
      }
    }
    close(descriptor)
    state.withLock { $0.isAtEnd = true }
    news.signal()
  }

  private func take(_ line: String) {
    state.withLock { state in
      if let event = FlatObject(line) { state.events.append(event) } else { state.text.append(line) }
    }
    news.signal()
  }

  package var events: [FlatObject] { state.withLock { $0.events } }
  package var text: [String] { state.withLock { $0.text } }
  /// Whether the program has ended, and all of its output was read.
  package var isAtEnd: Bool { state.withLock { $0.isAtEnd } }

  /// Waits until `find` finds something in the output so far. One thread at a time.
  ///
  /// - Throws: ``TestFailure`` with the whole output, at the program's end or after `limit`.
  @discardableResult
  package func wait<Found>(for what: String, limit: Duration = .seconds(60), _ find: ([FlatObject], [String]) -> Found?)
    throws
    -> Found
  {
    let deadline = MonotonicInstant.now + limit
    while true {
      let (found, isAtEnd) = state.withLock { (find($0.events, $0.text), $0.isAtEnd) }
      if let found { return found }
      if isAtEnd { throw TestFailure("the program ended before \(what)\n\(tail)") }
      var polled = pollfd(fd: news.descriptor, events: Int16(POLLIN), revents: 0)
      let remaining = (deadline - .now).nanoseconds / 1_000_000
      if remaining <= 0 || poll(&polled, 1, Int32(remaining)) == 0 {
        throw TestFailure("\(what) did not come in time\n\(tail)")
      }
      news.drain()
    }
  }

  /// Waits for the program's end.
  package func waitUntilEnd(limit: Duration = .seconds(60)) throws {
    let deadline = MonotonicInstant.now + limit
    while !state.withLock({ $0.isAtEnd }) {
      var polled = pollfd(fd: news.descriptor, events: Int16(POLLIN), revents: 0)
      let remaining = (deadline - .now).nanoseconds / 1_000_000
      if remaining <= 0 || poll(&polled, 1, Int32(remaining)) == 0 {
        throw TestFailure("the program does not end\n\(tail)")
      }
      news.drain()
    }
  }

  private var tail: String {
    state.withLock { state in
      (state.text.suffix(20) + state.events.suffix(20).map(\.description)).joined(separator: "\n")
    }
  }
}
