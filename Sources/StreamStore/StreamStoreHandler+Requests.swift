// A plain request, as seen by the connection.

internal import HTTPMessages
package import HTTPServer
internal import StreamServing

extension StreamStoreHandler: RequestHandler {
  package func begin(_ exchange: any Exchange) {
    guard head.framing != .absent else {
      self.exchange = exchange
      peer = exchange.peer
      return refuse(411, StreamAnswer.withoutLength)
    }
    enter(exchange, restoredCount: nil)
  }

  package func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    guard isStillAuthorized(within: .seconds(1)) else { return withdraw() }
    digest?.update(bytes, pieces)
    guard let error = keep(bytes, pieces: pieces), let stream else { return }
    fail(stream, error)
  }

  package func end() {
    guard isStillAuthorized(within: .zero) else { return withdraw() }
    endBody()
  }

  package func aborted(_ reason: AbortReason) {
    if let stream { interrupt(stream, reason.description) }
    endState()
    exchange = nil
  }

  /// The client of a live stream with a `Stream-ID` can continue it (`Stream-Offset`).
  package var canBeContinued: Bool { head.framing == .chunked && head.fields.count("stream-id") > 0 }

  package func serverStops() {
    switch state.phase {
    case .streaming:
      guard stream?.isComplete == false else { return }
      // TCP has acknowledged these bytes to the client.
      exchange?.takeArrived()
      guard let stream else { return }
      turnAway(stream, 503, StreamAnswer.stopping)
    case .new, .waiting:
      endState()
      answer(503, nil, StreamAnswer.stopping, retries: true)
    case .done: break
    }
  }

  /// A newer request continues the stream. All bytes that have arrived here are stored, and then this connection ends.
  func yieldStream() {
    exchange?.takeArrived()
    guard let stream else { return }
    if isUpload { leave(stream) } else { interrupt(stream, "a newer request continues the stream") }
    endState()
    exchange?.disconnect()
    exchange = nil
  }
}
