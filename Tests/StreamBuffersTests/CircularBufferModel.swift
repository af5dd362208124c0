// A simple model of a circular buffer: all bytes ever written, and two numbers.

import Glibc
import StreamBuffers

/// The model: an array of all bytes of the stream, and the rules about which are readable.
struct CircularBufferModel {
  let capacity: Int
  let overflow: CircularBuffer.Overflow
  /// Released offsets are multiples of this; 1 unless memory is returned in steps.
  let releaseStep: UInt64
  private(set) var bytes: [UInt8] = []
  private(set) var released: UInt64 = 0
  /// The offset of the active read, if there is one.
  var pinned: UInt64?

  init(capacity: Int, overflow: CircularBuffer.Overflow, releaseStep: UInt64) {
    self.capacity = capacity
    self.overflow = overflow
    self.releaseStep = releaseStep
  }

  var head: UInt64 { UInt64(bytes.count) }
  var free: Int { capacity - Int(head - released) }

  /// The span that a write gets; nil if it is refused.
  mutating func room(minimum: Int, maximum: Int) -> Int? {
    if free < minimum {
      let oldest = head + UInt64(minimum) - UInt64(capacity)
      guard overflow == .dropOldest, pinned ?? .max >= oldest else { return nil }
      released = oldest
    }
    return min(free, max(minimum, maximum))
  }

  mutating func append(_ new: UnsafeRawBufferPointer) { bytes.append(contentsOf: new) }

  mutating func release(upTo offset: UInt64) {
    released = max(released, offset / releaseStep * releaseStep)
  }

  /// The result of a read at `offset`: the number of bytes, or the offset from which there are any.
  func read(at offset: UInt64, maximum: Int) -> Found {
    if offset < released { return .overwritten(oldest: released) }
    if offset == head { return .empty }
    return .bytes(min(Int(head - offset), maximum))
  }

  /// Whether `span` equals the bytes that were written from `offset` on.
  func agrees(_ span: RawSpan, at offset: UInt64) -> Bool {
    span.withUnsafeBytes { found in
      bytes[Int(offset)..<Int(offset) + found.count].withUnsafeBytes { written in
        guard let written = written.baseAddress, let address = found.baseAddress else { return found.isEmpty }
        return memcmp(written, address, found.count) == 0
      }
    }
  }

  enum Found: Equatable {
    case bytes(Int)
    case empty
    case overwritten(oldest: UInt64)
  }
}
