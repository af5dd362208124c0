// What a client sends and what it is answered, without anything of how that happens.

package import HTTPMessages

/// A request that the protocol calls for. Whoever sends it adds what belongs to the user: credentials, and on a
/// creation the method and the representation's metadata.
package struct ClientRequest: Equatable, Sendable {
  package enum Purpose: Equatable, Sendable {
    /// Asks the target whether it supports resumable uploads (section "Limits"): OPTIONS, without side effects.
    case discovery
    /// Creates the upload resource (section "Upload Creation"), at the target, with the user's method.
    case creation
    /// Asks the upload resource how far it is (section "Offset Retrieval"): HEAD.
    case offsetRetrieval
    /// Appends to it (section "Upload Append"): PATCH.
    case append
    /// Gives it up (section "Upload Cancellation"): DELETE.
    case cancellation
  }

  package enum Content: Equatable, Sendable {
    /// The request has no content, and nothing says so.
    case absent
    /// Content of no bytes.
    case empty
    /// The bytes from this stream offset on: to the end of what there is, at most `maximum`.
    case bytes(from: UInt64, maximum: UInt64?)
  }

  package var purpose: Purpose
  /// The upload resource's absolute URL; nil for the target.
  package var url: String?
  /// The protocol's own fields.
  package var fields: HeaderFields
  package var content: Content
  /// POST, where the server takes no creation with the user's method.
  package var creationMethod: String?

  /// nil where it is the user's to say.
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
  /// `Location`, made absolute; nil if there is none that could be.
  package var location: String?
  /// A final response that came before the request's content had ended.
  package var isEarly: Bool
  /// `Location` leads from https to http: it counts as none.
  package var isLocationInsecure = false

  package init(status: Int, fields: HeaderFields, location: String? = nil, isEarly: Bool = false) {
    self.status = status
    self.fields = fields
    self.location = location
    self.isEarly = isEarly
  }

  package var isSuccess: Bool { (200..<300).contains(status) }

  /// A matter of credentials, which may change: whether to wait for that is a matter of time, and not of the protocol.
  package var isRefusal: Bool { [401, 403, 407].contains(status) }

  /// The methods that `Allow` names (RFC 9110, section 10.2.1).
  var allowedMethods: [Substring] {
    fields["Allow"]?.split { $0 == "," || $0 == " " || $0 == "\t" } ?? []
  }

  /// Statuses after which the same may work later: the upload is asked for its offset then, and goes on.
  package var allowsRetry: Bool { RetriedStatus.contains(status) }
}

/// What of the stream is at hand, in stream offsets.
package struct Supply: Equatable, Sendable {
  /// The oldest byte that can still be sent.
  package var oldest: UInt64
  /// One past the newest byte.
  package var head: UInt64
  /// Whether `head` is the end of the stream.
  package var isFinished: Bool
  /// Where to begin when the bytes that were due are gone: somewhat behind `oldest`, so that what is about to be sent
  /// is not let go in its turn.
  package var restart: UInt64
  /// Offsets before `oldest` that no byte has: the source gave nothing for longer than is kept.
  package var pause: Range<UInt64>?
  /// Whether such a pause begins at `head`. What is before it is not followed by anything in its upload resource.
  package var pausesAtHead: Bool

  package init(
    oldest: UInt64, head: UInt64, isFinished: Bool, restart: UInt64? = nil, pause: Range<UInt64>? = nil,
    pausesAtHead: Bool = false
  ) {
    self.pause = pause
    self.pausesAtHead = pausesAtHead
    self.oldest = oldest
    self.head = head
    self.isFinished = isFinished
    self.restart = restart ?? oldest
  }
}
