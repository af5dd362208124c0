// Reads bytes from the disk before the network thread needs them.

internal import EventLoops

/// Pieces of a stretch in memory: the one that is being read, and the next. Guarded by a lock.
struct SpoolReadAhead {
  /// A run of bytes.
  final class Piece: @unchecked Sendable {
    // Unchecked: the spool's thread fills it, and the consumer reads it afterwards. The lock transfers it.
    static let capacity = 512 << 10
    let start: UInt64
    var count = 0
    let memory: UnsafeMutableRawBufferPointer

    init(start: UInt64) {
      self.start = start
      memory = .allocate(byteCount: Self.capacity, alignment: 4096)
    }

    deinit { memory.deallocate() }

    var end: UInt64 { start + UInt64(count) }
    func contains(_ position: UInt64) -> Bool { position >= start && position < end }
  }

  private(set) var current: Piece?
  private var next: Piece?
  /// Where the piece that is being loaded begins.
  private(set) var loading: UInt64?
  /// Bytes that are missing in the spool, according to the last load.
  private(set) var hole: Range<UInt64>?

  /// The bytes in memory at `position`. The piece stays until the next call.
  mutating func bytes(at position: UInt64) -> UnsafeRawBufferPointer? {
    if let next, next.contains(position) { (current, self.next) = (next, nil) }
    guard let current, current.contains(position) else { return nil }
    let place = Int(position - current.start)
    return UnsafeRawBufferPointer(rebasing: current.memory[place..<current.count])
  }

  /// Where to load next, if necessary: the piece being read, or the one after it.
  mutating func wanted(at position: UInt64, before end: UInt64) -> UInt64? {
    var start = position
    if let current, current.contains(position) { start = current.end }
    guard start < end, loading == nil, next?.start != start, hole?.lowerBound != start else { return nil }
    loading = start
    return start
  }

  /// The load has ended, with a piece or with a hole.
  mutating func loaded(_ piece: Piece?, hole: Range<UInt64>?) {
    loading = nil
    if let piece { next = piece }
    if let hole { self.hole = hole }
  }

  /// Nothing is read from the disk for now.
  mutating func forget() { (current, next, hole) = (nil, nil, nil) }
}
