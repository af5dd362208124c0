// The offsets at which the frames of a stream begin.

internal import EventLoops

/// The offsets at which a part of a stream may begin: its start, and the start of each frame after the header.
struct FrameGrid: Equatable {
  /// Every offset is allowed.
  static let bytes = FrameGrid(headerLength: 0, frameLength: 1)

  private let headerLength: UInt64
  private let frameLength: UInt64

  /// - Parameter frameLength: in bytes. A value below 1 counts as 1.
  init(headerLength: Int, frameLength: Int) {
    self.headerLength = UInt64(clamping: headerLength)
    self.frameLength = UInt64(max(1, frameLength))
  }

  /// The last such offset that is at most `offset`.
  func floor(_ offset: UInt64) -> UInt64 {
    offset < headerLength ? 0 : offset - (offset - headerLength) % frameLength
  }

  /// The first such offset that is at least `offset`.
  func ceiling(_ offset: UInt64) -> UInt64 {
    if offset == 0 { return 0 }
    if offset <= headerLength { return headerLength }
    let begun = (offset - headerLength) % frameLength
    return begun == 0 ? offset : offset.addingSaturated(frameLength - begun)
  }
}
