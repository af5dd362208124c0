// Which request is which: creations, appends, questions, plain streams.

package import HTTPMessages
package import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// Serves the requests of one loop from the log of uploads. Nothing of an upload is kept here longer than a request
/// lasts, so any server with the same log serves any request.
package final class LogUploadHandler {
  /// Where upload resources are.
  static let prefix = "/.uploads/"

  private let log: UploadLog

  package init(_ log: UploadLog) { self.log = log }

  /// Whether a request has nothing of the protocol of resumable uploads.
  package static func isPlain(_ head: RequestHead) -> Bool {
    if case .plain = kind(of: head).request { true } else { false }
  }

  private static func kind(of head: RequestHead) -> (request: ServerRequest, token: String?) {
    let path = head.target.path
    let token = path.hasPrefix(prefix) ? String(path.dropFirst(prefix.count)) : nil
    let summary = RequestSummary(
      method: head.method, target: token == nil ? .other : .uploadResource, fields: head.fields,
      content: .init(head.framing))
    return (ServerRequest(summary), token)
  }

  /// The handler of a request.
  package func handler(for head: RequestHead) -> any RequestHandler {
    let (request, token) = Self.kind(of: head)
    switch request {
    case .plain: return plain(head)
    case .refuse(let refusal, let version):
      return FixedResponseHandler(Response(ServerAnswer.refused(refusal, version, limits: log.limits)))
    case .discover(let version):
      return FixedResponseHandler(Response(ServerAnswer.discovered(log.limits, version, allow: OtherRequests.methods)))
    case .discoverResource(let version):
      return FixedResponseHandler(Response(ServerAnswer.discoveredResource(version)))
    case .create(let request):
      // An append that a front end has sent astray creates nothing.
      guard ["POST", "PUT"].contains(head.method) else { return plain(head) }
      if let refusal = Self.flaw(head) { return refusal }
      return LogTransfer(log, head, request, creatingIn: StreamName.randomID())
    case .append(let request): return LogTransfer(log, head, request, appendingTo: token ?? "")
    case .retrieve(let version): return LogQuery(log, head, token: token ?? "", version, .retrieve)
    case .cancel(let version): return LogQuery(log, head, token: token ?? "", version, .cancel)
    }
  }

  /// A request without the protocol: a stream in one piece.
  private func plain(_ head: RequestHead) -> any RequestHandler {
    switch head.method {
    case "POST", "PUT":
      if let refusal = Self.flaw(head) { return refusal }
      guard head.fields.single("stream-offset").map({ $0 == "0" }) ?? true else {
        return FixedResponseHandler(
          Response(
            409, body: "This server continues a stream by resumable uploads only: send Upload-Complete and PATCH.\n"))
      }
      return LogTransfer(plain: log, head, creatingIn: StreamName.randomID())
    default: return OtherRequests.handler(for: head)
    }
  }

  /// The response to a request whose fields about its stream cannot be used; nil if they can.
  private static func flaw(_ head: RequestHead) -> FixedResponseHandler? {
    if let id = head.fields["stream-id"], head.fields.count("stream-id") > 1 || !StreamName.isValidID(id) {
      return FixedResponseHandler(
        Response(400, body: "Stream-ID is one to 64 letters, digits, dots, hyphens and underscores.\n"))
    }
    if head.fields.count("stream-offset") > 0, LogTransfer.streamStart(head) == nil {
      return FixedResponseHandler(Response(400, body: "Stream-Offset is a number of bytes.\n"))
    }
    return nil
  }
}
