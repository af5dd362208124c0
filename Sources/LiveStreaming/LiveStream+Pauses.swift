// Pauses of the source that are longer than the buffer. The current request ends before the pause, and another begins
// after it.

internal import EventLoops
internal import UploadClient

extension LiveStream {
  /// A plain request is interrupted when everything has been delivered for this long.
  private static let deliveryRest = Duration.seconds(1)
  private static let deliveryLook = Duration.milliseconds(250)

  /// Handles that the next byte is after a pause. May be called from within libcurl.
  func reachedPause() {
    guard trustsTransport else {
      // Its response reports the server's offset, and the next request sends the bytes after the pause.
      _ = content.endBody(atLeast: 0)
      return
    }
    // The end of a plain request is the end of its stream. So it must be interrupted, at a time when no bytes can be
    // lost.
    if pauseTimer == nil { lookForDelivery(rest: .zero) }
  }

  /// The server has stored the bytes before `offset`, and an earlier process has passed the pauses before it. So they
  /// are also passed here.
  func passPauses(before offset: UInt64) {
    while offset > content.head, content.head < content.newest {
      let head = content.head
      release(upTo: head)
      guard content.head > head else { return }
    }
  }

  private func lookForDelivery(rest: Duration) {
    pauseTimer = loop.schedule(after: Self.deliveryLook) { [unowned self] in
      pauseTimer = nil
      guard let request, let writer, trustsTransport, writer.isAtPause else { return }
      // Bytes that are held back are not delivered.
      if isSuspended { return lookForDelivery(rest: .zero) }
      guard request.task.isDelivered else { return lookForDelivery(rest: .zero) }
      guard rest + Self.deliveryLook >= Self.deliveryRest else {
        return lookForDelivery(rest: rest + Self.deliveryLook)
      }
      let offset = writer.cursor
      takeCounts()
      release(upTo: offset)
      perform(machine.passedPause(at: offset, content.supply, now: .now))
    }
  }
}
