// A wrapped handler's view of its upload: one request whose connection never breaks.

internal import EventLoops
internal import HTTPMessages
internal import HTTPServer

/// An upload resource as the inner handler uses it. After its answer, or once it is abandoned, every call is ignored.
final class UploadResourceExchange: Exchange {
  private var resource: UploadResource?
  private let firstPeer: String
  let loop: EventLoop

  init(_ resource: UploadResource, peer: String) {
    self.resource = resource
    firstPeer = peer
    loop = resource.resources.loop
  }

  /// The peer of the active request.
  var peer: String { resource?.peer ?? firstPeer }

  func cutOff() { resource = nil }

  func acceptBody() { resource?.handlerAccepts() }
  func sendInterim(_ status: Int, _ fields: HeaderFields) { resource?.handlerSendsInterim(status, fields) }

  func respond(_ response: Response) {
    let resource = resource
    self.resource = nil
    resource?.handlerResponds(response)
  }

  func takeArrived() { resource?.takeArrived() }
  func pauseBody() { resource?.content.pause() }
  func resumeBody() { resource?.content.resume() }

  func disconnect() {
    let resource = resource
    self.resource = nil
    resource?.handlerLeaves()
  }
}
