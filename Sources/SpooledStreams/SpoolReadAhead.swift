// Bytes on their way back from the disk, before the network thread asks for them.

internal import EventLoops

/// Pieces of a stretch that are in memory: the one that is being read, and the next. Owned by a lock.
struct SpoolReadAhead {
  /// A run of bytes.
  final class Piece: @unchecked Sendable {
    // Unchecked: the spool's thread fills it, then the consumer reads it; the lock hands it over.
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
  /// Where the piece begins that is being loaded.
  private(set) var loading: UInt64?
  /// Bytes that the spool lacks, as the last load found.
  private(set) var hole: Range<UInt64>?

  /// What is in memory at `position`. The piece stays until the next call.
  mutating func bytes(at position: UInt64) -> UnsafeRawBufferPointer? {
    if let next, next.contains(position) { (current, self.next) = (next, nil) }
    guard let current, current.contains(position) else { return nil }
    let place = Int(position - current.start)
    return UnsafeRawBufferPointer(rebasing: current.memory[place..<current.count])
  }

  /// Where to load next, if anything is to be loaded: what is read, or what follows it.
  mutating func wanted(at position: UInt64, before end: UInt64) -> UInt64? {
    var start = position
    if let current, current.contains(position) { start = current.end }
    guard start < end, loading == nil, next?.start != start, hole?.lowerBound != start else { return nil }
    loading = start
    return start
  }

  /// The load is over: with a piece, or with a hole.
  mutating func loaded(_ piece: Piece?, hole: Range<UInt64>?) {
    loading = nil
    if let piece { next = piece }
    if let hole { self.hole = hole }
  }

  /// Nothing is read from the disk for the moment.
  mutating func forget() { (current, next, hole) = (nil, nil, nil) }
}
