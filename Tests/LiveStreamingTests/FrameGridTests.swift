import Testing

@testable import LiveStreaming

@Suite("The offsets at which frames begin")
struct FrameGridTests {
  /// All offsets at which a part may begin, up to `end`.
  private func starts(_ header: Int, _ frame: Int, upTo end: Int) -> [UInt64] {
    var starts: Set<UInt64> = [0]
    for offset in stride(from: header, through: end, by: frame) { starts.insert(UInt64(offset)) }
    return starts.sorted()
  }

  @Test(
    "each offset has the start of a frame at or before it, and one at or after it", arguments: [0, 1, 3, 44],
    [1, 2, 6])
  func neighbours(header: Int, frame: Int) {
    let grid = FrameGrid(headerLength: header, frameLength: frame)
    let starts = starts(header, frame, upTo: 200)
    for offset: UInt64 in 0...150 {
      #expect(grid.floor(offset) == starts.last { $0 <= offset }, "\(offset)")
      #expect(grid.ceiling(offset) == starts.first { $0 >= offset }, "\(offset)")
    }
  }

  @Test("a frame has at least one byte, a header at least none, and no offset causes a trap")
  func limits() {
    for length in [Int.min, -1, 0, 1] {
      #expect(FrameGrid(headerLength: 44, frameLength: length) == FrameGrid(headerLength: 44, frameLength: 1))
    }
    #expect(FrameGrid(headerLength: -1, frameLength: 4) == FrameGrid(headerLength: 0, frameLength: 4))
    #expect(FrameGrid(headerLength: 44, frameLength: 2) != FrameGrid(headerLength: 44, frameLength: 1))
    #expect(FrameGrid.bytes == FrameGrid(headerLength: 0, frameLength: 1))
    let grid = FrameGrid(headerLength: 0, frameLength: 4)
    #expect(grid.ceiling(.max) == .max && grid.floor(.max) == .max - 3)
  }
}
