// Classifies a request of the protocol by its method, target and fields alone.

package import HTTPMessages

/// What a server knows of a request before its content.
package struct RequestSummary: Equatable, Sendable {
  package enum Target: Equatable, Sendable {
    /// An upload resource, or a URL that looks like one.
    case uploadResource
    /// Anything else, `*` included.
    case other
  }

  /// How much content there is (RFC 9110, section 8.6).
  package enum Content: Equatable, Sendable {
    /// Neither `Content-Length` nor a transfer coding.
    case absent
    /// A valid `Content-Length`, in bytes.
    case sized(UInt64)
    /// Content that ends with the transfer.
    case unsized

    /// Whether any byte can arrive.
    package var mayHaveBytes: Bool { self != .absent && self != .sized(0) }
  }

  package var method: String
  package var target: Target
  package var fields: HeaderFields
  package var content: Content

  package init(method: String, target: Target, fields: HeaderFields, content: Content) {
    self.method = method
    self.target = target
    self.fields = fields
    self.content = content
  }
}

/// A request that brings bytes: the first of an upload, or a later one.
package struct UploadTransferRequest: Equatable, Sendable {
  /// The version to answer in. For a request that names none, this is the future RFC's.
  package var version: InteropVersion
  /// Where the content begins in the representation; 0 for a creation.
  package var offset: UInt64
  /// Whether the content is the rest of the representation.
  package var completes: Bool
  package var content: RequestSummary.Content
  /// `Upload-Length`, if the version has it.
  package var uploadLength: UInt64?
  /// Whether the content has a digest that the server must verify.
  package var hasDigest = false

  package init(
    version: InteropVersion, offset: UInt64, completes: Bool, content: RequestSummary.Content,
    uploadLength: UInt64? = nil
  ) {
    self.version = version
    self.offset = offset
    self.completes = completes
    self.content = content
    self.uploadLength = uploadLength
  }

  /// The length that the request indicates (section "Length"): by `Upload-Length`, or by a valid `Content-Length` of
  /// content that completes the upload. Throws ``UploadRefusal/inconsistentLength`` if the two differ.
  package func indicatedLength() throws(UploadRefusal) -> UInt64? {
    guard completes, case .sized(let count) = content else { return uploadLength }
    let (end, overflow) = offset.addingReportingOverflow(count)
    guard !overflow, uploadLength == nil || uploadLength == end else { throw .inconsistentLength }
    return end
  }
}

/// What a request asks for in the protocol.
package enum ServerRequest: Equatable, Sendable {
  /// Nothing: the server handles it without the protocol.
  case plain
  /// OPTIONS: whether uploads are supported, and within which limits (section "Limits").
  case discover(InteropVersion)
  /// Creates an upload resource (section "Upload Creation").
  case create(UploadTransferRequest)
  /// Asks an upload resource for its offset (section "Offset Retrieval").
  case retrieve(InteropVersion)
  /// Appends to one (section "Upload Append").
  case append(UploadTransferRequest)
  /// Cancels one (section "Upload Cancellation").
  case cancel(InteropVersion)
  /// Asks one which methods it allows.
  case discoverResource(InteropVersion)
  case refuse(UploadRefusal, InteropVersion)

  /// The methods that an upload resource supports, for `Allow`.
  package static let resourceMethods = "HEAD, GET, PATCH, DELETE, OPTIONS"
  /// Methods whose requests have no content that could be uploaded (RFC 9110, section 9.3).
  private static let withoutContent: Set<String> = ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "CONNECT"]

  package init(_ request: RequestSummary) {
    let named = InteropVersion.Named(request.fields)
    // A request without a version uses the future RFC, which differs from the newest draft only in the field.
    let version: InteropVersion
    switch named {
    case .known(let known): version = known
    case .absent: version = .none
    case .unknown: version = .newest
    }
    switch request.target {
    case .uploadResource: self = Self.toResource(request, version, isKnown: named != .unknown)
    case .other: self = Self.toOther(request, version, isKnown: named != .unknown)
    }
  }

  private static func toResource(
    _ request: RequestSummary, _ version: InteropVersion, isKnown: Bool
  ) -> ServerRequest {
    if request.method == "OPTIONS" { return .discoverResource(version) }
    guard ["HEAD", "GET", "PATCH", "DELETE"].contains(request.method) else {
      return .refuse(.methodNotAllowed, version)
    }
    // The meaning of an offset may have changed, so refuse rather than give a wrong answer.
    guard isKnown else { return .refuse(.unsupportedVersion, version) }
    if request.method != "PATCH", version.refusesAppendFields, version.hasAppendFields(request.fields) {
      return .refuse(.appendFields, version)
    }
    switch request.method {
    case "HEAD", "GET": return .retrieve(version)
    case "DELETE": return .cancel(version)
    default: break
    }
    if version.namesMediaType, !isPartialUpload(request.fields["Content-Type"]) {
      return .refuse(.mediaType, version)
    }
    guard let offset = UploadFields.offset(request.fields) else { return .refuse(.missingOffset, version) }
    guard let completes = version.completeness(request.fields) else { return .refuse(.missingCompleteness, version) }
    return .append(
      UploadTransferRequest(
        version: version, offset: offset, completes: completes, content: request.content,
        uploadLength: version.hasLimits ? UploadFields.length(request.fields) : nil))
  }

  private static func toOther(_ request: RequestSummary, _ version: InteropVersion, isKnown: Bool) -> ServerRequest {
    // Also with `Upload-Complete`, because a method without content cannot create anything.
    if request.method == "OPTIONS" { return .discover(version) }
    guard !withoutContent.contains(request.method) else { return .plain }
    guard isKnown else {
      // A client that sends everything in one request loses only the ability to resume. A part must not be mistaken for
      // the whole representation.
      let isPart =
        InteropVersion.drafts.contains { $0.completeness(request.fields) == false }
      return isPart ? .refuse(.unsupportedVersion, version) : .plain
    }
    guard let completes = version.completeness(request.fields) else { return .plain }
    return .create(
      UploadTransferRequest(
        version: version, offset: 0, completes: completes, content: request.content,
        uploadLength: version.hasLimits ? UploadFields.length(request.fields) : nil))
  }

  /// Ignores parameters behind the media type, which do not change it (RFC 9110, section 8.3.1).
  private static func isPartialUpload(_ contentType: String?) -> Bool {
    guard let contentType else { return false }
    // Compare octets: Swift treats the Greek question mark as equal to a semicolon, and combining characters as part of
    // it.
    let type = contentType.utf8.prefix { $0 != UInt8(ascii: ";") }.filter { $0 != 0x20 && $0 != 0x09 }
    return String(decoding: type, as: UTF8.self).isSameWord(as: UploadFields.partialUpload)
  }
}
