// The ends of a spool's buffers: a test captures its pattern at one of them, and reads it at the other.

import PropertyTesting
import SpooledStreams
import StreamBuffers
import Testing

extension SpooledBuffer {
  /// Takes its ends, which no one has taken before.
  func ends() throws -> CircularBuffer.CopiedEnds {
    guard let ends = takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    return ends
  }
}

extension CircularBuffer.Producer {
  /// Writes this many bytes of the pattern at the head.
  mutating func capture(_ count: Int) {
    let position = head
    _ = write(minimum: count, maximum: count) { span in
      span.withUnsafeMutableBytes { SpooledStretchTests.pattern.fill($0, at: position) }
      return count
    }
  }

  /// Writes the pattern up to this position, in pieces, and waits for space before each of them.
  mutating func capture(upTo end: UInt64) throws {
    while head < end {
      let size = Int(min(4096, end - head))
      try waitForSpace(size)
      capture(size)
    }
  }

  /// Waits until this many bytes are free.
  mutating func waitForSpace(_ count: Int) throws {
    while requestSpace(count) {
      let hasSpace = waitUntilReadable(spaceDescriptor)
      try #require(hasSpace)
      drainSpaceSignals()
    }
  }
}

extension SpooledBacklog {
  /// Takes its consumer, which no one has taken before.
  func consumer() throws -> CircularBuffer.Consumer {
    guard let ends = takeEnds() else { throw SpooledStretchTests.Failure(reason: "taken already") }
    return ends.consumer
  }

  /// Reads the bytes at these positions, and requires that all of them are there and follow the pattern.
  func readAll(
    _ positions: Range<UInt64>, _ seed: Seed = Seed(1), context: String = "",
    sourceLocation: SourceLocation = #_sourceLocation
  ) throws {
    var consumer = try consumer()
    var cursor = positions.lowerBound
    while cursor < positions.upperBound {
      let before = cursor
      let missing = try SpooledStretchTests.read(&consumer, &cursor, 8192, seed)
      // At the end of a stream, nothing is missing, and nothing is read.
      try #require(
        missing == 0 && cursor > before,
        "\(missing) bytes are missing before \(cursor) of \(positions), \(seed) \(context)",
        sourceLocation: sourceLocation)
    }
  }
}
