// The bytes of a file that is mostly longer than what was written to it.

internal import Glibc

/// Bytes that end with zeros without memory for them, as the unwritten end of a file does.
struct ZeroExtendedBytes: Sendable {
  private(set) var count = 0
  /// The first of the bytes; the others are zeros.
  private var stored: [UInt8] = []

  init() {}

  init(_ bytes: [UInt8]) { (stored, count) = (bytes, bytes.count) }

  var all: [UInt8] { self[0..<count] }

  subscript(index: Int) -> UInt8 {
    get { index < stored.count ? stored[index] : 0 }
    set { replace(at: index, with: [newValue][...]) }
  }

  subscript(range: Range<Int>) -> [UInt8] {
    let present = Array(stored[min(range.lowerBound, stored.count)..<min(range.upperBound, stored.count)])
    return present + [UInt8](repeating: 0, count: range.count - present.count)
  }

  /// What is cut off returns as zeros.
  mutating func resize(to newCount: Int) {
    if newCount < stored.count { stored.removeSubrange(newCount...) }
    count = newCount
  }

  /// Grows if the bytes end behind the end.
  mutating func replace(at offset: Int, with bytes: ArraySlice<UInt8>) {
    let end = offset + bytes.count
    if stored.count < end { stored += [UInt8](repeating: 0, count: end - stored.count) }
    stored.withUnsafeMutableBytes { stored in
      bytes.withUnsafeBytes { UnsafeMutableRawBufferPointer(rebasing: stored[offset..<end]).copyMemory(from: $0) }
    }
    count = max(count, end)
  }

  /// The first place from `offset` on whose page, up to its end, has only zeros, or has others; nil if there is none.
  func firstPage(of size: Int, from offset: Int, isZero: Bool) -> Int? {
    let zeros = [UInt8](repeating: 0, count: size)
    var page = offset
    while page < min(count, stored.count) {
      let end = (page / size + 1) * size
      let isEqual = stored.withUnsafeBytes { memcmp($0.baseAddress! + page, zeros, min(stored.count, end) - page) == 0 }
      if isEqual == isZero { return page }
      page = end
    }
    return isZero && page < count ? page : nil
  }
}
