// Room in a spool: which bytes go when there is too little, or when they are too old.

internal import EventLoops
internal import Spool

extension SpoolThread {
  /// How many blocks are looked at for their age in each interval: each is a read.
  private static let evictedAtOnce = 1024

  /// Lets the oldest bytes go if there is no room for `count` more of a stretch; false if they must stay.
  func makeRoom(for count: UInt64, _ writer: StretchWriter, _ file: SpoolFile) -> Bool {
    for writer in writers { writer.releaseAcknowledged() }
    if settings.evicts, writer.position.addingSaturated(count) > file.oldest.addingSaturated(file.capacity) {
      writer.evict(upTo: writer.leastOldest(for: count, in: file))
    }
    // What a killed process has left in memory was captured within the limit: its file has room for it.
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
    writer.evict(upTo: file.oldest + evicted)
    return evicted
  }

  /// Lets go what was captured too long ago.
  func evictOld() {
    guard let retention = settings.retention, WallClock.isSynchronized == true else { return }
    let limit = WallClock.now.sinceEpoch - retention.nanoseconds / 1_000_000
    // Until the oldest that is there is young enough, or the reads of one interval are used up.
    if let oldest = left.first(where: { $0.keptByteCount > 0 }) { _ = open(oldest) }
    for writer in writers {
      guard let file = writer.file else { continue }
      for _ in 0..<Self.evictedAtOnce where file.oldest < file.head {
        // What cannot be read is of no age.
        if let time = (try? file.time(at: file.oldest)) ?? nil, time >= limit { break }
        writer.evict(upTo: SpoolFile.nextBlock(after: file.oldest))
      }
    }
  }
}
