// A pipe that closes itself with its last reference.

import EventLoops
import Glibc

/// Two descriptors of a nonblocking pipe(2).
final class Pipe: @unchecked Sendable {
  let reading: Int32
  private(set) var writing: Int32

  init() throws(SystemError) {
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { throw .last("pipe") }
    (reading, writing) = (ends[0], ends[1])
    for end in ends { _ = fcntl(end, F_SETFL, O_NONBLOCK) }
  }

  deinit {
    close(reading)
    closeWriting()
  }

  /// Writes one byte.
  func send() {
    var byte: UInt8 = 1
    write(writing, &byte, 1)
  }

  func closeWriting() {
    if writing >= 0 { close(writing) }
    writing = -1
  }
}
