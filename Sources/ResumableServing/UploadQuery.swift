// A request to an upload resource that brings no bytes: HEAD, GET or DELETE.

internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// A request to a resource that is answered at once or when the disk is done.
final class UploadQuery: RequestHandler {
  let version: InteropVersion
  private let start: (UploadQuery) -> Void
  private var exchange: (any Exchange)?
  private(set) var peer = ""

  init(_ version: InteropVersion, start: @escaping (UploadQuery) -> Void) {
    self.version = version
    self.start = start
  }

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    start(self)
  }

  // Content of such a request has no meaning (RFC 9110, section 9.3.1), so it is never requested.
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) { exchange = nil }
  // Its answer takes at most one sync.
  func serverStops() {}

  func respond(_ answer: ServerAnswer) {
    let exchange = exchange
    self.exchange = nil
    exchange?.respond(Response(answer))
  }
}
