// How a request notices that its peer accepts nothing any more.

internal import CCurl
internal import EventLoops

extension CurlTransfer {
  /// Looks from time to time until the request rests or has its answer. Costs nothing while it rests.
  func watchForStall() {
    let limit = request.limits.unacknowledged
    guard stallTimer == nil, !machine.isOver, limit > .zero else { return }
    lookAgain(StallWatch(limit: limit, lookForStall(), now: .now))
  }

  private func lookAgain(_ watch: StallWatch) {
    stallTimer = loop.schedule(after: watch.interval) { [weak self] in
      guard let self else { return }
      stallTimer = nil
      let look = lookForStall()
      guard look.isWaiting else { return }
      var watch = watch
      guard watch.isStalled(look, now: .now) else { return lookAgain(watch) }
      let seconds = request.limits.unacknowledged.seconds
      end(timedOut: "the peer has accepted nothing for \(seconds) s")
    }
  }

  private func lookForStall() -> StallWatch.Look {
    let isWaiting = machine.state == .sending && !isPaused && !task.isSuspended
    var passedOn: curl_off_t = 0
    _ = sluice_getinfo_offset(easy, CURLINFO_SIZE_UPLOAD_T, &passedOn)
    var kernel: StallWatch.Kernel?
    if isWaiting, multi?.sharesConnections == false, let connection, connection.isOpen {
      kernel = AcknowledgedBytes.kernel(of: connection.socket)
    }
    return StallWatch.Look(
      isWaiting: isWaiting, passedOn: UInt64(clamping: passedOn), heard: task.responseHeaderByteCount, kernel: kernel)
  }
}
