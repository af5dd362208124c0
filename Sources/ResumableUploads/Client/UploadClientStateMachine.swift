// The client's side of the protocol: which request comes next, and what each answer means.
//
// It follows the draft, and adapts to widely used servers that deviate from it. It sends HEAD before each continuation
// after an interruption, ignores impossible offsets, steps down to older versions, and infers completeness from answers
// that do not mention it.

package import HTTPMessages

/// The rules of one resumable upload, or of a series of them if a stream outlives its upload resource. Takes events and
/// returns actions. Has no I/O and no clock.
///
/// All offsets are stream offsets; an upload resource begins at ``base``, and its own offsets are counted from there.
package struct UploadClientStateMachine: Sendable {
  package struct Configuration: Equatable, Sendable {
    /// Whether to ask the target by OPTIONS first, and to report it if the target does not support resumable uploads.
    package var discovers = true
    /// Whether to send everything with the creation, which becomes resumable on the way (section "Optimistic Upload
    /// Creation"). Requires a stream that can be sent again from its beginning.
    package var isOptimistic = false
    /// The length of the whole stream in bytes, if known.
    package var length: UInt64?
    /// The creation's method, if POST may replace it when the server accepts no other; nil if nothing may.
    package var replaceableMethod: String?
    /// The version to try first.
    package var version = InteropVersion.newest
    /// Whether the user's fields make the requests conditional, so that a 412 may say that the condition is false.
    package var hasCondition = false
    /// The maximum size of one append in bytes.
    package var appendSize: UInt64?
    /// A server that accepts less than this per request, or per upload resource, would be flooded with requests. The
    /// client does not begin an upload that would need several of them.
    package var smallestLimit: UInt64 = 0
    /// Identifies the stream across its upload resources, for servers that join them.
    package var streamID: String?
    /// The digest to request from the server (RFC 9530), such as `sha-256`.
    package var digestAlgorithm: String?
    /// The digest of the whole stream, if known beforehand, so that the server can verify it.
    package var digest: DigestField?

    package init() {}
  }

  package enum State: Equatable, Sendable {
    case idle
    case discovering
    case creating
    /// The offset is known, but there is nothing to append yet.
    case ready
    case appending(Append)
    case retrievingOffset
    /// Nothing is under way; ``UploadClientStateMachine/goOn(_:)`` is due after a delay.
    case interrupted(Next)
    case cancelling
    case ended
  }

  package struct Append: Equatable, Sendable {
    package var start: UInt64
    package var completes: Bool
    /// The upload resource ends here, but the stream does not.
    package var endsPart = false
    /// The upload is already complete. The client only requests its lost final response.
    package var isReplay = false
    /// The minimum size of its content in bytes, unless the stream ends.
    package var minimum: UInt64 = 0
  }

  package enum Next: Equatable, Sendable { case discovery, creation, offsetRetrieval }

  package enum Action: Equatable, Sendable {
    case none
    case send(ClientRequest)
    /// Call ``UploadClientStateMachine/bytesAreReady(_:)`` when the stream reaches this offset, or has ended.
    case awaitBytes(upTo: UInt64)
    /// Call ``UploadClientStateMachine/goOn(_:)`` after a delay.
    case wait
    /// The server does not support resumable uploads, and nothing was sent yet. The value is the reason.
    case unsupported(String)
    /// The server has the whole stream.
    case completed
    case fail(ClientFailure)
  }

  // The fields that each acknowledgement needs come first: with thousands of uploads, each further cache line costs a
  // memory access.

  /// Stream offset of the upload resource's first byte.
  package internal(set) var base: UInt64 = 0
  /// Stream offset up to which bytes are acknowledged. These need not be kept.
  package internal(set) var acknowledged: UInt64 = 0
  /// The largest offset that was ever acknowledged. Bytes before it need not be kept, even if the server later reports
  /// a lower one.
  var everAcknowledged: UInt64 = 0
  /// The largest offset that any answer has shown, be it an acknowledgement or HEAD.
  var furthest: UInt64 = 0
  /// Whether another process has begun the upload.
  var isResumed = false
  /// What the server has of another process's stream beyond what is kept here; see ``Surplus``.
  var surplus: Surplus?
  /// How often the server was seen to have more than before, in whichever answer.
  package internal(set) var advances: UInt64 = 0
  /// One past the highest byte ever handed to the network.
  package internal(set) var sent: UInt64 = 0
  var notes: [ClientNote] = []
  /// Answers since the last progress that made the client ask again at once. Their number is limited.
  var detours = 0
  /// Refusals of an append's size since the last progress. They make appends smaller, but their number is limited too.
  var shrinks = 0
  package internal(set) var state = State.idle
  package internal(set) var version: InteropVersion
  /// Whether the server was seen to support ``version``.
  package internal(set) var isVersionSettled = false
  /// The upload resource's lifetime in seconds, counted from the newest response that reported it; see
  /// ``takeLifetime()``.
  var toldLifetime: UInt64?
  package internal(set) var limits = UploadLimits()

  /// The upload resource's absolute URL.
  package internal(set) var uploadURL: String?
  /// The maximum size of one append after the server refused a larger one.
  package internal(set) var shrunkAppendSize: UInt64?
  /// Whether the server joins the upload resources of one stream (its answer to a creation had `Stream-ID`).
  package internal(set) var joinsParts = false

  /// Whether the server has nothing left to continue: it has everything, has removed the upload, or has wrong bytes.
  package internal(set) var isForgotten = false

  /// Where the next append begins, as reported by the server.
  var offset: UInt64 = 0
  /// The maximum size of the append under way.
  var appendMaximum: UInt64?
  /// Why the upload resource must end although the stream does not.
  var partEnd: PartEnd?
  /// Whether the client retrieves the offset once more because there was nothing to append at it.
  var confirms = false
  /// Whether one of the appends has carried the upload's length.
  var hasToldLength = false
  /// Whether OPTIONS was sent again after an answer that may not be the server's.
  var hasAskedTwice = false
  /// How often OPTIONS was answered with 500.
  var refusedQuestions = 0
  /// Whether the answer to OPTIONS offered resumable uploads.
  var isOffered = false
  /// How often a creation was nevertheless answered as a plain upload. After several, the offer counts as a mistake.
  var plainAnswers = 0
  static let mostPlainAnswers = 4
  /// Successive unbelievable answers to HEAD.
  var disbelieved = 0
  /// What the upload resource reported by 409 about the offset of an append; see ``Conflict``.
  var conflict: Conflict?
  /// Whether an append without content has checked an impossible answer to HEAD.
  var hasProbed = false
  /// How often the answer to an append to a complete upload reported it incomplete.
  var denials = 0
  /// How often a new upload resource followed one that was gone, since the last progress.
  var restarts = 0
  /// The furthest offset of the upload resource that followed a missing one.
  var furthestSinceRestart: UInt64 = 0
  /// How often in a row the server refused bytes where a new upload begins.
  var placeRefusals = 0
  /// How often in a row the upload resource was reported missing.
  var missing = 0
  /// Whether the upload resource has reported an offset, or accepted an append.
  var isProven = false
  /// See ``isDoubted``.
  var doubts = 0
  /// This client's state when it left its upload resource, until another one is proven. Empty or one element.
  var former: [UploadClientStateMachine] = []
  /// Stream offset up to which gaps were reported, whichever upload resource the client then returned to.
  var reportedUpTo: UInt64 = 0
  /// The notes about leaving it, which are reported once another one exists.
  var heldNotes: [ClientNote] = []
  /// The target of a redirect (307, 308), until a request to it fails.
  var diversion: (url: String, isPermanent: Bool)?
  /// POST, if the server accepts no other method.
  package internal(set) var creationMethod: String?
  /// Why the upload is being cancelled; nil if the user cancels it.
  var reason: ClientFailure?
  /// Whether an append that completes the upload was sent in full and got no answer.
  var awaitsFinalResponse = false
  /// Whether such an append was answered by a 2xx without fields of the protocol, which may not be the server's.
  var isFinalResponseUnproved = false
  /// Whether a server has created an upload resource in this version.
  var hasCreated = false
  /// The URL that the 104 of the creation under way has announced.
  var announced: String?
  var isOptimistic: Bool
  var asksForLimits = false
  let configuration: Configuration

  /// After so many denials, HEAD's report that the upload is complete counts.
  static let maximumDenials = 3
  /// More detours than this without progress are useless.
  static let maximumDetours = 8
  /// Detours made at once. Further ones follow a pause, because a misbehaving front end does so for seconds.
  static let immediateDetours = 2
  /// Enough to halve any size down to one.
  static let maximumShrinks = 64

  package init(_ configuration: Configuration) {
    self.configuration = configuration
    version = configuration.version
    isOptimistic = configuration.isOptimistic
  }

  /// Returns the notes since the last call.
  package mutating func takeNotes() -> [ClientNote] {
    defer { notes = [] }
    return notes
  }

  /// How long the upload resource will live (`max-age`), in seconds, counted from the response that was handled last;
  /// nil if that did not report it.
  package mutating func takeLifetime() -> UInt64? {
    defer { toldLifetime = nil }
    return toldLifetime
  }

  // MARK: Beginning and ending

  /// Begins a stream, or continues one of another process in a new upload resource.
  ///
  /// - Parameter acknowledged: the stream offset up to which the server has acknowledged the stream to that process.
  package mutating func start(_ supply: Supply, after acknowledged: UInt64 = 0) -> Action {
    // Bytes that the other process has delivered may no longer be kept here.
    base = min(acknowledged, supply.head)
    (self.acknowledged, everAcknowledged, reportedUpTo) = (base, base, base)
    return configuration.discovers && !isOptimistic ? discoverOrCreate(supply) : create(supply)
  }

  /// Resumes an upload resource that another process has left.
  ///
  /// - Parameter acknowledged: the stream offset up to which the server has acknowledged the stream to that process, if
  ///   this is known.
  package mutating func resume(
    url: String, base: UInt64, version: InteropVersion, acknowledged: UInt64 = 0
  ) -> Action {
    (uploadURL, self.base, offset, sent) = (url, base, base, .max)
    self.acknowledged = max(base, acknowledged)
    if acknowledged > base { everAcknowledged = acknowledged }
    self.version = version
    (isVersionSettled, isProven, isResumed) = (true, true, true)
    return retrieveOffset()
  }

  /// Asks the server to remove the upload (section "Upload Cancellation").
  package mutating func cancel() -> Action { abandon(.cancelled) }

  /// Abandons the upload for a reason, and cancels it on the server.
  mutating func abandon(_ reason: ClientFailure) -> Action {
    guard let uploadURL = currentURL else { return fail(reason) }
    self.reason = reason
    state = .cancelling
    return .send(request(.cancellation, url: uploadURL, content: .absent))
  }

  /// The delay after ``Action/wait`` is over. Returns a request or the end, and never another delay.
  package mutating func goOn(_ supply: Supply) -> Action {
    guard case .interrupted(let next) = state else { return .none }
    switch next {
    case .discovery: return discoverOrCreate(supply)
    case .creation: return create(supply)
    case .offsetRetrieval: return isDoubted ? leaveUnproven(supply) : retrieveOffset()
    }
  }

  package mutating func bytesAreReady(_ supply: Supply) -> Action { state == .ready ? append(supply) : .none }

  /// The upload resource's lifetime (`max-age`) is about to end. A new one follows the next answer.
  package mutating func expiresSoon() -> Bool {
    // A representation of known length is a single upload, however long it lives. An upload without progress in its
    // lifetime would be followed by another without progress.
    guard uploadURL != nil, partEnd == nil, configuration.length == nil, acknowledged > base else { return false }
    partEnd = .expiry
    return true
  }

  /// Content up to `cursor` was handed over, in the request under way or in one that was aborted.
  package mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The request under way has ended without a response.
  package mutating func interrupted(sentUpTo: UInt64) -> Action {
    sent = max(sent, sentUpTo)
    switch state {
    case .discovering: return wait(.discovery)
    case .creating:
      awaitsFinalResponse = isOptimistic && announced != nil && sentUpTo == configuration.length
      return creationFailed()
    case .appending(let append):
      doubt(.silence)
      if append.completes, !append.endsPart, sentUpTo == append.start + (appendMaximum ?? 0) {
        awaitsFinalResponse = true
      }
      return wait(.offsetRetrieval)
    case .retrievingOffset:
      doubt(.silence)
      return wait(.offsetRetrieval)
    case .cancelling: return fail(reason ?? .cancelled)
    case .idle, .ready, .interrupted, .ended: return .none
    }
  }

  /// OPTIONS got no answer. That does not mean that the server lacks support. Creating an upload shows it.
  package mutating func questionIsUnanswered(_ supply: Supply) -> Action {
    guard state == .discovering else { return .none }
    guard asksForLimits else { return create(supply) }
    asksForLimits = false
    return uploadURL == nil ? create(supply) : retrieveOffset()
  }

  mutating func wait(_ next: Next) -> Action {
    state = .interrupted(next)
    // A redirect was temporary, or its target does not work. Ask the first URL again.
    diversion = nil
    return .wait
  }

  mutating func fail(_ failure: ClientFailure) -> Action {
    state = .ended
    isForgotten = isForgotten || failure.isFinal
    return .fail(failure)
  }

  mutating func acknowledge(upTo offset: UInt64) {
    guard offset > acknowledged else { return }
    acknowledged = offset
    everAcknowledged = max(everAcknowledged, offset)
    forgetImpossibleSize()
    noteAdvance(to: offset)
  }

  /// The server has everything before `offset`.
  mutating func noteAdvance(to offset: UInt64) {
    // A new upload that begins behind lost bytes has stored none yet.
    guard offset > base else { return }
    // Progress means bytes that were never there before, or bytes sent once more after the server forgot them.
    // Otherwise a server that forgets repeatedly would receive the same bytes for ever.
    if offset > furthest {
      (furthest, detours, shrinks, restarts) = (offset, 0, 0, 0)
      advances &+= 1
    } else if restarts == 1, offset > furthestSinceRestart {
      furthestSinceRestart = offset
      advances &+= 1
    }
  }
}
