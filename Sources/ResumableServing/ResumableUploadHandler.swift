// Resumable uploads around any handler: decides whether the protocol or the inner handler answers a request.

package import HTTPMessages
package import HTTPServer
internal import ResumableUploads
package import StreamServing

/// Wraps the handlers of a router, so that each request to them can be made in parts, over as many connections as
/// necessary (draft-ietf-httpbis-resumable-upload).
///
/// The inner handler receives one ordinary request: the method, the target and the fields of the creation without those
/// of the protocol. It receives `begin` once, the body in order, and `end` once. It receives `aborted` only if the
/// upload was abandoned. Its response goes to the active request, with `Upload-Complete: ?1`, and is kept for a client
/// that did not receive it. An answer that asks the client to try again later (503 or 507 with `Retry-After`) is not a
/// response to the upload, which continues where it was.
///
/// After a restart, the request is made again and the body is passed from its beginning, unless the handler keeps it
/// itself. Fields that carry credentials, such as `Cookie` or `X-Api-Key`, are never written, so the request lacks them
/// then.
///
/// Requests without the protocol's fields, or in an unknown version, are passed on unchanged.
package final class ResumableUploadHandler {
  /// The path below which upload resources are.
  static let prefix = "/.uploads/"

  private let resources: UploadResources

  package init(_ resources: UploadResources) { self.resources = resources }

  /// The loop of a request, for an upload resource or not; nil if any loop can serve it.
  package static func owner(of head: RequestHead, among loops: LoopAssignment) -> Int? {
    guard loops.count > 1 else { return nil }
    return token(of: head).map { loops.owner(ofToken: $0) } ?? loops.owner(of: head)
  }

  /// The token of the upload resource that a request is for; nil if it is for none.
  private static func token(of head: RequestHead) -> Substring? {
    let path = head.target.path
    return path.hasPrefix(prefix) ? path.dropFirst(prefix.count) : nil
  }

  /// The handler of a request.
  package func handler(for head: RequestHead) -> any RequestHandler {
    let isResource = head.target.path.hasPrefix(Self.prefix)
    let summary = RequestSummary(
      method: head.method, target: isResource ? .uploadResource : .other, fields: head.fields,
      content: .init(head.framing))
    switch ServerRequest(summary) {
    case .plain: return resources.router(head).handler
    case .refuse(let refusal, let version):
      return FixedResponseHandler(
        Response(ServerAnswer.refused(refusal, version, limits: resources.limits)))
    case .discover(let version): return discovery(head, version)
    case .discoverResource(let version):
      return FixedResponseHandler(Response(ServerAnswer.discoveredResource(version)))
    case .create(let request): return creation(request, head)
    case .append(let request):
      return UploadTransfer(request, head: head) { [resources] transfer in
        do throws(UploadRefusal) {
          try Self.resource(of: head, resources).append(transfer)
        } catch {
          transfer.respond(ServerAnswer.refused(error, request.version, limits: resources.limits))
        }
      }
    case .retrieve(let version): return query(head, version) { $0.retrieve($1) }
    case .cancel(let version): return query(head, version) { $0.cancel($1) }
    }
  }

  private static func resource(
    of head: RequestHead, _ resources: UploadResources
  ) throws(UploadRefusal) -> UploadResource {
    let found = try resources.find(String(token(of: head) ?? ""))
    // Treat another owner's upload as unknown (section "Security Considerations").
    guard let found, found.owner.credential == head.credential else { throw .unknownResource }
    return found
  }

  private func query(
    _ head: RequestHead, _ version: InteropVersion, _ ask: @escaping (UploadResource, UploadQuery) -> Void
  ) -> any RequestHandler {
    UploadQuery(version) { [resources] query in
      do throws(UploadRefusal) {
        ask(try Self.resource(of: head, resources), query)
      } catch {
        query.respond(ServerAnswer.refused(error, version, limits: resources.limits))
      }
    }
  }

  // MARK: Creation

  private func creation(_ request: UploadTransferRequest, _ head: RequestHead) -> any RequestHandler {
    let inner = head.forUpload(length: nil)
    let routed = resources.router(inner)
    // An answer that is known before the body does not need an upload.
    if routed.handler.knownResponse != nil { return resources.router(head).handler }
    var settled = HeaderFields()
    var needed: Set<String>?
    if let keeper = routed.keeper {
      switch keeper.settle() {
      case .fields(let fields, let names): (settled, needed) = (fields, names)
      case .response(let response): return FixedResponseHandler(response)
      }
    }
    return UploadTransfer(request, head: head) { [resources, settled, needed] transfer in
      resources.create(transfer, settled: settled, needed: needed)
    }
  }

  // MARK: Discovery

  /// Asks the inner router whether a handler accepts a body, without beginning the handler.
  private func discovery(_ head: RequestHead, _ version: InteropVersion) -> any RequestHandler {
    var methods: [String] = []
    var supports = head.target.form == .asterisk
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
      if head.target.form == .asterisk { break }
      var probe = head
      probe.method = method
      // 405 and 501 mean that the resource does not support the method (RFC 9110, sections 15.5.6 and 15.6.2).
      switch resources.router(probe).handler.knownResponse?.status {
      case nil:
        supports = true
        methods.append(method)
      case 405?, 501?: break
      default: methods.append(method)
      }
    }
    guard supports else { return resources.router(head).handler }
    if head.target.form == .asterisk { methods = ["GET", "HEAD", "POST", "PUT"] }
    methods.append("OPTIONS")
    return FixedResponseHandler(
      Response(
        ServerAnswer.discovered(resources.limits, version, allow: methods.joined(separator: ", "))))
  }
}

extension RequestHead {
  /// Fields that apply only to one message, to one connection, or between its two ends.
  private static let ownFields = Set(
    UploadFieldNames.all + [
      "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect",
      "content-digest", "authorization", "proxy-authorization", "incremental",
    ])

  /// The request as its resource sees it: as if it had arrived in one piece.
  func forUpload(length: UInt64?) -> RequestHead {
    var head = self
    head.fields = fields.without(Self.ownFields)
    head.framing = length.map { .sized($0) } ?? .chunked
    head.expectsContinue = false
    return head
  }

  /// The request in an upload's record; nil if it is invalid.
  init?(_ record: UploadRecord) {
    let octets = Array(record.target.utf8)
    guard let target = try? RequestTarget(octets.span, method: record.method) else { return nil }
    self.init(
      method: record.method, target: target, minorVersion: 1, fields: record.fields,
      framing: record.length.map { .sized($0) } ?? .chunked, expectsContinue: false, keepsAlive: true)
    credential = record.credential
  }
}

private enum UploadFieldNames {
  static let all = UploadFields.all.map { $0.lowercased() }
}
