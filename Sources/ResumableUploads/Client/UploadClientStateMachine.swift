// The client's side of the protocol: which request comes next, and what each answer means.
//
// It takes the letter of the draft where servers keep to it, and what the servers that people run do where they do not:
// ask by HEAD before each continuation after an interruption, believe no offset that cannot be, step down to older
// versions, and take silence about completeness for what it must mean.

package import HTTPMessages

/// The rules of one resumable upload, or of a row of them where a stream outlives its upload resource. Takes events,
/// returns what to do; no I/O, no clock.
///
/// All offsets are stream offsets; an upload resource begins at ``base``, and its own offsets are counted from there.
package struct UploadClientStateMachine: Sendable {
  package struct Configuration: Equatable, Sendable {
    /// Whether to ask the target by OPTIONS first, and to say so if it supports nothing of all this.
    package var discovers = true
    /// Whether to send everything with the creation and to be upgraded on the way (section "Optimistic Upload
    /// Creation"). Wants a stream that can be begun again.
    package var isOptimistic = false
    /// Of the whole stream, in bytes, where it is known.
    package var length: UInt64?
    /// The creation's method, where POST may take its place if the server takes no other; nil where nothing may.
    package var replaceableMethod: String?
    /// Where to begin stepping down.
    package var version = InteropVersion.newest
    /// The most bytes of one append.
    package var appendSize: UInt64?
    /// A server that takes less than this in one request, or in one upload resource, would be flooded with requests:
    /// what needs more than one there is not begun.
    package var smallestLimit: UInt64 = 0
    /// Names the stream across its upload resources, for servers that join them.
    package var streamID: String?
    /// The digest to ask the server for (RFC 9530), e.g. `sha-256`.
    package var digestAlgorithm: String?
    /// The digest of the whole stream, where it is known beforehand: the server can verify it.
    package var digest: DigestField?

    package init() {}
  }

  package enum State: Equatable, Sendable {
    case idle
    case discovering
    case creating
    /// The offset is known; there is nothing to append yet.
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
    /// The upload resource ends here, the stream does not.
    package var endsPart = false
    /// The upload is complete already; only its lost final response is asked for once more.
    package var isReplay = false
    /// How many bytes its content has to have, unless the stream ends.
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
    /// The server knows nothing of resumable uploads, and nothing was sent yet; why, in words.
    case unsupported(String)
    /// The server has the whole stream.
    case completed
    case fail(ClientFailure)
  }

  // What each acknowledgement needs comes first: with thousands of uploads, each line of memory that one touches is to
  // be waited for.

  /// Stream offset of the upload resource's first byte.
  package internal(set) var base: UInt64 = 0
  /// Stream offset up to which bytes are acknowledged: they need not be kept.
  package internal(set) var acknowledged: UInt64 = 0
  /// The largest offset that was ever acknowledged: what is before it need not be kept, also if the server takes it
  /// back.
  var everAcknowledged: UInt64 = 0
  /// The largest offset that the server was ever seen to have, by an acknowledgement or by HEAD.
  var furthest: UInt64 = 0
  /// Whether another process has begun the upload.
  var isResumed = false
  /// What the server has of another process's stream beyond what is kept here; see ``Surplus``.
  var surplus: Surplus?
  /// How often the server was seen to have more than before: progress, whichever answer showed it.
  package internal(set) var advances: UInt64 = 0
  /// One past the highest byte ever handed to the network.
  package internal(set) var sent: UInt64 = 0
  var notes: [ClientNote] = []
  /// Answers since the last progress that made the client ask again at once: they must not go on for ever.
  var detours = 0
  /// Refusals of an append's size since then: they lead somewhere, but not for ever either.
  var shrinks = 0
  package internal(set) var state = State.idle
  package internal(set) var version: InteropVersion
  /// Whether the server was seen to speak ``version``.
  package internal(set) var isVersionSettled = false
  /// How long the upload resource lives from the newest response on that said so, in seconds; see ``takeLifetime()``.
  var toldLifetime: UInt64?
  package internal(set) var limits = UploadLimits()

  /// The upload resource's absolute URL.
  package internal(set) var uploadURL: String?
  /// How many bytes one append may have after the server refused a larger one.
  package internal(set) var shrunkAppendSize: UInt64?
  /// Whether the server joins the upload resources of one stream (it said `Stream-ID` when it created one).
  package internal(set) var joinsParts = false

  /// Whether there is nothing left at the server to go on with: it has everything, has let it go, or has the wrong
  /// things.
  package internal(set) var isForgotten = false

  /// Where the next append begins, as the server said.
  var offset: UInt64 = 0
  /// The most bytes that the append under way may have.
  var appendMaximum: UInt64?
  /// The upload resource has to end although the stream does not.
  var partEnd: PartEnd?
  /// Whether the offset is retrieved once more because there was nothing to be appended at it.
  var confirms = false
  /// Whether the upload's length was told with one of its appends.
  var hasToldLength = false
  /// Whether OPTIONS was sent again after an answer that may be somebody else's.
  var hasAskedTwice = false
  /// How often OPTIONS was answered with 500.
  var refusedQuestions = 0
  /// Whether the answer to OPTIONS has offered resumable uploads.
  var isOffered = false
  /// How often a creation was nevertheless answered as a plain upload is; after so many the offer counts as a mistake.
  var plainAnswers = 0
  static let mostPlainAnswers = 4
  /// Answers to HEAD in a row that could not be believed.
  var disbelieved = 0
  /// What the upload resource has said by 409 about the offset of an append; see ``Conflict``.
  var conflict: Conflict?
  /// Whether an append without content has asked about a HEAD that cannot be true.
  var hasProbed = false
  /// How often the answer to an append to a complete upload has said that it is not complete.
  var denials = 0
  /// How often a new upload resource followed one that was gone, since the last progress.
  var restarts = 0
  /// How far the upload resource is that follows such a one.
  var furthestSinceRestart: UInt64 = 0
  /// How often in a row the stream was said to take no bytes where a new upload begins.
  var placeRefusals = 0
  /// How often in a row the upload resource was said to be gone.
  var missing = 0
  /// Whether the upload resource has reported an offset, or accepted an append.
  var isProven = false
  /// See ``isDoubted``.
  var doubts = 0
  /// This client as it was when it left its upload resource, until another one is proven; empty or one.
  var former: [UploadClientStateMachine] = []
  /// Up to which stream offset gaps were reported, whichever upload resource the client then returned to.
  var reportedUpTo: UInt64 = 0
  /// What is to be reported about leaving it, once another one exists.
  var heldNotes: [ClientNote] = []
  /// Where a redirect (307, 308) leads, until something goes wrong there.
  var diversion: (url: String, isPermanent: Bool)?
  /// POST, where the server takes no other method.
  package internal(set) var creationMethod: String?
  /// Why the upload is being cancelled, unless somebody wishes it.
  var reason: ClientFailure?
  /// Whether an append that completes the upload went out as a whole, and no answer came.
  var awaitsFinalResponse = false
  /// Whether such an append was answered by a 2xx that says nothing of uploads: the server's, or somebody else's.
  var isFinalResponseUnproved = false
  /// Whether a server has created an upload resource in this version.
  var hasCreated = false
  /// What the 104 of the creation under way has announced.
  var announced: String?
  var isOptimistic: Bool
  var asksForLimits = false
  let configuration: Configuration

  /// When HEAD has said so often that an upload is complete, it is.
  static let maximumDenials = 3
  /// More detours than this without progress lead nowhere.
  static let maximumDetours = 8
  /// So many are made at once. Any more come after a pause: a front end that misbehaves does so for seconds.
  static let immediateDetours = 2
  /// By halves, from anything down to one.
  static let maximumShrinks = 64

  package init(_ configuration: Configuration) {
    self.configuration = configuration
    version = configuration.version
    isOptimistic = configuration.isOptimistic
  }

  /// What happened that people want to know, since the last call.
  package mutating func takeNotes() -> [ClientNote] {
    defer { notes = [] }
    return notes
  }

  /// How long the upload resource lives on (`max-age`), in seconds, counted from the response that was handled last;
  /// nil if that said nothing of it.
  package mutating func takeLifetime() -> UInt64? {
    defer { toldLifetime = nil }
    return toldLifetime
  }

  // MARK: Beginning and ending

  package mutating func start(_ supply: Supply) -> Action {
    configuration.discovers && !isOptimistic ? discoverOrCreate(supply) : create(supply)
  }

  /// Goes on with an upload resource that another process has left behind.
  package mutating func resume(url: String, base: UInt64, version: InteropVersion) -> Action {
    (uploadURL, self.base, offset, acknowledged, sent) = (url, base, base, base, .max)
    self.version = version
    (isVersionSettled, isProven, isResumed) = (true, true, true)
    return retrieveOffset()
  }

  /// The server shall forget the upload (section "Upload Cancellation").
  package mutating func cancel() -> Action { abandon(.cancelled) }

  /// Gives the upload up for a reason of which the server is told.
  mutating func abandon(_ reason: ClientFailure) -> Action {
    guard let uploadURL = currentURL else { return fail(reason) }
    self.reason = reason
    state = .cancelling
    return .send(request(.cancellation, url: uploadURL, content: .absent))
  }

  /// The delay after ``Action/wait`` is over. A request follows, or the end, and never another delay.
  package mutating func goOn(_ supply: Supply) -> Action {
    guard case .interrupted(let next) = state else { return .none }
    switch next {
    case .discovery: return discoverOrCreate(supply)
    case .creation: return create(supply)
    case .offsetRetrieval: return isDoubted ? leaveUnproven(supply) : retrieveOffset()
    }
  }

  package mutating func bytesAreReady(_ supply: Supply) -> Action { state == .ready ? append(supply) : .none }

  /// The upload resource's life (`max-age`) is about to end: the next answer is followed by a new one.
  package mutating func expiresSoon() -> Bool {
    // A representation of known length is one upload, which lives as long as it is let. And an upload that has got
    // nowhere in its life is followed by none that would.
    guard uploadURL != nil, partEnd == nil, configuration.length == nil, acknowledged > base else { return false }
    partEnd = .expiry
    return true
  }

  /// Content up to `cursor` was handed over, in the request under way or in one that was broken off.
  package mutating func wrote(upTo cursor: UInt64) { sent = max(sent, cursor) }

  /// The request under way is over without a response.
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

  /// OPTIONS was sent, and there is no answer to it. Silence does not mean that the server supports nothing: creating
  /// an upload shows it.
  package mutating func questionIsUnanswered(_ supply: Supply) -> Action {
    guard state == .discovering else { return .none }
    guard asksForLimits else { return create(supply) }
    asksForLimits = false
    return uploadURL == nil ? create(supply) : retrieveOffset()
  }

  mutating func wait(_ next: Next) -> Action {
    state = .interrupted(next)
    // A redirect was for the time being, or led to where something is wrong: the first URL is asked again.
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
    // A new upload that begins behind lost bytes has none yet.
    guard offset > base else { return }
    // Progress is what was never there before, or what is sent once more after the server forgot it. What it forgets
    // again and again would otherwise be sent for ever.
    if offset > furthest {
      (furthest, detours, shrinks, restarts) = (offset, 0, 0, 0)
      advances &+= 1
    } else if restarts == 1, offset > furthestSinceRestart {
      furthestSinceRestart = offset
      advances &+= 1
    }
  }
}
