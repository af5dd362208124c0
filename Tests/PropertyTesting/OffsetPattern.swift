// A stream in which every byte follows from its offset, so that a reader needs only the offset to check it.

internal import Glibc

/// Pseudorandom bytes with a prime period, so that shifts by powers of two, such as a lap of a buffer, are detected.
public struct OffsetPattern: Sendable {
  private static let period = 65_521
  /// Two periods, so that a run of up to one period is contiguous at any start.
  private let bytes: [UInt8]

  /// The longest run that ``fill(_:at:)`` and ``matches(_:at:)`` take at once, in bytes.
  public static let longestRun = period

  public init(seed: UInt64 = 1) {
    var random = SplitMix64(state: seed)
    let once = (0..<Self.period).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    bytes = once + once
  }

  /// Fills `target` with the stream's bytes from `offset` on.
  public func fill(_ target: UnsafeMutableRawBufferPointer, at offset: UInt64) {
    precondition(target.count <= Self.longestRun)
    let start = Int(offset % UInt64(Self.period))
    bytes.withUnsafeBytes {
      target.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[start..<start + target.count]))
    }
  }

  /// Whether `found` equals the stream's bytes from `offset` on.
  public func matches(_ found: UnsafeRawBufferPointer, at offset: UInt64) -> Bool {
    guard let address = found.baseAddress, found.count > 0 else { return true }
    precondition(found.count <= Self.longestRun)
    let start = Int(offset % UInt64(Self.period))
    // The base address of two periods of bytes is not nil.
    return bytes.withUnsafeBytes { memcmp($0.baseAddress! + start, address, found.count) == 0 }
  }

  /// The bytes at these offsets. Copied in long runs, because tests with millions of bytes are built without
  /// optimization.
  public subscript(offsets: Range<Int>) -> [UInt8] {
    var all = [UInt8](repeating: 0, count: offsets.count)
    all.withUnsafeMutableBytes { all in
      for start in stride(from: 0, to: all.count, by: Self.longestRun) {
        let run = UnsafeMutableRawBufferPointer(rebasing: all[start..<min(all.count, start + Self.longestRun)])
        fill(run, at: UInt64(offsets.lowerBound + start))
      }
    }
    return all
  }

  /// The byte at `offset`.
  public subscript(offset: UInt64) -> UInt8 { bytes[Int(offset % UInt64(Self.period))] }
}
