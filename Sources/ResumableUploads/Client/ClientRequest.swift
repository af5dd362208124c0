// What a client sends and receives, independent of how it is transferred.

package import HTTPMessages

/// A request that the protocol requires. The sender adds the user's parts: credentials, and on a creation also the
/// method and the representation's metadata.
package struct ClientRequest: Equatable, Sendable {
  package enum Purpose: Equatable, Sendable {
    /// Asks the target whether it supports resumable uploads (section "Limits"): OPTIONS, without side effects.
    case discovery
    /// Creates the upload resource (section "Upload Creation"), at the target, with the user's method.
    case creation
    /// Asks the upload resource for its offset (section "Offset Retrieval"): HEAD.
    case offsetRetrieval
    /// Appends to it (section "Upload Append"): PATCH.
    case append
    /// Cancels it (section "Upload Cancellation"): DELETE.
    case cancellation
  }

  package enum Content: Equatable, Sendable {
    /// The request has no content and no field that describes any.
    case absent
    /// Content of zero bytes.
    case empty
    /// The bytes from this stream offset on: up to the newest one, at most `maximum`.
    case bytes(from: UInt64, maximum: UInt64?)
  }

  package var purpose: Purpose
  /// The upload resource's absolute URL; nil for the target.
  package var url: String?
  /// The protocol's own fields.
  package var fields: HeaderFields
  package var content: Content
  /// POST, if the server accepts no creation with the user's method.
  package var creationMethod: String?

  /// nil if the user chooses it.
  package var method: String? {
    switch purpose {
    case .discovery: "OPTIONS"
    case .creation: creationMethod
    case .offsetRetrieval: "HEAD"
    case .append: "PATCH"
    case .cancellation: "DELETE"
    }
  }
}

/// The head of a response, interim or final.
package struct ClientAnswer: Equatable, Sendable {
  package var status: Int
  package var fields: HeaderFields
  /// `Location` as an absolute URL; nil if there is none or it is invalid.
  package var location: String?
  /// A final response that came before the request's content had ended.
  package var isEarly: Bool
  /// `Location` leads from https to http, so it is ignored.
  package var isLocationInsecure = false

  package init(status: Int, fields: HeaderFields, location: String? = nil, isEarly: Bool = false) {
    self.status = status
    self.fields = fields
    self.location = location
    self.isEarly = isEarly
  }

  package var isSuccess: Bool { (200..<300).contains(status) }

  /// A refusal of credentials, which may change later. How long to wait for that is not part of the protocol.
  package var isRefusal: Bool { [401, 403, 407].contains(status) }

  /// Whether this is a refusal without a meaning in the protocol. It may come from a portal or from a server that is
  /// being reconfigured, so another attempt may have another result.
  package var isVagueRefusal: Bool {
    guard status >= 300, status != 413, !allowsRetry, !isRefusal else { return false }
    // With such a field, these are about the bytes that the server stores.
    return ![409, 410].contains(status) || !speaksOfUploads
  }

  /// Whether this may come from something that does not support the protocol: a success or a vague refusal, without any
  /// field of the protocol.
  var isForeign: Bool { !speaksOfUploads && (isSuccess || isVagueRefusal) }

  /// Whether it has a field of the protocol, or one that names a stream.
  private var speaksOfUploads: Bool {
    (UploadFields.all + ["Stream-ID", "Stream-Offset"]).contains { fields.contains($0) }
  }

  /// The methods that `Allow` names (RFC 9110, section 10.2.1).
  var allowedMethods: [Substring] {
    fields["Allow"]?.split { $0 == "," || $0 == " " || $0 == "\t" } ?? []
  }

  /// Whether the status allows a retry: the client then retrieves the offset and continues.
  package var allowsRetry: Bool { RetriedStatus.contains(status) }
}

/// Which part of the stream is available, in stream offsets.
package struct Supply: Equatable, Sendable {
  /// The oldest byte that can still be sent.
  package var oldest: UInt64
  /// One past the newest byte.
  package var head: UInt64
  /// Whether `head` is the end of the stream.
  package var isFinished: Bool
  /// Whether the stream ends at `head` only because its source failed. No upload resource is completed there.
  package var isCutOff: Bool
  /// Where to begin when the next bytes to send are gone: slightly behind `oldest`, so that the buffer does not discard
  /// these bytes as well before they are sent.
  package var restart: UInt64
  /// Offsets before `oldest` that contain no bytes, because the source produced nothing for longer than the buffer
  /// keeps.
  package var pause: Range<UInt64>?
  /// Whether such a pause begins at `head`. Nothing follows the bytes before it in their upload resource.
  package var pausesAtHead: Bool

  package init(
    oldest: UInt64, head: UInt64, isFinished: Bool, isCutOff: Bool = false, restart: UInt64? = nil,
    pause: Range<UInt64>? = nil, pausesAtHead: Bool = false
  ) {
    self.isCutOff = isCutOff
    self.pause = pause
    self.pausesAtHead = pausesAtHead
    self.oldest = oldest
    self.head = head
    self.isFinished = isFinished
    self.restart = restart ?? oldest
  }
}
