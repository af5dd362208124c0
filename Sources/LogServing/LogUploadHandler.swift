// Selects the handler of a request: creation, append, query or plain stream.

package import HTTPMessages
package import HTTPServer
internal import ResumableUploads
internal import StreamServing

/// Serves the requests of one loop from the log of uploads. Between requests, no state of an upload is kept here, so
/// any server with the same log serves any request.
package final class LogUploadHandler {
  /// The beginning of the paths of upload resources.
  static let prefix = "/.uploads/"

  private let log: UploadLog

  package init(_ log: UploadLog) { self.log = log }

  /// Whether a request does not use the protocol of resumable uploads.
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
      // An append that a front end sent to a wrong path must not create an upload.
      guard ["POST", "PUT"].contains(head.method) else { return plain(head) }
      return serve(head) { fields in
        guard fields.offset <= StreamPlacement.largestOffset else {
          return Self.refusal(400, StreamConflict.largeHole.reason)
        }
        return LogTransfer(log, head, request, fields, creatingIn: StreamName.randomID())
      }
    case .append(let request): return LogTransfer(log, head, request, appendingTo: token ?? "")
    case .retrieve(let version): return LogQuery(log, head, token: token ?? "", version, .retrieve)
    case .cancel(let version): return LogQuery(log, head, token: token ?? "", version, .cancel)
    }
  }

  /// The handler of a request without the protocol, which begins or continues a stream.
  private func plain(_ head: RequestHead) -> any RequestHandler {
    switch head.method {
    case "POST", "PUT": serve(head) { LogTransfer(plain: log, head, $0) }
    default: OtherRequests.handler(for: head)
    }
  }

  /// The handler of a request with valid fields about its stream.
  private func serve(
    _ head: RequestHead, _ handler: (StreamRequestFields) -> any RequestHandler
  ) -> any RequestHandler {
    do throws(StreamRequestFields.Flaw) {
      return handler(try StreamRequestFields(head.fields))
    } catch {
      return Self.refusal(400, error.reason)
    }
  }

  private static func refusal(_ status: Int, _ reason: String) -> FixedResponseHandler {
    FixedResponseHandler(StreamAnswer.refused(status, nil, reason, retries: false))
  }
}
