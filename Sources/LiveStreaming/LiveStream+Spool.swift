// The end of a stream with a spool: the bytes that are on the disk by then.

internal import EventLoops

extension LiveStream {
  /// The longest time for the disk at the end. It equals the time for the network, within these bounds.
  private static let diskLimits = Duration.seconds(1)...Duration.seconds(5)

  /// Makes the spool store undelivered bytes, with a time limit that a working disk can keep. If the session closes,
  /// the spool stores them afterwards.
  func end(_ spool: SpoolLink, isDelivered: Bool, then done: @escaping () -> Void) {
    afterSpool = done
    endWithoutSpool = { [self] in
      // The spool's thread may not have found the newest losses.
      _ = content.holes
      // Without pauses, because these are positions in the spool.
      let head = content.newest - min(content.newest, content.pausedByteCount)
      spoolHasEnded(notSynchronized: isDelivered ? 0 : spool.notSynchronized(upTo: head))
    }
    spool.end(isDelivered: isDelivered) { [self] inMemory in
      loop.execute { [self] in
        spoolHasEnded(notSynchronized: inMemory)
      }
    }
    // The session's thread ends before the spool's answer.
    if isSessionClosing {
      endWithoutSpool?()
      return
    }
    let limits = Self.diskLimits
    diskTimer = loop.schedule(
      after: finishLimit.map { min(max($0, limits.lowerBound), limits.upperBound) } ?? limits.upperBound
    ) { [self] in endWithoutSpool?() }
  }

  /// Keeps the stretch if a plain server has confirmed the stream, and lacks bytes of it that the spool still has. The
  /// next run sends these bytes again.
  ///
  /// - Returns: the error with which the stream ends. Nil if there are no such bytes.
  func keepMissing() -> LiveStreamError? {
    guard let spool = live?.spool, trustsTransport, let told = response?["Stream-Missing"].flatMap({ UInt64($0) })
    else { return nil }
    let (missing, lost) = (missingAtServer(told), progress().lost)
    // The server has read the last request to its end. So it lacks bytes before that.
    let (kept, last) = (content.byteCount(from: content.oldest), content.byteCount(from: transport.start))
    missingInSpool = min(missing - min(missing, lost), kept - min(kept, last))
    guard missingInSpool > 0 else { return nil }
    spool.note(nil, acknowledged: content.oldest)
    return LiveStreamError(
      .unfinished,
      "the server answered that \(missing) bytes are missing, and the spool still has \(missingInSpool) of them. "
        + "The next run sends the stretch again. If the server refuses that, move its recording away first")
  }

  private func spoolHasEnded(notSynchronized count: UInt64) {
    guard let done = afterSpool else { return }
    (afterSpool, endWithoutSpool) = (nil, nil)
    if let diskTimer { loop.cancel(diskTimer) }
    notSynchronized = count
    done()
  }
}
