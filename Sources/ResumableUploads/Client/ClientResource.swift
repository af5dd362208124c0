// What the client knows about its upload resource. Each creation starts over.

extension UploadClientStateMachine {
  /// The current upload resource, or the one that is being created.
  struct Resource: Sendable {
    /// The absolute URL.
    var url: String?
    /// The URL that the 104 of the creation under way has announced.
    var announced: String?
    /// Whether the creation under way has had a 104 of the client's version, which only a server with resumable uploads
    /// sends.
    var hasInterim = false
    /// The target of a redirect (307, 308), until a request to it fails.
    var diversion: (url: String, isPermanent: Bool)?
    /// Stream offset where the next append begins, as reported by the server.
    var offset: UInt64
    /// Whether the upload resource has reported an offset, or accepted an append.
    var isProven = false
    /// The sum of all ``Doubt``s. See ``isDoubted``.
    var doubts = 0
    /// What it reported by 409 about the offset of an append; see ``Conflict``.
    var conflict: Conflict?
    /// Whether an append without content has checked an impossible answer to HEAD.
    var hasProbed = false
    /// What the server has of another process's stream beyond what is kept here; see ``Surplus``.
    var surplus: Surplus?
    /// Whether the client retrieves the offset once more because there was nothing to append at it.
    var confirms = false
    /// The bytes of the last append, from its answer on, until the offset shows how many of them are stored. Stream
    /// offsets.
    var answeredAppend: Range<UInt64>?
    /// Whether one of the appends has carried the upload's length.
    var hasToldLength = false
    /// Whether an append that completes the upload was sent in full and got no answer.
    var awaitsFinalResponse = false
    /// Whether such an append was answered by a 2xx without fields of the protocol, which may not be the server's.
    var isFinalResponseUnproved = false
    /// Whether the server has nothing left to continue: it has stored everything, has removed the upload, or has stored
    /// wrong bytes.
    var isForgotten = false

    init(url: String? = nil, offset: UInt64 = 0) { (self.url, self.offset) = (url, offset) }

    /// Its URL, or the current target of its redirect.
    var currentURL: String? { diversion?.url ?? url }

    /// Whether the client leaves it because it has not answered as an upload resource.
    var isDoubted: Bool { !isProven && doubts >= Doubt.most }

    mutating func doubt(_ doubt: Doubt) { if !isProven { doubts += doubt.rawValue } }
  }

  /// How one upload resource follows another.
  struct Parts: Sendable {
    /// Why the upload resource must end although the stream does not.
    var end: PartEnd?
    /// This client's state when it left its upload resource, until another one is proven. Empty or one element.
    var former: [UploadClientStateMachine] = []
    /// The notes about leaving it, which are reported once another one exists.
    var heldNotes: [ClientNote] = []
    /// The offset up to which earlier upload resources have the stream, or its loss was reported.
    var kept: UInt64 = 0
    /// The bytes before the upload resource that is being created, discarded here before any had them.
    var missing: Missing?
  }
}
