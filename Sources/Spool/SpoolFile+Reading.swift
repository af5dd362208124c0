// Reads bytes from the ring.

internal import EventLoops
internal import Glibc

extension SpoolFile {
  /// The result of ``read(at:into:)``.
  package enum Read: Equatable, Sendable {
    /// The number of bytes that were copied, unchanged since they were appended.
    case bytes(Int)
    /// No byte exists at this position, because it was evicted, lost earlier, or damaged. The value is the next
    /// position that has bytes, or from which to search again.
    case missing(next: UInt64)
    /// The disk has failed to read the bytes. It may be able to read them later. The value is the next position that
    /// may be readable.
    ///
    /// - Parameter isProven: whether the disk has just read the bytes at that position.
    case unreadable(next: UInt64, isProven: Bool)
    /// The position is the head or beyond it.
    case end
  }

  /// Reads bytes from `position` on, up to the next hole and at most 1 MiB. Checksums are verified.
  ///
  /// Damaged blocks count as missing. They and unreadable ones are reported in ``damage``.
  package func read(at position: UInt64, into buffer: UnsafeMutableRawBufferPointer) throws(SpoolError) -> Read {
    guard position < head else { return .end }
    guard position >= oldest else { return .missing(next: oldest) }
    guard !buffer.isEmpty else { return .bytes(0) }
    if areHolesIntended, let hole = holes.first(where: { $0.contains(position) }) {
      return .missing(next: hole.upperBound)
    }
    var copied = 0
    var missing = MissingBlocks()
    var (gap, isUnreadable) = (Read?.none, false)
    // Returns whether to continue with the next block.
    func take(_ index: UInt64, _ shape: BlockShape, _ payload: UnsafeRawBufferPointer) -> Bool {
      let start = SpoolFormat.start(ofBlock: index)
      let place = position + UInt64(copied) > start ? SpoolFormat.place(position + UInt64(copied)) : 0
      // Continue with the next block if nothing was found before it.
      guard let run = shape.run(at: place) else { return copied == 0 }
      let first = max(place, run.lowerBound)
      if copied == 0, start + UInt64(first) > position {
        gap = .missing(next: start + UInt64(first))
        return false
      }
      guard first == place, copied == 0 || start + UInt64(first) == position + UInt64(copied) else { return false }
      let count = min(run.upperBound - first, buffer.count - copied)
      UnsafeMutableRawBufferPointer(rebasing: buffer[copied..<copied + count])
        .copyMemory(from: UnsafeRawBufferPointer(rebasing: payload[first..<first + count]))
      copied += count
      return copied < buffer.count && run.upperBound == SpoolFormat.payloadSize
    }
    let (blocks, reachesTail) = searched(from: position, count: buffer.count)
    let limit = SpoolFormat.blockIndex(position) + UInt64(buffer.count / SpoolFormat.payloadSize) + 2
    var goesOn = true
    // First the range that the caller requested, and further only if necessary.
    for part in [blocks.clamped(to: 0..<limit), blocks.clamped(to: limit..<max(limit, blocks.upperBound))] where goesOn
    {
      if copied > 0 { break }
      try reader.visit(part) { block throws(SpoolError) in
        if let shape = block.shape {
          for run in missing.take(before: block.index, shape) { note(run) }
          goesOn = take(block.index, shape, block.payload)
        } else {
          missing.add(block)
          isUnreadable = isUnreadable || block.content == nil
          goesOn = copied == 0
        }
        return goesOn
      }
    }
    // The tail is in memory, so it does not show that the disk can read again.
    let isDiskRead = gap != nil
    if goesOn, reachesTail {
      for run in missing.take(before: tail.index, tail.shape) { note(run) }
      goesOn = tail.payload.withUnsafeBytes { take(tail.index, tail.shape, $0) }
    }
    for run in missing.runs where run.kind != .unwritten { note(run) }
    if copied > 0 { return .bytes(copied) }
    var next = min(head, SpoolFormat.start(ofBlock: blocks.upperBound))
    if case .missing(let position)? = gap { next = position }
    return isUnreadable ? .unreadable(next: next, isProven: isDiskRead) : .missing(next: next)
  }

  /// The blocks to search for `position`, and whether the tail follows them.
  private func searched(from position: UInt64, count: Int) -> (Range<UInt64>, reachesTail: Bool) {
    let first = SpoolFormat.blockIndex(position)
    let end = min(tail.index, first + SpoolFormat.longestSearch)
    return (first..<max(first, end), end == tail.index && !tail.isEmpty)
  }

  /// When the byte at `position` was captured, with the precision of a block: in milliseconds since 1970, as passed to
  /// ``append(_:at:time:)``. Nil if there is no byte.
  ///
  /// - Throws: ``SpoolError``, with `EIO` if the disk cannot read the block.
  package func time(at position: UInt64) throws(SpoolError) -> Int64? {
    guard (oldest..<head).contains(position) || position == oldest && oldest < head else { return nil }
    let index = SpoolFormat.blockIndex(position)
    if index == tail.index { return tail.shape.time }
    var time: Int64?
    try reader.visit(index..<index + 1) { block throws(SpoolError) in
      guard block.content != nil else { throw SpoolError(.system(.init(operation: "read", code: EIO)), path: path) }
      time = block.shape?.time
      return false
    }
    return time
  }
}
