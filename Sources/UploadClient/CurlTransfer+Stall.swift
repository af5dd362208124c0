// Detects that the peer of a request no longer accepts data.

internal import CCurl
internal import EventLoops

/// The bytes that a request has moved so far. If two are equal, nothing has moved in between.
package struct RequestTraffic: Equatable, Sendable {
  /// The number of body bytes that libcurl has passed to the connection.
  var passedOn: UInt64
  /// The number of bytes of response heads.
  var heard: Int
  /// The number of bytes on the connection that the peer's TCP has not acknowledged, and of those that it has.
  package var queued: UInt64
  var acknowledged: UInt64
}

extension CurlTransfer {
  /// Checks periodically until the request is idle or has its response. It costs nothing while the request is idle.
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

  func lookForStall() -> StallWatch.Look {
    let isWaiting = machine.state == .sending && !isPaused && !task.isSuspended
    return StallWatch.Look(
      isWaiting: isWaiting, passedOn: passedOnByteCount, heard: task.responseHeaderByteCount,
      kernel: isWaiting ? kernel : nil)
  }

  /// How much has moved on the connection in either direction.
  var traffic: RequestTraffic {
    RequestTraffic(
      passedOn: passedOnByteCount, heard: task.responseHeaderByteCount, queued: kernel?.queued ?? 0,
      acknowledged: kernel?.acknowledged ?? 0)
  }

  /// Nil if the connection also carries other requests.
  private var kernel: StallWatch.Kernel? {
    guard multi?.sharesConnections == false, let connection, connection.isOpen else { return nil }
    return AcknowledgedBytes.kernel(of: connection.socket)
  }

  /// The number of body bytes that libcurl has passed on to the connection. It may retain others.
  var passedOnByteCount: UInt64 {
    var count: curl_off_t = 0
    _ = sluice_getinfo_offset(easy, CURLINFO_SIZE_UPLOAD_T, &count)
    return UInt64(clamping: count)
  }
}
