// A pipe between the test and a source.

import EventLoops
import Glibc
import NetworkTesting

final class TestPipe: Sendable {
  let reading: Int32
  private let writing: Int32
  private let isOpen = Lock((reading: true, writing: true))

  init() throws {
    signal(SIGPIPE, SIG_IGN)
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { throw TestFailure("pipe") }
    (reading, writing) = (ends[0], ends[1])
  }

  deinit {
    closeReading()
    closeWriting()
  }

  /// Writes all bytes, and waits for the reader. Returns false if the reader has closed.
  func write(_ bytes: [UInt8]) -> Bool {
    var rest = bytes[...]
    while !rest.isEmpty {
      let count = rest.withUnsafeBytes { Glibc.write(writing, $0.baseAddress, $0.count) }
      if count <= 0 { return false }
      rest = rest.dropFirst(count)
    }
    return true
  }

  /// Waits until nothing has fitted for a while, because the reader has stopped reading.
  func waitUntilFull() {
    while true {
      var entry = pollfd(fd: writing, events: Int16(POLLOUT), revents: 0)
      if poll(&entry, 1, 0) == 0 {
        // It is full. Check that it stays so.
        if poll(&entry, 1, 300) == 0 { return }
      }
      sched_yield()
    }
  }

  func closeReading() {
    isOpen.withLock { open in
      if open.reading { close(reading) }
      open.reading = false
    }
  }

  func closeWriting() {
    isOpen.withLock { open in
      if open.writing { close(writing) }
      open.writing = false
    }
  }
}
