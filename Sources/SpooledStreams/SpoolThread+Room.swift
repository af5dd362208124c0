// Space in a spool: which bytes are dropped when there is too little, or when they are too old.

internal import EventLoops
internal import Spool

extension SpoolThread {
  /// How many blocks are checked for their age in each interval. Each check is a read.
  private static let evictedAtOnce = 1024

  /// The time of a block that was captured while the clock was not synchronized. A machine without a battery for its
  /// clock starts with an old time, and its data would seem to be old as soon as the clock is set.
  static let unknownTime: Int64 = 0

  /// Whether the clock was ever synchronized during this process. After that, it is correct for days without a network,
  /// although the kernel then no longer counts it as synchronized.
  private static let hasTrueTime = Lock(false)

  /// The time for new blocks.
  static var captureTime: Int64 {
    let isTrue = hasTrueTime.withLock { hasTrueTime in
      if !hasTrueTime, WallClock.isSynchronized == true { hasTrueTime = true }
      return hasTrueTime
    }
    return isTrue ? WallClock.now.sinceEpoch : unknownTime
  }

  /// Drops the oldest bytes if there is no space for `count` more of a stretch. Returns false if they must stay.
  func makeRoom(for count: UInt64, _ writer: StretchWriter, _ file: SpoolFile) -> Bool {
    for writer in writers { writer.releaseAcknowledged() }
    if settings.evicts, writer.position.addingSaturated(count) > file.oldest.addingSaturated(file.capacity) {
      writer.evict(upTo: writer.leastOldest(for: count, in: file))
    }
    // Bytes that a killed process has left in memory were captured within the limit, and its file has space for them.
    guard writer === current else { return true }
    let kept = left.reduce(writer.keptByteCount) { $0.addingSaturated($1.keptByteCount) }
    guard kept.addingSaturated(count) > settings.limit else { return true }
    guard settings.evicts else { return false }
    var excess = kept.addingSaturated(count) - settings.limit
    for stretch in left where excess > 0 && stretch.keptByteCount > 0 {
      guard let left = open(stretch)?.writer else { continue }
      excess -= evict(left, atMost: excess)
    }
    excess -= evict(writer, atMost: excess)
    return excess == 0
  }

  private func evict(_ writer: StretchWriter, atMost count: UInt64) -> UInt64 {
    guard let file = writer.file else { return 0 }
    let evicted = min(count, writer.keptByteCount)
    writer.evict(upTo: file.position(afterKeeping: evicted))
    return evicted
  }

  /// Drops bytes that were captured too long ago.
  func evictOld() {
    guard let retention = settings.retention, WallClock.isSynchronized == true else { return }
    let limit = WallClock.now.sinceEpoch - retention.nanoseconds / 1_000_000
    // Until the oldest remaining byte is young enough, or the reads of one interval are used up.
    if let oldest = left.first(where: { $0.keptByteCount > 0 }) { _ = open(oldest) }
    for writer in writers {
      guard let file = writer.file else { continue }
      for _ in 0..<Self.evictedAtOnce where file.oldest < file.head {
        // The age of a block that the disk cannot read now is unknown, and that of a damaged one does not matter.
        guard let time = try? file.time(at: file.oldest) ?? .min, time != Self.unknownTime, time < limit else { break }
        writer.evict(upTo: SpoolFile.nextBlock(after: file.oldest))
      }
    }
  }
}
