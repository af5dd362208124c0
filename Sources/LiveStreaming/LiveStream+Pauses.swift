// A source that gave nothing for longer than its buffer holds: the request under way ends before that, and another
// begins behind it.

internal import EventLoops
internal import UploadClient

extension LiveStream {
  /// How long everything has to be delivered before a plain request is broken off.
  private static let deliveryRest = Duration.seconds(1)
  private static let deliveryLook = Duration.milliseconds(250)

  /// The next byte to be sent is behind a pause. Called from within libcurl, perhaps.
  func reachedPause() {
    guard trustsTransport else {
      // Its answer says what the server has, and the next request is for what follows.
      _ = content.endBody(atLeast: 0)
      return
    }
    // The end of a plain request is the end of its stream. It has to be broken off, when nothing of it can be lost by
    // that.
    if pauseTimer == nil { lookForDelivery(rest: .zero) }
  }

  /// The server has what is before `offset`, and an earlier process has passed the pauses before it: so they are passed
  /// here, too.
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
