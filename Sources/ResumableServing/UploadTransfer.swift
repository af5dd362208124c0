// The HTTP side of one request that creates or appends. It passes everything to its upload resource.

internal import HTTPMessages
internal import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// A creation or an append. It lives as long as its request. The upload resource outlives it.
final class UploadTransfer: RequestHandler {
  private(set) var request: UploadTransferRequest
  /// The request as it arrived.
  let head: RequestHead
  /// The digest that the content must match, if the request has one.
  let digest: ContentDigest?
  /// Whose request this is.
  private(set) var client: UploadOwner
  var authorization = AuthorizationCheck()
  private let start: (UploadTransfer) -> Void
  private(set) var exchange: (any Exchange)?
  private(set) var peer = ""
  /// Set while the transfer is active on a resource.
  var resource: UploadResource?
  /// The number of this transfer among the resource's.
  var number = 0
  var isCreation: Bool { number == 1 }
  /// Whether the client knows its upload's URL.
  private var isAnnounced = false

  /// - Parameter start: finds or creates the resource, once the peer is known.
  init(
    _ request: UploadTransferRequest, head: RequestHead, start: @escaping (UploadTransfer) -> Void
  ) {
    digest = ContentDigest(head.fields)
    self.request = request
    self.request.hasDigest = digest != nil
    self.head = head
    client = UploadOwner(credential: head.credential, address: "")
    self.start = start
  }

  // MARK: RequestHandler

  func begin(_ exchange: any Exchange) {
    self.exchange = exchange
    peer = exchange.peer
    client = UploadOwner(credential: head.credential, address: exchange.peer)
    start(self)
  }

  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) { resource?.received(bytes, pieces: pieces, by: self) }
  func end() { resource?.contentEnded(self) }

  func aborted(_ reason: AbortReason) {
    exchange = nil
    let resource = resource
    self.resource = nil
    resource?.interrupted(self, reason.description)
  }

  /// A request of known length ends by itself. Its client, which may not support 104 responses, should not get a 503.
  var canBeContinued: Bool { request.content == .unsized && (isAnnounced || !isCreation) }

  func serverStops() {
    if let resource { resource.serverStops(self) } else { respond(Response(503, ["retry-after": "2"])) }
  }

  // MARK: Answers

  func respond(_ response: Response) {
    // Released first, because the connection releases us as well and then sends no more events.
    let exchange = exchange
    self.exchange = nil
    resource = nil
    exchange?.respond(response)
  }

  func respond(_ answer: ServerAnswer) { respond(Response(answer)) }

  func sendInterim(_ fields: HeaderFields) {
    isAnnounced = true
    exchange?.sendInterim(UploadFields.resumptionSupported, fields)
  }

  /// Whether the client can still be answered.
  var isOpen: Bool { exchange != nil }

  /// Pauses the content until ``resume()``.
  func pause() { exchange?.pauseBody() }
  func resume() { exchange?.resumeBody() }

  /// Ends the connection without an answer.
  func cutOff() {
    let exchange = exchange
    self.exchange = nil
    resource = nil
    exchange?.disconnect()
  }
}
