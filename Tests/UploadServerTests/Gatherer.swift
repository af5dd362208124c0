// A handler that receives the body of a request as a whole.

import UploadServer

/// Collects a body and returns it at its end.
final class Gatherer: RequestHandler {
  private let done: ([UInt8]) -> Void
  private var exchange: (any Exchange)?
  private var body: [UInt8] = []

  init(_ done: @escaping ([UInt8]) -> Void) { self.done = done }

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    exchange.acceptBody()
  }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {
    for piece in pieces { for index in piece { body.append(bytes[index]) } }
  }
  func end() {
    done(body)
    exchange?.respond(Response(200))
  }
  func aborted(_ reason: AbortReason) {}
  func serverStops() {}
}
