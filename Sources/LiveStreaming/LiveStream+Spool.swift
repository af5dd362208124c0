// The end of a stream that a spool keeps: what the disk has by then.

internal import EventLoops

extension LiveStream {
  /// How long the disk may take at the end: as long as the network may, within these bounds.
  private static let diskLimits = Duration.seconds(1)...Duration.seconds(5)

  /// Has the spool keep what was not delivered, but not for longer than a disk takes that works.
  func end(_ spool: SpoolLink, isDelivered: Bool, then done: @escaping () -> Void) {
    afterSpool = done
    let limits = Self.diskLimits
    diskTimer = loop.schedule(
      after: finishLimit.map { min(max($0, limits.lowerBound), limits.upperBound) } ?? limits.upperBound
    ) { [self] in
      // Without pauses: these are positions in the spool.
      let head = content.newest - min(content.newest, content.pausedByteCount)
      spoolHasEnded(notSynchronized: isDelivered ? 0 : spool.notSynchronized(upTo: head))
    }
    spool.end(isDelivered: isDelivered) { [self] inMemory in
      loop.execute { [self] in
        spoolHasEnded(notSynchronized: inMemory)
      }
    }
  }

  private func spoolHasEnded(notSynchronized count: UInt64) {
    guard let done = afterSpool else { return }
    afterSpool = nil
    if let diskTimer { loop.cancel(diskTimer) }
    diskTimer = nil
    notSynchronized = count
    done()
  }
}
